"""Hosts have edges; and leases have names, each with how far its holder has got."""

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
    op.create_table(
        "edges",
        sa.Column("host", NAME, primary_key=True),
        sa.Column("since", sa.BigInteger, nullable=False),
        sa.Column("lost_since", sa.BigInteger),
    )
    lost = sa.text("lost_since IS NOT NULL")
    op.create_index("edges_lost", "edges", ["lost_since"], sqlite_where=lost, postgresql_where=lost)
