"""Where migrations begin. A new database is made from `schema`, at the newest revision."""

revision = "0014"
down_revision = None


def upgrade() -> None: ...
