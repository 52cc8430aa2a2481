"""A host has an address for drivers."""

from alembic import op
from sqlalchemy import Column, Text

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.add_column("hosts", Column("address", Text))
