"""Hosts are watched: how they differ from the fleet, and their VMs' definitions."""

import sqlalchemy as sa
from alembic import op

from forenotice.store.schema import NAME

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column("hosts", sa.Column("inventory", sa.Text))
    op.create_table(
        "drift",
        sa.Column("host", NAME, primary_key=True),
        sa.Column("name", NAME, primary_key=True),
        sa.Column("kind", NAME, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
    )
    op.create_index("drift_name", "drift", ["name"])
    op.create_table(
        "definitions",
        sa.Column("vm", NAME, primary_key=True),
        sa.Column("xml", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
    )
