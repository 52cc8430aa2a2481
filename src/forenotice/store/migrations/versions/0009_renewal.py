"""Tokens: when their lifetime began anew, so that a rotation gives them the same again."""

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0009"
down_revision = "0008"

MOMENT = BigInteger


def upgrade() -> None:
    op.add_column("tokens", Column("renewed_at", MOMENT))
