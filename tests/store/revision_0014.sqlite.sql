BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0014');
CREATE TABLE deliveries (
	subscription TEXT NOT NULL,
	position BIGINT NOT NULL,
	lane TEXT NOT NULL,
	attempt INTEGER NOT NULL,
	tried_since BIGINT,
	due_at BIGINT NOT NULL,
	error TEXT NOT NULL,
	PRIMARY KEY (subscription, position)
);
INSERT INTO "deliveries" VALUES('s',1,'',0,NULL,1,'');
CREATE TABLE driver_answers (
	operation TEXT NOT NULL,
	attempt INTEGER NOT NULL,
	outcome TEXT NOT NULL,
	at BIGINT NOT NULL,
	PRIMARY KEY (operation, attempt)
);
CREATE TABLE events (
	id TEXT NOT NULL,
	operation TEXT NOT NULL,
	scope TEXT NOT NULL,
	resources TEXT NOT NULL,
	update_domain INTEGER NOT NULL,
	type TEXT NOT NULL,
	source TEXT NOT NULL,
	description TEXT NOT NULL,
	duration BIGINT NOT NULL,
	status TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	not_before BIGINT NOT NULL,
	approved_at BIGINT,
	approved_by TEXT,
	implied BOOLEAN NOT NULL,
	ended_at BIGINT,
	PRIMARY KEY (id),
	CONSTRAINT events_ended_when_over CHECK ((ended_at IS NULL) = (status IN ('Scheduled', 'Started')))
);
INSERT INTO "events" VALUES('E','o','group:web','["web-0"]',3,'Freeze','Platform','',9,'Scheduled',1,900000001,NULL,NULL,0,NULL);
CREATE TABLE former_scopes (
	"key" TEXT NOT NULL,
	ended_at BIGINT NOT NULL,
	ended_before BIGINT,
	PRIMARY KEY ("key")
);
INSERT INTO "former_scopes" VALUES('group:old',1,NULL);
CREATE TABLE hosts (
	name TEXT NOT NULL,
	cordoned BOOLEAN NOT NULL, labels TEXT, capacity DOUBLE,
	PRIMARY KEY (name)
);
INSERT INTO "hosts" VALUES('rack1-01',1,'{"zone":"a"}',2.5);
CREATE TABLE idempotency (
	token TEXT NOT NULL,
	"key" TEXT NOT NULL,
	digest TEXT NOT NULL,
	status INTEGER NOT NULL,
	result BLOB NOT NULL,
	at BIGINT NOT NULL,
	PRIMARY KEY (token, "key")
);
CREATE TABLE journal (
	position INTEGER NOT NULL,
	at BIGINT NOT NULL,
	action TEXT NOT NULL,
	author TEXT NOT NULL,
	scope TEXT,
	event TEXT,
	operation TEXT,
	host TEXT,
	vm TEXT,
	data TEXT, rollout TEXT, origin TEXT DEFAULT '' NOT NULL, reason TEXT DEFAULT '' NOT NULL,
	PRIMARY KEY (position)
);
INSERT INTO "journal" VALUES(1,1,'rollout.turn_began','system',NULL,NULL,NULL,NULL,NULL,'{"turn":1}','r','','');
INSERT INTO "journal" VALUES(2,1,'event.scheduled','admin:ada','group:web','E','o',NULL,NULL,NULL,NULL,'','');
CREATE TABLE meta (
	"key" TEXT NOT NULL,
	value TEXT NOT NULL,
	PRIMARY KEY ("key")
);
INSERT INTO "meta" VALUES('epoch','3');
CREATE TABLE "operations" (
	id TEXT NOT NULL,
	kind TEXT NOT NULL,
	host TEXT NOT NULL,
	vms TEXT NOT NULL,
	status TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	not_before BIGINT NOT NULL,
	started_at BIGINT,
	ended_at BIGINT,
	due_at BIGINT,
	held BOOLEAN NOT NULL,
	targets TEXT,
	done TEXT,
	failures TEXT,
	attempt INTEGER NOT NULL,
	claimed_by TEXT,
	claimed_until BIGINT,
	author TEXT NOT NULL,
	reason TEXT NOT NULL,
	rollout TEXT,
	clock_jumped BIGINT DEFAULT '0' NOT NULL,
	notice BIGINT DEFAULT '0' NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT operations_ended_when_over CHECK ((ended_at IS NULL) = (status IN ('Planned', 'Scheduled', 'Started')))
);
INSERT INTO "operations" VALUES('o','host-update','rack1-01','["web-0"]','Scheduled',1,900000001,NULL,NULL,900000001,0,NULL,NULL,NULL,0,NULL,NULL,'admin:ada','firmware','r',5,900000000);
CREATE TABLE rollouts (
	id TEXT NOT NULL,
	kind TEXT NOT NULL,
	hosts TEXT NOT NULL,
	options TEXT NOT NULL,
	status TEXT NOT NULL,
	turn INTEGER NOT NULL,
	failures INTEGER NOT NULL,
	why TEXT NOT NULL,
	opens_at BIGINT NOT NULL,
	opened_at BIGINT,
	verdict TEXT,
	created_at BIGINT NOT NULL,
	ended_at BIGINT,
	due_at BIGINT,
	author TEXT NOT NULL,
	reason TEXT NOT NULL,
	since BIGINT NOT NULL,
	PRIMARY KEY (id)
);
INSERT INTO "rollouts" VALUES('r','host-update','rack1-*','{}','Running',1,0,'',1,1,'{"go":true}',1,NULL,2,'admin:ada','firmware',1);
CREATE TABLE scopes (
	"key" TEXT NOT NULL,
	kind TEXT NOT NULL,
	tag TEXT NOT NULL,
	incarnation BIGINT NOT NULL,
	listening TEXT NOT NULL,
	auto_approve_restart BOOLEAN NOT NULL,
	terminate_notice BIGINT,
	max_user_operations BIGINT,
	last_heard BIGINT, max_unavailable TEXT, min_available BIGINT, windows TEXT, auto_approve_redeploy BOOLEAN DEFAULT 0 NOT NULL,
	PRIMARY KEY ("key")
);
INSERT INTO "scopes" VALUES('group:web','availability-set','abcdefgh',7,'auto',1,NULL,NULL,NULL,'2',NULL,'["daily 02:00-04:00 UTC"]',0);
CREATE TABLE sessions (
	digest TEXT NOT NULL,
	token TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	expires_at BIGINT NOT NULL,
	PRIMARY KEY (digest)
);
CREATE TABLE stops (
	rollout TEXT NOT NULL,
	host TEXT NOT NULL,
	turn INTEGER NOT NULL,
	status TEXT NOT NULL,
	operation TEXT,
	why TEXT NOT NULL, update_domains TEXT DEFAULT '' NOT NULL,
	PRIMARY KEY (rollout, host)
);
INSERT INTO "stops" VALUES('r','rack1-01',1,'Under way','o','','3');
INSERT INTO "stops" VALUES('r','rack1-02',2,'Waiting',NULL,'','');
CREATE TABLE subscriptions (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	url TEXT NOT NULL,
	secret TEXT NOT NULL,
	types TEXT NOT NULL,
	groups TEXT NOT NULL,
	statuses TEXT NOT NULL,
	status TEXT NOT NULL,
	why TEXT NOT NULL,
	position BIGINT NOT NULL,
	created_at BIGINT NOT NULL,
	author TEXT NOT NULL,
	claimed_by TEXT,
	claimed_until BIGINT,
	PRIMARY KEY (id),
	UNIQUE (name)
);
INSERT INTO "subscriptions" VALUES('s','pager','https://pager.example/','sixteen-letters!','["forenotice.rollout.turn_began","forenotice.event.*"]','','[]','active','',1,1,'admin:ada',NULL,NULL);
CREATE TABLE tokens (
	id TEXT NOT NULL,
	name TEXT NOT NULL,
	role TEXT NOT NULL,
	digest TEXT NOT NULL,
	created_at BIGINT NOT NULL,
	last_used_at BIGINT,
	revoked_at BIGINT, selector TEXT, expires_at BIGINT, networks TEXT, previous_digest TEXT, previous_until BIGINT, renewed_at BIGINT,
	PRIMARY KEY (id),
	UNIQUE (digest)
);
INSERT INTO "tokens" VALUES('t','ada','admin','digest',1,NULL,NULL,NULL,NULL,'10.0.0.0/8',NULL,NULL,4);
CREATE TABLE vm_addresses (
	address TEXT NOT NULL,
	vm TEXT NOT NULL,
	PRIMARY KEY (address)
);
INSERT INTO "vm_addresses" VALUES('10.0.0.1','web-0');
CREATE TABLE vm_operations (
	vm TEXT NOT NULL,
	operation TEXT NOT NULL,
	event TEXT,
	PRIMARY KEY (vm, operation)
)
 WITHOUT ROWID
