"""Operations that are Planned, of which guests are told later, and how much notice they give."""

from alembic import op
from sqlalchemy import BigInteger, Column, text

revision = "0007"
down_revision = "0006"

NAME = "operations_ended_when_over"
ENDED_WHEN_OVER = "(ended_at IS NULL) = (status IN ('Planned', 'Scheduled', 'Started'))"


def upgrade() -> None:
    op.add_column("operations", Column("notice", BigInteger, nullable=False, server_default="0"))
    if op.get_bind().dialect.name == "sqlite":
        # SQLite cannot change a constraint: the table is copied, without the old one.
        with op.batch_alter_table("operations", recreate="always") as batch:
            batch.create_check_constraint(NAME, ENDED_WHEN_OVER)
        # Of two indexes that seem alike to it, SQLite takes the younger one: for claims that is to be their own.
        op.drop_index("operations_claimed", "operations")
        op.create_index("operations_claimed", "operations", ["claimed_by"], sqlite_where=text("claimed_by IS NOT NULL"))
    else:
        op.drop_constraint(NAME, "operations", type_="check")
        op.create_check_constraint(NAME, "operations", ENDED_WHEN_OVER)
