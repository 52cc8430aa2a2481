"""When scopes were removed, as far as the journal tells: a successor of the same name is not shown what was theirs."""

from alembic import op
from sqlalchemy import BigInteger, Column, Text, text

revision = "0005"
down_revision = "0004"

NAME = Text().with_variant(Text(collation="C"), "postgresql")
MOMENT = BigInteger


def upgrade() -> None:
    op.create_table(
        "former_scopes",
        Column("key", NAME, primary_key=True),
        Column("ended_at", MOMENT, nullable=False),
        Column("ended_before", MOMENT),
    )
    key = "CASE action WHEN 'vm.removed' THEN 'vm:' || vm ELSE scope END"
    op.execute(
        text(
            f"INSERT INTO former_scopes (key, ended_at) SELECT {key}, max(at) FROM journal "  # noqa: S608
            f"WHERE action IN ('vm.removed', 'group.removed') GROUP BY {key}"
        )
    )
