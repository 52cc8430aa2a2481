"""Leases by name, each with how far its holder has got."""

import sqlalchemy as sa
from alembic import op

from forenotice.store.schema import NAME

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("name", NAME, primary_key=True),
        sa.Column("holder", NAME, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False),
        sa.Column("position", sa.BigInteger),
    )
    op.execute("DELETE FROM meta WHERE key = 'inventory_lease'")
