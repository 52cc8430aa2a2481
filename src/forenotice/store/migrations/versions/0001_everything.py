"""Everything: the fleet, operations and events, the journal, tokens, answers to repeat, single values."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Integer, LargeBinary, Text, text

revision = "0001"
down_revision = None

NAME = Text().with_variant(Text(collation="C"), "postgresql")
MOMENT = BigInteger

_ENDED_WHEN_OVER = "(ended_at IS NULL) = (status IN ('Scheduled', 'Started'))"


def upgrade() -> None:
    op.create_table(
        "hosts",
        Column("name", NAME, primary_key=True),
        Column("cordoned", Boolean, nullable=False),
    )
    op.create_table(
        "scopes",
        Column("key", NAME, primary_key=True),
        Column("kind", NAME, nullable=False),
        Column("tag", NAME, nullable=False),
        Column("incarnation", BigInteger, nullable=False),
        Column("listening", NAME, nullable=False),
        Column("auto_approve", Boolean, nullable=False),
        Column("terminate_notice", BigInteger),
        Column("max_user_operations", BigInteger),
        Column("last_heard", MOMENT),
    )
    op.create_table(
        "vms",
        Column("name", NAME, primary_key=True),
        Column("vm_id", NAME, nullable=False),
        Column("host", NAME, nullable=False),
        Column("scope", NAME, nullable=False),
        Column("update_domain", Integer, nullable=False),
        Column("fault_domain", Integer, nullable=False),
        Column("spot", Boolean, nullable=False),
        Column("addresses", Text),
        Column("facts", Text),
    )
    op.create_index("vms_host", "vms", ["host"])
    op.create_index("vms_scope", "vms", ["scope", "name"])
    op.create_table(
        "vm_addresses",
        Column("address", NAME, primary_key=True),
        Column("vm", NAME, nullable=False),
    )
    op.create_index("vm_addresses_vm", "vm_addresses", ["vm"])
    op.create_table(
        "operations",
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
        CheckConstraint(_ENDED_WHEN_OVER, name="operations_ended_when_over"),
    )
    op.create_index("operations_host", "operations", ["host", "ended_at"])
    op.create_index("operations_created", "operations", ["created_at", "id"])
    _create_partial_index("operations_due", "operations", ["due_at"], "ended_at IS NULL")
    _create_partial_index("operations_claimed", "operations", ["claimed_by"], "claimed_by IS NOT NULL")
    op.create_table(
        "events",
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
        CheckConstraint(_ENDED_WHEN_OVER, name="events_ended_when_over"),
    )
    op.create_index("events_operation", "events", ["operation"])
    op.create_index("events_scope", "events", ["scope", "ended_at"])
    op.create_index("events_created", "events", ["created_at", "id"])
    _create_partial_index("events_live", "events", ["type", "status"], "ended_at IS NULL")
    op.create_table(
        "journal",
        Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
        Column("at", MOMENT, nullable=False),
        Column("action", NAME, nullable=False),
        Column("author", NAME, nullable=False),
        Column("scope", NAME),
        Column("event", NAME),
        Column("operation", NAME),
        Column("host", NAME),
        Column("vm", NAME),
        Column("data", Text),
    )
    _create_partial_index("journal_scope", "journal", ["scope"], "scope IS NOT NULL")
    _create_partial_index("journal_event", "journal", ["event"], "event IS NOT NULL")
    op.create_table(
        "tokens",
        Column("id", NAME, primary_key=True),
        Column("name", NAME, nullable=False),
        Column("role", NAME, nullable=False),
        Column("digest", NAME, nullable=False, unique=True),
        Column("created_at", MOMENT, nullable=False),
        Column("last_used_at", MOMENT),
        Column("revoked_at", MOMENT),
    )
    op.create_table(
        "idempotency",
        Column("token", NAME, primary_key=True),
        Column("key", NAME, primary_key=True),
        Column("digest", NAME, nullable=False),
        Column("status", Integer, nullable=False),
        Column("result", LargeBinary, nullable=False),
        Column("at", MOMENT, nullable=False),
    )
    op.create_table(
        "meta",
        Column("key", NAME, primary_key=True),
        Column("value", Text, nullable=False),
    )


def _create_partial_index(name: str, table: str, columns: list[str], condition: str) -> None:
    op.create_index(name, table, columns, sqlite_where=text(condition), postgresql_where=text(condition))
