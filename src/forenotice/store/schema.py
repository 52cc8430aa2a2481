"""The tables. Times are microseconds since 1970 in UTC, lists and maps are JSON text.

No foreign keys: history outlives hosts and VMs, and core decides on what was read under the one writer's lock.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    false,
    text,
)

# Sorted by code point on both, so that pages and Python agree.
NAME = Text().with_variant(Text(collation="C"), "postgresql")
MOMENT = BigInteger

metadata = MetaData()


def _partial_index(name: str, column: str, *more: str) -> Index:
    """Of the rows that have a value there."""
    there = text(f"{column} IS NOT NULL")
    return Index(name, column, *more, sqlite_where=there, postgresql_where=there)


def _index_of_live(name: str, *columns: str) -> Index:
    live = text("ended_at IS NULL")
    return Index(name, *columns, sqlite_where=live, postgresql_where=live)


hosts = Table(
    "hosts",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("cordoned", Boolean, nullable=False),
    Column("labels", Text),
    Column("capacity", Double),
)

scopes = Table(
    "scopes",
    metadata,
    Column("key", NAME, primary_key=True),
    Column("kind", NAME, nullable=False),
    Column("tag", NAME, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("listening", NAME, nullable=False),
    Column("auto_approve_restart", Boolean, nullable=False),
    Column("auto_approve_redeploy", Boolean, nullable=False, server_default=false()),
    Column("terminate_notice", BigInteger),
    Column("max_user_operations", BigInteger),
    Column("max_unavailable", NAME),
    Column("min_available", BigInteger),
    Column("windows", Text),
    Column("last_heard", MOMENT),
)

# When a key was last removed, and the time before: history that a successor is not shown ends there.
former_scopes = Table(
    "former_scopes",
    metadata,
    Column("key", NAME, primary_key=True),
    Column("ended_at", MOMENT, nullable=False),
    Column("ended_before", MOMENT),
)

vms = Table(
    "vms",
    metadata,
    Column("name", NAME, primary_key=True),
    Column("vm_id", NAME, nullable=False),
    Column("host", NAME, nullable=False),
    Column("scope", NAME, nullable=False),
    Column("update_domain", Integer, nullable=False),
    Column("fault_domain", Integer, nullable=False),
    Column("spot", Boolean, nullable=False),
    Column("addresses", Text),
    Column("facts", Text),
    Column("size", Double),
    Index("vms_host", "host", "size"),
    Index("vms_scope", "scope", "name"),
)

# Says again what `vms.addresses` says, so that an address is unique and found; VMs are read without a join.
vm_addresses = Table(
    "vm_addresses",
    metadata,
    Column("address", NAME, primary_key=True),
    Column("vm", NAME, nullable=False),
    Index("vm_addresses_vm", "vm"),
)

ENDED_WHEN_OVER = "(ended_at IS NULL) = (status IN ({}))"
"""So that `ended_at IS NULL` means live, in queries and partial indexes alike."""

operations = Table(
    "operations",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("kind", NAME, nullable=False),
    Column("host", NAME, nullable=False),
    Column("vms", Text, nullable=False),
    Column("status", NAME, nullable=False),
    Column("created_at", MOMENT, nullable=False),
    Column("not_before", MOMENT, nullable=False),
    Column("started_at", MOMENT),
    Column("ended_at", MOMENT),
    Column("due_at", MOMENT),
    Column("held", Boolean, nullable=False),
    Column("targets", Text),
    Column("done", Text),
    Column("failures", Text),
    Column("attempt", Integer, nullable=False),
    Column("claimed_by", NAME),
    Column("claimed_until", MOMENT),
    Column("author", NAME, nullable=False),
    Column("reason", Text, nullable=False),
    Column("rollout", NAME),
    Column("clock_jumped", MOMENT, nullable=False, server_default="0"),
    Column("notice", BigInteger, nullable=False, server_default="0"),
    CheckConstraint(ENDED_WHEN_OVER.format("'Planned', 'Scheduled', 'Started'"), name="operations_ended_when_over"),
    Index("operations_host", "host", "ended_at"),
    Index("operations_created", "created_at", "id"),
    _index_of_live("operations_live_created", "created_at", "id"),
    _index_of_live("operations_due", "due_at"),
    _partial_index("operations_claimed", "claimed_by"),
    _partial_index("operations_rollout", "rollout"),
)

# Which VMs an operation has named, and by which event they were told: a VM's own history is found by this.
vm_operations = Table(
    "vm_operations",
    metadata,
    Column("vm", NAME, primary_key=True),
    Column("operation", NAME, primary_key=True),
    Column("event", NAME),
    Index("vm_operations_operation", "operation"),
    sqlite_with_rowid=False,
)

events = Table(
    "events",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("operation", NAME, nullable=False),
    Column("scope", NAME, nullable=False),
    Column("resources", Text, nullable=False),
    Column("update_domain", Integer, nullable=False),
    Column("type", NAME, nullable=False),
    Column("source", NAME, nullable=False),
    Column("description", Text, nullable=False),
    Column("duration", BigInteger, nullable=False),
    Column("status", NAME, nullable=False),
    Column("created_at", MOMENT, nullable=False),
    Column("not_before", MOMENT, nullable=False),
    Column("approved_at", MOMENT),
    Column("approved_by", NAME),
    Column("implied", Boolean, nullable=False),
    Column("ended_at", MOMENT),
    CheckConstraint(ENDED_WHEN_OVER.format("'Scheduled', 'Started'"), name="events_ended_when_over"),
    Index("events_operation", "operation"),
    Index("events_scope", "scope", "ended_at"),
    Index("events_created", "created_at", "id"),
    _index_of_live("events_live", "type", "status"),
    _index_of_live("events_live_created", "created_at", "id"),
    _partial_index("events_ended", "ended_at", "id"),
)

# Positions are given by the one writer, not by a sequence: they have no gaps and follow the order of commits.
journal = Table(
    "journal",
    metadata,
    Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("at", MOMENT, nullable=False),
    Column("action", NAME, nullable=False),
    Column("author", NAME, nullable=False),
    Column("scope", NAME),
    Column("event", NAME),
    Column("operation", NAME),
    Column("host", NAME),
    Column("vm", NAME),
    Column("rollout", NAME),
    Column("data", Text),
    Column("origin", NAME, nullable=False, server_default=""),
    Column("reason", Text, nullable=False, server_default=""),
    _partial_index("journal_scope", "scope", "position"),
    _partial_index("journal_operation", "operation", "event", "position", "vm"),
    _partial_index("journal_host", "host", "position"),
    _partial_index("journal_vm", "vm", "position"),
    _partial_index("journal_rollout", "rollout", "position"),
    Index(
        "journal_author",
        "author",
        "position",
        sqlite_where=text("author <> 'system'"),
        postgresql_where=text("author <> 'system'"),
    ),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("kind", NAME, nullable=False),
    Column("hosts", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("status", NAME, nullable=False),
    Column("wave", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("why", Text, nullable=False),
    Column("opens_at", MOMENT, nullable=False),
    Column("opened_at", MOMENT),
    Column("gate_result", Text),
    Column("created_at", MOMENT, nullable=False),
    Column("ended_at", MOMENT),
    Column("due_at", MOMENT),
    Column("author", NAME, nullable=False),
    Column("reason", Text, nullable=False),
    Column("since", MOMENT, nullable=False),
    Index("rollouts_created", "created_at", "id"),
    _partial_index("rollouts_due", "due_at"),
)

# The hosts of a rollout, each in its wave.
stops = Table(
    "stops",
    metadata,
    Column("rollout", NAME, primary_key=True),
    Column("host", NAME, primary_key=True),
    Column("wave", Integer, nullable=False),
    Column("status", NAME, nullable=False),
    Column("operation", NAME),
    Column("why", Text, nullable=False),
    Column("update_domains", Text, nullable=False, server_default=""),
    Index("stops_wave", "rollout", "status", "wave", "host"),
)

subscriptions = Table(
    "subscriptions",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("name", NAME, nullable=False, unique=True),
    Column("url", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("types", Text, nullable=False),
    Column("groups", Text, nullable=False),
    Column("statuses", Text, nullable=False),
    Column("status", NAME, nullable=False),
    Column("why", Text, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("created_at", MOMENT, nullable=False),
    Column("author", NAME, nullable=False),
    Column("claimed_by", NAME),
    Column("claimed_until", MOMENT),
)

# What a subscription has still to be told; of one lane, which is that of an event, in order of position.
deliveries = Table(
    "deliveries",
    metadata,
    Column("subscription", NAME, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("lane", NAME, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("tried_since", MOMENT),
    Column("due_at", MOMENT, nullable=False),
    Column("error", Text, nullable=False),
    Index("deliveries_lane", "subscription", "lane", "position"),
    Index("deliveries_due", "subscription", "due_at"),
)

# What an outside driver has told us by callback, until tick has taken it.
driver_answers = Table(
    "driver_answers",
    metadata,
    Column("operation", NAME, primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("outcome", Text, nullable=False),
    Column("at", MOMENT, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", NAME, primary_key=True),
    Column("name", NAME, nullable=False),
    Column("role", NAME, nullable=False),
    Column("digest", NAME, nullable=False, unique=True),
    Column("created_at", MOMENT, nullable=False),
    Column("last_used_at", MOMENT),
    Column("revoked_at", MOMENT),
    Column("selector", Text),
    Column("expires_at", MOMENT),
    Column("networks", Text),
    Column("previous_digest", NAME),
    Column("previous_until", MOMENT),
    Column("renewed_at", MOMENT),
    _partial_index("tokens_previous", "previous_digest"),
)

# Of the portal.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", NAME, primary_key=True),
    Column("token", NAME, nullable=False),
    Column("created_at", MOMENT, nullable=False),
    Column("expires_at", MOMENT, nullable=False),
    Index("sessions_token", "token"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("token", NAME, primary_key=True),
    Column("key", NAME, primary_key=True),
    Column("digest", NAME, nullable=False),
    Column("status", Integer, nullable=False),
    Column("result", LargeBinary, nullable=False),
    Column("at", MOMENT, nullable=False),
)

meta = Table(
    "meta",
    metadata,
    Column("key", NAME, primary_key=True),
    Column("value", Text, nullable=False),
)
