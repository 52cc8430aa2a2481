"""The tables. Times are microseconds since 1970 in UTC, lists and maps are JSON text. Rows map by the names of columns.

No foreign keys: history outlives hosts and VMs, and core decides on what was read under the one writer's lock.
"""

from typing import Any

import sqlalchemy as sa

# Sorted by code point on both, so that pages and Python agree.
NAME = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
MOMENT = sa.BigInteger

metadata = sa.MetaData()


def _keys(*names: str, type_: Any = NAME) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, primary_key=True, autoincrement=False) for name in names]


def _required(type_: Any, *names: str, default: Any = None) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=False, server_default=default) for name in names]


def _optional(type_: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_) for name in names]


indexes: list[sa.Index] = []
"""In the order in which they are made: of two that seem alike to it, SQLite takes the younger one."""


def _index(name: str, *columns: str, where: str | None = None) -> sa.Index:
    condition = None if where is None else sa.text(where)
    indexes.append(sa.Index(name, *columns, sqlite_where=condition, postgresql_where=condition))
    return indexes[-1]


def _partial_index(name: str, column: str, *more: str) -> sa.Index:
    """Of the rows that have a value there."""
    return _index(name, column, *more, where=f"{column} IS NOT NULL")


_LIVE = "ended_at IS NULL"


hosts = sa.Table(
    "hosts",
    metadata,
    *_keys("name"),
    *_required(sa.Boolean, "cordoned"),
    sa.Column("labels", sa.Text),
    sa.Column("capacity", sa.Double),
    sa.Column("address", sa.Text),
    sa.Column("inventory", sa.Text),
)

# Hosts on which an edge has been heard, and since when it is not any more.
edges = sa.Table(
    "edges",
    metadata,
    *_keys("host"),
    *_required(MOMENT, "since"),
    *_optional(MOMENT, "lost_since"),
    _partial_index("edges_lost", "lost_since"),
)

# How watched hosts differ from the fleet.
drift = sa.Table(
    "drift",
    metadata,
    *_keys("host", "name"),
    *_required(NAME, "kind"),
    *_required(sa.Text, "reason"),
    *_required(MOMENT, "since"),
    _index("drift_name", "name"),
)

# VMs as their hosts last described them, for when a host has failed.
definitions = sa.Table("definitions", metadata, *_keys("vm"), *_required(sa.Text, "xml"), *_required(MOMENT, "at"))

scopes = sa.Table(
    "scopes",
    metadata,
    *_keys("key"),
    *_required(NAME, "kind", "tag", "listening"),
    *_required(sa.BigInteger, "incarnation"),
    *_required(sa.Boolean, "auto_approve_restart"),
    *_required(sa.Boolean, "auto_approve_redeploy", default=sa.false()),
    *_required(sa.BigInteger, "shutdown_timeout", default="60000000"),
    *_optional(sa.BigInteger, "terminate_notice", "max_user_operations", "min_available"),
    *_optional(NAME, "max_unavailable"),
    *_optional(sa.Text, "windows"),
    *_optional(MOMENT, "last_heard"),
)

# When a key was last removed, and the time before: history that a successor is not shown ends there.
former_scopes = sa.Table(
    "former_scopes", metadata, *_keys("key"), *_required(MOMENT, "ended_at"), *_optional(MOMENT, "ended_before")
)

vms = sa.Table(
    "vms",
    metadata,
    *_keys("name"),
    *_required(NAME, "vm_id", "host", "scope"),
    *_required(sa.Integer, "update_domain", "fault_domain"),
    *_required(sa.Boolean, "spot"),
    *_optional(sa.Text, "addresses", "facts"),
    *_optional(sa.Double, "size"),
    _index("vms_scope", "scope", "name"),
    _index("vms_host", "host", "size"),
)

# Says again what `vms.addresses` says, so that an address is unique and found; VMs are read without a join.
vm_addresses = sa.Table(
    "vm_addresses", metadata, *_keys("address"), *_required(NAME, "vm"), _index("vm_addresses_vm", "vm")
)

ENDED_WHEN_OVER = "(ended_at IS NULL) = (status IN ({}))"
"""So that `ended_at IS NULL` means live, in queries and partial indexes alike."""

operations = sa.Table(
    "operations",
    metadata,
    *_keys("id"),
    *_required(NAME, "kind", "host", "status", "author"),
    *_required(sa.Text, "vms", "reason"),
    *_required(MOMENT, "created_at", "not_before"),
    *_optional(MOMENT, "started_at", "ended_at", "due_at", "claimed_until"),
    *_required(sa.Boolean, "held"),
    *_optional(sa.Text, "targets", "done", "failures"),
    *_required(sa.Integer, "attempt"),
    *_optional(NAME, "claimed_by", "rollout"),
    *_required(sa.BigInteger, "clock_jumped", "notice", default="0"),
    *_optional(sa.Integer, "duration"),
    *_optional(sa.Text, "waiting"),
    sa.CheckConstraint(ENDED_WHEN_OVER.format("'Planned', 'Scheduled', 'Started'"), name="operations_ended_when_over"),
    _index("operations_host", "host", "ended_at"),
    _index("operations_created", "created_at", "id"),
    _index("operations_live_created", "created_at", "id", where=_LIVE),
    _partial_index("operations_rollout", "rollout"),
    _index("operations_due", "due_at", where=_LIVE),
    _partial_index("operations_claimed", "claimed_by"),
)

# Which VMs an operation has named, and which event told each: a VM's history is found by this.
vm_operations = sa.Table(
    "vm_operations",
    metadata,
    *_keys("vm", "operation"),
    *_optional(NAME, "event"),
    _index("vm_operations_operation", "operation"),
    sqlite_with_rowid=False,
)

