"""The table of what was measured, for people and for the repository."""

import platform
import sqlite3
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench import machine, servers

RESULTS = Path(__file__).with_name("RESULTS.md")
HEADINGS = ("", "measured", "reference", "ratio", "wanted", "met")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    measured: str
    reference: str = ""
    ratio: float | None = None
    wanted: str = ""
    met: bool | None = None
    """None: only shown."""

    @property
    def cells(self) -> tuple[str, ...]:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        met = "" if self.met is None else "yes" if self.met else "**no**"
        return (self.what, self.measured, self.reference, ratio, self.wanted, met)


def at_least(what: str, measured: float, reference: float, factor: float, show: str) -> Row:
    """A rate that should be so many times another; `show` is how both are written."""
    return Row(
        what=what,
        measured=show.format(measured),
        reference=show.format(reference),
        ratio=measured / reference,
        wanted=f"≥ {factor:g} ×",
        met=measured >= factor * reference,
    )


def at_most(what: str, measured: float, reference: float, factor: float, show: str) -> Row:
    """A cost that should be no more than so many times another."""
    return Row(
        what=what,
        measured=show.format(measured),
        reference=show.format(reference),
        ratio=measured / reference,
        wanted=f"≤ {factor:g} ×",
        met=measured <= factor * reference,
    )


def within(what: str, measured: float, limit: float, show: str, reference: str = "") -> Row:
    """A cost that should not exceed a limit of its own."""
    return Row(
        what=what,
        measured=show.format(measured),
        reference=reference,
        wanted=f"≤ {show.format(limit)}",
        met=measured <= limit,
    )


def table(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    shown = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown)


def page(rows: Sequence[Row]) -> str:
    now = datetime.now(UTC)
    return f"""# How quick it is

Measured by `make bench` on {now:%Y-%m-%d}: {machine.describe()}.
{_versions()}.
How each number comes about, and what stands behind it, is in [docs/dev/performance.md](../docs/dev/performance.md).

{table(rows)}
"""


def _versions() -> str:
    names = {
        "Python": platform.python_version(),
        "uvloop": version("uvloop"),
        "httptools": version("httptools"),
        "SQLite": sqlite3.sqlite_version,
        "nginx": _said("nginx", "-v").rpartition("/")[2],
        "wrk": _said("wrk", "-v").removeprefix("wrk ").partition(" [")[0],
    }
    return ", ".join(f"{name} {number}" for name, number in names.items())


def _said(name: str, flag: str) -> str:
    said = subprocess.run([servers.program(name), flag], capture_output=True, text=True, timeout=10, check=False)
    return (said.stdout + said.stderr).splitlines()[0].strip()
