"""Automatic approval of restarts and of redeploys apart; what approved both goes on to do so."""

from alembic import op
from sqlalchemy import Boolean, Column, false

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("ALTER TABLE scopes RENAME COLUMN auto_approve TO auto_approve_restart")
    op.add_column("scopes", Column("auto_approve_redeploy", Boolean, nullable=False, server_default=false()))
    op.execute("UPDATE scopes SET auto_approve_redeploy = auto_approve_restart")
