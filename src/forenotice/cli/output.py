"""What a command shows: tables and colour for people, JSON for machines."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forenotice.cli import times
from forenotice.clock import SystemClock

WIDTH = 1000
"""Nothing is cut or wrapped here."""

STYLES: Mapping[str, str] = {
    "Scheduled": "yellow",
    "Started": "bold magenta",
    "Completed": "green",
    "Canceled": "dim",
    "Failed": "bold red",
    "cordoned": "yellow",
}


class Output:
    def __init__(self, *, json: bool, now: datetime | None = None) -> None:
        self.json = json
        self.now = now or SystemClock().now()
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=WIDTH)

    def data(self, value: object) -> None:
        """What machines read; the whole answer."""
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def line(self, *parts: str, style: str = "") -> None:
        self._console.print(Text(plain(" ".join(parts)), style=style))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, none: str) -> None:
        """A line for each row, however long: a terminal wraps it better than a narrow column would."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*map(cell, row))
        if not table.row_count:
            self.line(none)
            return
        with self._console.capture() as drawn:
            self._console.print(table, soft_wrap=False)
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in drawn.get().splitlines())

    def facts(self, facts: Mapping[str, object]) -> None:
        """One thing, a line for each of its facts that has a value."""
        shown = {name: value for name, value in facts.items() if cell(value).plain}
        width = max(map(len, shown), default=0)
        for name, value in shown.items():
            self._console.print(Text(f"{name:<{width}}  ", style="bold") + cell(value))

    def moment(self, text: str | None) -> str:
        return times.told(text, self.now)


def cell(value: object) -> Text:
    match value:
        case None | "" | ():
            return Text("")
        case bool():
            return Text("yes" if value else "no")
        case Mapping():
            shown = ((key, cell(item).plain) for key, item in value.items())
            return Text(", ".join(f"{plain(str(key))}={text}" for key, text in shown if text))
        case list() | tuple():
            return Text(", ".join(cell(item).plain for item in value))
    text = plain(str(value))
    return Text(text, style=STYLES.get(text, ""))


def plain(text: str) -> str:
    """Nothing that could steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def warn(answer: Mapping[str, Any]) -> None:
    """What the service did, but would have people know."""
    for warning in answer["warnings"]:
        complain(f"warning: {warning}")


def complain(message: str) -> None:
    """The reason of a failure, in one sentence."""
    sys.stderr.write(f"forenotice: {plain(message)}\n")
