"""Which states of the schema there are, known without Alembic, whose import is slow."""

from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).parent / "migrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revisions:
    names: tuple[str, ...]
    """Oldest first."""
    locations: tuple[Path, ...] = (_HERE / "versions",)
    """Folders with the migrations."""
    environment: Path = _HERE

    @property
    def newest(self) -> str:
        return self.names[-1]


OURS = Revisions(
    names=(
        "0001",
        "0002",
        "0003",
        "0004",
        "0005",
        "0006",
        "0007",
        "0008",
        "0009",
        "0010",
        "0011",
        "0012",
        "0013",
        "0014",
        "0015",
    )
)
