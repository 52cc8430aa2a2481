"""Which update domains the hosts of a rollout have, for its progress."""

from alembic import op
from sqlalchemy import Column, Text

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("stops", Column("update_domains", Text, nullable=False, server_default=""))
