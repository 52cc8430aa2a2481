"""What drivers of real machines need: time to shut down, the length of a freeze, and why a driver waits."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column("scopes", sa.Column("shutdown_timeout", sa.BigInteger, nullable=False, server_default="60000000"))
    op.add_column("operations", sa.Column("duration", sa.Integer))
    op.add_column("operations", sa.Column("waiting", sa.Text))
