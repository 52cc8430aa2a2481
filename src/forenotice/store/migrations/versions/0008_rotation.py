"""Tokens: where they may come from, and the secret before a rotation."""

from alembic import op
from sqlalchemy import BigInteger, Column, Text, text

revision = "0008"
down_revision = "0007"

NAME = Text().with_variant(Text(collation="C"), "postgresql")
MOMENT = BigInteger


def upgrade() -> None:
    op.add_column("tokens", Column("networks", Text))
    op.add_column("tokens", Column("previous_digest", NAME))
    op.add_column("tokens", Column("previous_until", MOMENT))
    there = text("previous_digest IS NOT NULL")
    op.create_index("tokens_previous", "tokens", ["previous_digest"], sqlite_where=there, postgresql_where=there)
