"""How far the clock has jumped ahead since an operation was announced."""

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("operations", Column("clock_jumped", BigInteger, nullable=False, server_default="0"))
