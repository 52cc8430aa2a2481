"""Rollouts go in waves, and a gate has a result; a result that is not kept is asked for again."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.execute("ALTER TABLE rollouts RENAME COLUMN turn TO wave")
    op.execute("ALTER TABLE rollouts RENAME COLUMN verdict TO gate_result")
    op.execute("UPDATE rollouts SET gate_result = NULL")
    op.drop_index("stops_turn", "stops")
    op.execute("ALTER TABLE stops RENAME COLUMN turn TO wave")
    op.create_index("stops_wave", "stops", ["rollout", "status", "wave", "host"])
    op.execute("UPDATE journal SET action = 'rollout.wave_began' WHERE action = 'rollout.turn_began'")
    op.execute("UPDATE subscriptions SET types = REPLACE(types, 'rollout.turn_began', 'rollout.wave_began')")
