CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.deliveries (
    subscription text NOT NULL COLLATE pg_catalog."C",
    "position" bigint NOT NULL,
    lane text NOT NULL COLLATE pg_catalog."C",
    attempt integer NOT NULL,
    tried_since bigint,
    due_at bigint NOT NULL,
    error text NOT NULL
);
CREATE TABLE public.driver_answers (
    operation text NOT NULL COLLATE pg_catalog."C",
    attempt integer NOT NULL,
    outcome text NOT NULL,
    at bigint NOT NULL
);
CREATE TABLE public.events (
    id text NOT NULL COLLATE pg_catalog."C",
    operation text NOT NULL COLLATE pg_catalog."C",
    scope text NOT NULL COLLATE pg_catalog."C",
    resources text NOT NULL,
    update_domain integer NOT NULL,
    type text NOT NULL COLLATE pg_catalog."C",
    source text NOT NULL COLLATE pg_catalog."C",
    description text NOT NULL,
    duration bigint NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    created_at bigint NOT NULL,
    not_before bigint NOT NULL,
    approved_at bigint,
    approved_by text COLLATE pg_catalog."C",
    implied boolean NOT NULL,
    ended_at bigint,
    CONSTRAINT events_ended_when_over CHECK (((ended_at IS NULL) = (status = ANY (ARRAY['Scheduled'::text, 'Started'::text]))))
);
CREATE TABLE public.former_scopes (
    key text NOT NULL COLLATE pg_catalog."C",
    ended_at bigint NOT NULL,
    ended_before bigint
);
CREATE TABLE public.hosts (
    name text NOT NULL COLLATE pg_catalog."C",
    cordoned boolean NOT NULL,
    labels text,
    capacity double precision
);
CREATE TABLE public.idempotency (
    token text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    digest text NOT NULL COLLATE pg_catalog."C",
    status integer NOT NULL,
    result bytea NOT NULL,
    at bigint NOT NULL
);
CREATE TABLE public.journal (
    "position" bigint NOT NULL,
    at bigint NOT NULL,
    action text NOT NULL COLLATE pg_catalog."C",
    author text NOT NULL COLLATE pg_catalog."C",
    scope text COLLATE pg_catalog."C",
    event text COLLATE pg_catalog."C",
    operation text COLLATE pg_catalog."C",
    host text COLLATE pg_catalog."C",
    vm text COLLATE pg_catalog."C",
    data text,
    rollout text COLLATE pg_catalog."C",
    origin text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    reason text DEFAULT ''::text NOT NULL
);
CREATE TABLE public.meta (
    key text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL
);
CREATE TABLE public.operations (
    id text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    host text NOT NULL COLLATE pg_catalog."C",
    vms text NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    created_at bigint NOT NULL,
    not_before bigint NOT NULL,
    started_at bigint,
    ended_at bigint,
    due_at bigint,
    held boolean NOT NULL,
    targets text,
    done text,
    failures text,
    attempt integer NOT NULL,
    claimed_by text COLLATE pg_catalog."C",
    claimed_until bigint,
    author text NOT NULL COLLATE pg_catalog."C",
    reason text NOT NULL,
    rollout text COLLATE pg_catalog."C",
    clock_jumped bigint DEFAULT '0'::bigint NOT NULL,
    notice bigint DEFAULT '0'::bigint NOT NULL,
    CONSTRAINT operations_ended_when_over CHECK (((ended_at IS NULL) = (status = ANY (ARRAY['Planned'::text, 'Scheduled'::text, 'Started'::text]))))
);
CREATE TABLE public.rollouts (
    id text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    hosts text NOT NULL,
    options text NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    turn integer NOT NULL,
    failures integer NOT NULL,
    why text NOT NULL,
    opens_at bigint NOT NULL,
    opened_at bigint,
    verdict text,
    created_at bigint NOT NULL,
    ended_at bigint,
    due_at bigint,
    author text NOT NULL COLLATE pg_catalog."C",
    reason text NOT NULL,
    since bigint NOT NULL
);
CREATE TABLE public.scopes (
    key text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    tag text NOT NULL COLLATE pg_catalog."C",
    incarnation bigint NOT NULL,
    listening text NOT NULL COLLATE pg_catalog."C",
    auto_approve_restart boolean CONSTRAINT scopes_auto_approve_not_null NOT NULL,
    terminate_notice bigint,
    max_user_operations bigint,
    last_heard bigint,
    max_unavailable text COLLATE pg_catalog."C",
    min_available bigint,
    windows text,
    auto_approve_redeploy boolean DEFAULT false NOT NULL
);
CREATE TABLE public.sessions (
    digest text NOT NULL COLLATE pg_catalog."C",
    token text NOT NULL COLLATE pg_catalog."C",
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE TABLE public.stops (
    rollout text NOT NULL COLLATE pg_catalog."C",
    host text NOT NULL COLLATE pg_catalog."C",
    turn integer NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    operation text COLLATE pg_catalog."C",
    why text NOT NULL,
    update_domains text DEFAULT ''::text NOT NULL
);
CREATE TABLE public.subscriptions (
    id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    url text NOT NULL,
    secret text NOT NULL,
    types text NOT NULL,
    groups text NOT NULL,
    statuses text NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    why text NOT NULL,
    "position" bigint NOT NULL,
    created_at bigint NOT NULL,
    author text NOT NULL COLLATE pg_catalog."C",
    claimed_by text COLLATE pg_catalog."C",
    claimed_until bigint
);
CREATE TABLE public.tokens (
    id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    role text NOT NULL COLLATE pg_catalog."C",
    digest text NOT NULL COLLATE pg_catalog."C",
    created_at bigint NOT NULL,
    last_used_at bigint,
    revoked_at bigint,
    selector text,
    expires_at bigint,
    networks text,
    previous_digest text COLLATE pg_catalog."C",
    previous_until bigint,
    renewed_at bigint
);
CREATE TABLE public.vm_addresses (
    address text NOT NULL COLLATE pg_catalog."C",
    vm text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE public.vm_operations (
    vm text NOT NULL COLLATE pg_catalog."C",
    operation text NOT NULL COLLATE pg_catalog."C",
    event text COLLATE pg_catalog."C"
);
CREATE TABLE public.vms (
    name text NOT NULL COLLATE pg_catalog."C",
    vm_id text NOT NULL COLLATE pg_catalog."C",
    host text NOT NULL COLLATE pg_catalog."C",
    scope text NOT NULL COLLATE pg_catalog."C",
    update_domain integer NOT NULL,
    fault_domain integer NOT NULL,
    spot boolean NOT NULL,
    addresses text,
    facts text,
    size double precision
);
INSERT INTO public.alembic_version VALUES ('0014');
INSERT INTO public.deliveries VALUES ('s', 1, '', 0, NULL, 1, '');
INSERT INTO public.events VALUES ('E', 'o', 'group:web', '["web-0"]', 3, 'Freeze', 'Platform', '', 9, 'Scheduled', 1, 900000001, NULL, NULL, false, NULL);
INSERT INTO public.former_scopes VALUES ('group:old', 1, NULL);
INSERT INTO public.hosts VALUES ('rack1-01', true, '{"zone":"a"}', 2.5);
INSERT INTO public.journal VALUES (1, 1, 'rollout.turn_began', 'system', NULL, NULL, NULL, NULL, NULL, '{"turn":1}', 'r', '', '');
INSERT INTO public.journal VALUES (2, 1, 'event.scheduled', 'admin:ada', 'group:web', 'E', 'o', NULL, NULL, NULL, NULL, '', '');
INSERT INTO public.meta VALUES ('epoch', '3');
INSERT INTO public.operations VALUES ('o', 'host-update', 'rack1-01', '["web-0"]', 'Scheduled', 1, 900000001, NULL, NULL, 900000001, false, NULL, NULL, NULL, 0, NULL, NULL, 'admin:ada', 'firmware', 'r', 5, 900000000);
INSERT INTO public.rollouts VALUES ('r', 'host-update', 'rack1-*', '{}', 'Running', 1, 0, '', 1, 1, '{"go":true}', 1, NULL, 2, 'admin:ada', 'firmware', 1);
INSERT INTO public.scopes VALUES ('group:web', 'availability-set', 'abcdefgh', 7, 'auto', true, NULL, NULL, NULL, '2', NULL, '["daily 02:00-04:00 UTC"]', false);
INSERT INTO public.stops VALUES ('r', 'rack1-01', 1, 'Under way', 'o', '', '3');
INSERT INTO public.stops VALUES ('r', 'rack1-02', 2, 'Waiting', NULL, '', '');
INSERT INTO public.subscriptions VALUES ('s', 'pager', 'https://pager.example/', 'sixteen-letters!', '["forenotice.rollout.turn_began","forenotice.event.*"]', '', '[]', 'active', '', 1, 1, 'admin:ada', NULL, NULL);
INSERT INTO public.tokens VALUES ('t', 'ada', 'admin', 'digest', 1, NULL, NULL, NULL, NULL, '10.0.0.0/8', NULL, NULL, 4);
INSERT INTO public.vm_addresses VALUES ('10.0.0.1', 'web-0');
INSERT INTO public.vm_operations VALUES ('web-0', 'o', 'E');
INSERT INTO public.vms VALUES ('web-0', 'id-0', 'rack1-01', 'group:web', 3, 1, false, '["10.0.0.1"]', NULL, 0.5);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (subscription, "position");
ALTER TABLE ONLY public.driver_answers
    ADD CONSTRAINT driver_answers_pkey PRIMARY KEY (operation, attempt);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.former_scopes
    ADD CONSTRAINT former_scopes_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.hosts
    ADD CONSTRAINT hosts_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (token, key);
ALTER TABLE ONLY public.journal
    ADD CONSTRAINT journal_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY public.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.operations
    ADD CONSTRAINT operations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT rollouts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.scopes
    ADD CONSTRAINT scopes_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (digest);
ALTER TABLE ONLY public.stops
    ADD CONSTRAINT stops_pkey PRIMARY KEY (rollout, host);
ALTER TABLE ONLY public.subscriptions
    ADD CONSTRAINT subscriptions_name_key UNIQUE (name);
ALTER TABLE ONLY public.subscriptions
    ADD CONSTRAINT subscriptions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_digest_key UNIQUE (digest);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.vm_addresses
    ADD CONSTRAINT vm_addresses_pkey PRIMARY KEY (address);
ALTER TABLE ONLY public.vm_operations
    ADD CONSTRAINT vm_operations_pkey PRIMARY KEY (vm, operation);
ALTER TABLE ONLY public.vms
    ADD CONSTRAINT vms_pkey PRIMARY KEY (name);
CREATE INDEX deliveries_due ON public.deliveries USING btree (subscription, due_at);
CREATE INDEX deliveries_lane ON public.deliveries USING btree (subscription, lane, "position");
CREATE INDEX events_created ON public.events USING btree (created_at, id);
CREATE INDEX events_ended ON public.events USING btree (ended_at, id) WHERE (ended_at IS NOT NULL);
CREATE INDEX events_live ON public.events USING btree (type, status) WHERE (ended_at IS NULL);
CREATE INDEX events_live_created ON public.events USING btree (created_at, id) WHERE (ended_at IS NULL);
CREATE INDEX events_operation ON public.events USING btree (operation);
CREATE INDEX events_scope ON public.events USING btree (scope, ended_at);
CREATE INDEX journal_author ON public.journal USING btree (author, "position") WHERE (author <> 'system'::text);
CREATE INDEX journal_host ON public.journal USING btree (host, "position") WHERE (host IS NOT NULL);
CREATE INDEX journal_operation ON public.journal USING btree (operation, event, "position", vm) WHERE (operation IS NOT NULL);
CREATE INDEX journal_rollout ON public.journal USING btree (rollout, "position") WHERE (rollout IS NOT NULL);
CREATE INDEX journal_scope ON public.journal USING btree (scope, "position") WHERE (scope IS NOT NULL);
CREATE INDEX journal_vm ON public.journal USING btree (vm, "position") WHERE (vm IS NOT NULL);
CREATE INDEX operations_claimed ON public.operations USING btree (claimed_by) WHERE (claimed_by IS NOT NULL);
CREATE INDEX operations_created ON public.operations USING btree (created_at, id);
CREATE INDEX operations_due ON public.operations USING btree (due_at) WHERE (ended_at IS NULL);
CREATE INDEX operations_host ON public.operations USING btree (host, ended_at);
CREATE INDEX operations_live_created ON public.operations USING btree (created_at, id) WHERE (ended_at IS NULL);
CREATE INDEX operations_rollout ON public.operations USING btree (rollout) WHERE (rollout IS NOT NULL);
CREATE INDEX rollouts_created ON public.rollouts USING btree (created_at, id);
CREATE INDEX rollouts_due ON public.rollouts USING btree (due_at) WHERE (due_at IS NOT NULL);
CREATE INDEX sessions_token ON public.sessions USING btree (token);
CREATE INDEX stops_turn ON public.stops USING btree (rollout, status, turn, host);
CREATE INDEX tokens_previous ON public.tokens USING btree (previous_digest) WHERE (previous_digest IS NOT NULL);
CREATE INDEX vm_addresses_vm ON public.vm_addresses USING btree (vm);
CREATE INDEX vm_operations_operation ON public.vm_operations USING btree (operation);
CREATE INDEX vms_host ON public.vms USING btree (host, size);
CREATE INDEX vms_scope ON public.vms USING btree (scope, name);
