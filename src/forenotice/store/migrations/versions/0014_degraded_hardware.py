"""Degraded hardware that a silent neighbour held up is looked at again: it may start now."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute("UPDATE operations SET due_at = created_at WHERE kind = 'degraded-hardware' AND status = 'Scheduled'")