events = sa.Table(
    "events",
    metadata,
    *_keys("id"),
    *_required(NAME, "operation", "scope", "type", "source", "status"),
    *_required(sa.Text, "resources", "description"),
    *_required(sa.Integer, "update_domain"),
    *_required(sa.BigInteger, "duration"),
    *_required(MOMENT, "created_at", "not_before"),
    *_optional(MOMENT, "approved_at", "ended_at"),
    *_optional(NAME, "approved_by"),
    *_required(sa.Boolean, "implied"),
    sa.CheckConstraint(ENDED_WHEN_OVER.format("'Scheduled', 'Started'"), name="events_ended_when_over"),
    _index("events_operation", "operation"),
    _index("events_scope", "scope", "ended_at"),
    _index("events_created", "created_at", "id"),
    _index("events_live", "type", "status", where=_LIVE),
    _index("events_live_created", "created_at", "id", where=_LIVE),
    _partial_index("events_ended", "ended_at", "id"),
)

# Positions are given by the one writer, not by a sequence: they have no gaps and follow the order of commits.
journal = sa.Table(
    "journal",
    metadata,
    *_keys("position", type_=sa.BigInteger().with_variant(sa.Integer, "sqlite")),
    *_required(MOMENT, "at"),
    *_required(NAME, "action", "author"),
    *_optional(NAME, "scope", "event", "operation", "host", "vm", "rollout"),
    *_optional(sa.Text, "data"),
    *_required(NAME, "origin", default=""),
    *_required(sa.Text, "reason", default=""),
    _partial_index("journal_scope", "scope", "position"),
    _partial_index("journal_host", "host", "position"),
    _partial_index("journal_vm", "vm", "position"),
    _partial_index("journal_rollout", "rollout", "position"),
    _partial_index("journal_operation", "operation", "event", "position", "vm"),
    _index("journal_author", "author", "position", where="author <> 'system'"),
)

rollouts = sa.Table(
    "rollouts",
    metadata,
    *_keys("id"),
    *_required(NAME, "kind", "status", "author"),
    *_required(sa.Text, "hosts", "options", "why", "reason"),
    *_required(sa.Integer, "wave", "failures"),
    *_required(MOMENT, "opens_at", "created_at", "since"),
    *_optional(MOMENT, "opened_at", "ended_at", "due_at"),
    *_optional(sa.Text, "gate_result"),
    _index("rollouts_created", "created_at", "id"),
    _partial_index("rollouts_due", "due_at"),
)

# The hosts of a rollout, each in its wave.
stops = sa.Table(
    "stops",
    metadata,
    *_keys("rollout", "host"),
    *_required(sa.Integer, "wave"),
    *_required(NAME, "status"),
    *_optional(NAME, "operation"),
    *_required(sa.Text, "why"),
    *_required(sa.Text, "update_domains", default=""),
    _index("stops_wave", "rollout", "status", "wave", "host"),
)

subscriptions = sa.Table(
    "subscriptions",
    metadata,
    *_keys("id"),
    sa.Column("name", NAME, nullable=False, unique=True),
    *_required(sa.Text, "url", "secret", "types", "groups", "statuses", "why"),
    *_required(NAME, "status", "author"),
    *_required(sa.BigInteger, "position"),
    *_required(MOMENT, "created_at"),
    *_optional(NAME, "claimed_by"),
    *_optional(MOMENT, "claimed_until"),
)

# Deliveries that are pending. Those of one lane, which is an event's, are sent in order of position.
deliveries = sa.Table(
    "deliveries",
    metadata,
    *_keys("subscription"),
    *_keys("position", type_=sa.BigInteger),
    *_required(NAME, "lane"),
    *_required(sa.Integer, "attempt"),
    *_optional(MOMENT, "tried_since"),
    *_required(MOMENT, "due_at"),
    *_required(sa.Text, "error"),
    _index("deliveries_lane", "subscription", "lane", "position"),
    _index("deliveries_due", "subscription", "due_at"),
)

# Results that drivers sent by callback, until tick has taken them.
driver_answers = sa.Table(
    "driver_answers",
    metadata,
    *_keys("operation"),
    *_keys("attempt", type_=sa.Integer),
    *_required(sa.Text, "outcome"),
    *_required(MOMENT, "at"),
)

tokens = sa.Table(
    "tokens",
    metadata,
    *_keys("id"),
    *_required(NAME, "name", "role"),
    sa.Column("digest", NAME, nullable=False, unique=True),
    *_required(MOMENT, "created_at"),
    *_optional(MOMENT, "last_used_at", "revoked_at", "expires_at", "previous_until", "renewed_at"),
    *_optional(sa.Text, "selector", "networks"),
    *_optional(NAME, "previous_digest"),
    _partial_index("tokens_previous", "previous_digest"),
)

sessions = sa.Table(
    "sessions",
    metadata,
    *_keys("digest"),
    *_required(NAME, "token"),
    *_required(MOMENT, "created_at", "expires_at"),
    _index("sessions_token", "token"),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    *_keys("token", "key"),
    *_required(NAME, "digest"),
    *_required(sa.Integer, "status"),
    *_required(sa.LargeBinary, "result"),
    *_required(MOMENT, "at"),
)

# Of several processes, which one alone does something.
leases = sa.Table(
    "leases",
    metadata,
    *_keys("name"),
    *_required(NAME, "holder"),
    *_required(MOMENT, "until"),
    *_optional(sa.BigInteger, "position"),
)

meta = sa.Table("meta", metadata, *_keys("key"), *_required(sa.Text, "value"))
