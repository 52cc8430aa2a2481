"""VMs by host: with their sizes, so that what is used of capacities is added up from the index alone."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.drop_index("vms_host", table_name="vms")
    op.create_index("vms_host", "vms", ["host", "size"])
