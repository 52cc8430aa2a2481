"""For operators: rollouts, budgets and windows, roles, a history by VM, subscriptions, drivers that answer later."""

import json

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, Text, column, select, table, text

revision = "0002"
down_revision = "0001"

NAME = Text().with_variant(Text(collation="C"), "postgresql")
MOMENT = BigInteger


def upgrade() -> None:
    for added in (Column("max_unavailable", NAME), Column("min_available", BigInteger), Column("windows", Text)):
        op.add_column("scopes", added)
    op.add_column("operations", Column("rollout", NAME))
    _create_partial_index("operations_rollout", "operations", "rollout")
    live = text("ended_at IS NULL")
    for on in ("operations", "events"):
        key = ["created_at", "id"]
        op.create_index(f"{on}_live_created", on, key, sqlite_where=live, postgresql_where=live)
    op.create_table(
        "vm_operations",
        Column("vm", NAME, primary_key=True),
        Column("operation", NAME, primary_key=True),
        Column("event", NAME),
        sqlite_with_rowid=False,
    )
    op.create_index("vm_operations_operation", "vm_operations", ["operation"])
    _fill_vm_operations()
    op.add_column("journal", Column("rollout", NAME))
    op.add_column("journal", Column("origin", NAME, nullable=False, server_default=""))
    op.add_column("journal", Column("reason", Text, nullable=False, server_default=""))
    _index_journal()
    op.add_column("tokens", Column("selector", Text))
    op.add_column("tokens", Column("expires_at", MOMENT))
    _create_rollouts()
    _create_subscriptions()
    op.create_table(
        "driver_answers",
        Column("operation", NAME, primary_key=True),
        Column("attempt", Integer, primary_key=True, autoincrement=False),
        Column("outcome", Text, nullable=False),
        Column("at", MOMENT, nullable=False),
    )


def _index_journal() -> None:
    for name in ("journal_scope", "journal_event"):
        op.drop_index(name, "journal")
    for indexed in ("scope", "host", "vm", "rollout"):
        _create_partial_index(f"journal_{indexed}", "journal", indexed, "position")
    _create_partial_index("journal_operation", "journal", "operation", "event", "position", "vm")
    named = text("author <> 'system'")
    op.create_index("journal_author", "journal", ["author", "position"], sqlite_where=named, postgresql_where=named)


def _create_rollouts() -> None:
    op.create_table(
        "rollouts",
        Column("id", NAME, primary_key=True),
        Column("kind", NAME, nullable=False),
        Column("hosts", Text, nullable=False),
        Column("options", Text, nullable=False),
        Column("status", NAME, nullable=False),
        Column("turn", Integer, nullable=False),
        Column("failures", Integer, nullable=False),
        Column("why", Text, nullable=False),
        Column("opens_at", MOMENT, nullable=False),
        Column("opened_at", MOMENT),
        Column("verdict", Text),
        Column("created_at", MOMENT, nullable=False),
        Column("ended_at", MOMENT),
        Column("due_at", MOMENT),
        Column("author", NAME, nullable=False),
        Column("reason", Text, nullable=False),
        Column("since", MOMENT, nullable=False),
    )
    op.create_index("rollouts_created", "rollouts", ["created_at", "id"])
    _create_partial_index("rollouts_due", "rollouts", "due_at")
    op.create_table(
        "stops",
        Column("rollout", NAME, primary_key=True),
        Column("host", NAME, primary_key=True),
        Column("turn", Integer, nullable=False),
        Column("status", NAME, nullable=False),
        Column("operation", NAME),
        Column("why", Text, nullable=False),
    )
    op.create_index("stops_turn", "stops", ["rollout", "status", "turn", "host"])


def _create_subscriptions() -> None:
    op.create_table(
        "subscriptions",
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
    op.create_table(
        "deliveries",
        Column("subscription", NAME, primary_key=True),
        Column("position", BigInteger, primary_key=True, autoincrement=False),
        Column("lane", NAME, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("tried_since", MOMENT),
        Column("due_at", MOMENT, nullable=False),
        Column("error", Text, nullable=False),
    )
    op.create_index("deliveries_lane", "deliveries", ["subscription", "lane", "position"])
    op.create_index("deliveries_due", "deliveries", ["subscription", "due_at"])


def _fill_vm_operations() -> None:
    """From what is there already: whom operations and their events name."""
    operations = table("operations", column("id"), column("vms"))
    events = table("events", column("id"), column("operation"), column("resources"))
    connection = op.get_bind()
    told: dict[tuple[str, str], str | None] = {}
    for operation, vms in connection.execute(select(operations)):
        told.update(dict.fromkeys(((vm, operation) for vm in json.loads(vms)), None))
    for event, operation, resources in connection.execute(select(events)):
        told.update(dict.fromkeys(((vm, operation) for vm in json.loads(resources)), event))
    rows = [{"vm": vm, "operation": operation, "event": event} for (vm, operation), event in told.items()]
    op.bulk_insert(table("vm_operations", column("vm"), column("operation"), column("event")), rows)


def _create_partial_index(name: str, on: str, indexed: str, *more: str) -> None:
    there = text(f"{indexed} IS NOT NULL")
    op.create_index(name, on, [indexed, *more], sqlite_where=there, postgresql_where=there)
