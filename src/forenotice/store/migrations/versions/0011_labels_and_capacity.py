"""Hosts: labels, and how much fits on them; VMs: how much of a host they take."""

from alembic import op
from sqlalchemy import Column, Double, Text

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.add_column("hosts", Column("labels", Text))
    op.add_column("hosts", Column("capacity", Double))
    op.add_column("vms", Column("size", Double))
