"""For the portal: who is signed in, and which events ended last."""

from alembic import op
from sqlalchemy import BigInteger, Column, Text, text

revision = "0003"
down_revision = "0002"

NAME = Text().with_variant(Text(collation="C"), "postgresql")
MOMENT = BigInteger


def upgrade() -> None:
    op.create_table(
        "sessions",
        Column("digest", NAME, primary_key=True),
        Column("token", NAME, nullable=False),
        Column("created_at", MOMENT, nullable=False),
        Column("expires_at", MOMENT, nullable=False),
    )
    op.create_index("sessions_token", "sessions", ["token"])
    over = text("ended_at IS NOT NULL")
    op.create_index("events_ended", "events", ["ended_at", "id"], sqlite_where=over, postgresql_where=over)