;
INSERT INTO "vm_operations" VALUES('web-0','o','E');
CREATE TABLE vms (
	name TEXT NOT NULL,
	vm_id TEXT NOT NULL,
	host TEXT NOT NULL,
	scope TEXT NOT NULL,
	update_domain INTEGER NOT NULL,
	fault_domain INTEGER NOT NULL,
	spot BOOLEAN NOT NULL,
	addresses TEXT,
	facts TEXT, size DOUBLE,
	PRIMARY KEY (name)
);
INSERT INTO "vms" VALUES('web-0','id-0','rack1-01','group:web',3,1,0,'["10.0.0.1"]',NULL,0.5);
CREATE INDEX vms_scope ON vms (scope, name);
CREATE INDEX vm_addresses_vm ON vm_addresses (vm);
CREATE INDEX events_operation ON events (operation);
CREATE INDEX events_scope ON events (scope, ended_at);
CREATE INDEX events_created ON events (created_at, id);
CREATE INDEX events_live ON events (type, status) WHERE ended_at IS NULL;
CREATE INDEX events_live_created ON events (created_at, id) WHERE ended_at IS NULL;
CREATE INDEX vm_operations_operation ON vm_operations (operation);
CREATE INDEX journal_scope ON journal (scope, position) WHERE scope IS NOT NULL;
CREATE INDEX journal_host ON journal (host, position) WHERE host IS NOT NULL;
CREATE INDEX journal_vm ON journal (vm, position) WHERE vm IS NOT NULL;
CREATE INDEX journal_rollout ON journal (rollout, position) WHERE rollout IS NOT NULL;
CREATE INDEX journal_operation ON journal (operation, event, position, vm) WHERE operation IS NOT NULL;
CREATE INDEX journal_author ON journal (author, position) WHERE author <> 'system';
CREATE INDEX rollouts_created ON rollouts (created_at, id);
CREATE INDEX rollouts_due ON rollouts (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX stops_turn ON stops (rollout, status, turn, host);
CREATE INDEX deliveries_lane ON deliveries (subscription, lane, position);
CREATE INDEX deliveries_due ON deliveries (subscription, due_at);
CREATE INDEX sessions_token ON sessions (token);
CREATE INDEX events_ended ON events (ended_at, id) WHERE ended_at IS NOT NULL;
CREATE INDEX operations_due ON operations (due_at) WHERE ended_at IS NULL;
CREATE INDEX operations_created ON operations (created_at, id);
CREATE INDEX operations_host ON operations (host, ended_at);
CREATE INDEX operations_rollout ON operations (rollout) WHERE rollout IS NOT NULL;
CREATE INDEX operations_live_created ON operations (created_at, id) WHERE ended_at IS NULL;
CREATE INDEX operations_claimed ON operations (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE INDEX tokens_previous ON tokens (previous_digest) WHERE previous_digest IS NOT NULL;
CREATE INDEX vms_host ON vms (host, size);
COMMIT;
