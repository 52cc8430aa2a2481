"""What a command shows: tables, colour and times for people, JSON for machines, and the progress of long work."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from forenotice.cli.commands import complain, plain
from forenotice.clock import SystemClock
from forenotice.settings.values import SPAN, Span

if TYPE_CHECKING:
    import msgspec
    from rich.console import Console
    from rich.progress import Progress
    from rich.text import Text

    from forenotice.views import fleet, maintenance

T = TypeVar("T")
TITLES = {"vms": "VMs", "vm_id": "vmId"}
"""Of fields that are not shown by their names."""
NAMED = 3
"""Names that are shown of many."""
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

    @cached_property
    def _console(self) -> "Console":
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, width=WIDTH)

    def data(self, value: object) -> None:
        """What machines read; the whole response."""
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")

    def line(self, *parts: str, style: str = "") -> None:
        from rich.text import Text

        self._console.print(Text(plain(" ".join(parts)), style=style))

    def result(self, value: object, *lines: str) -> None:
        """A response as JSON, or lines that say what it means."""
        if self.json:
            self.data(value)
            return
        for line in lines:
            self.line(line)

    def list(self, items: Iterable[T], columns: Sequence[str], row: Callable[[T], Sequence[object]], none: str) -> None:
        if self.json:
            self.data([*items])
        else:
            self.table(columns, map(row, items), none=none)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, none: str = "") -> None:
        """A line for each row, however long: a terminal wraps it better than a narrow column would."""
        from rich.table import Table

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
        from rich.text import Text

        shown = {name: value for name, value in facts.items() if cell(value).plain}
        width = max(map(len, shown), default=0)
        for name, value in shown.items():
            self._console.print(Text(f"{name:<{width}}  ", style="bold") + cell(value))

    def view(self, view: "msgspec.Struct", **changes: object) -> None:
        """A view as JSON, or a line for each field that has a value; `changes` add, replace or hide (None) some."""
        if self.json:
            self.data(view)
            return
        names = sorted(view.__struct_fields__, key=lambda name: name not in ("id", "name"))
        fields = {name: getattr(view, name) for name in names} | changes
        titles = {name: TITLES.get(name) or name.removesuffix("_at").replace("_", " ") for name in fields}
        self.facts(
            {titles[name]: self.moment(each) if isinstance(each, datetime) else each for name, each in fields.items()}
        )

    def moment(self, moment: datetime | None) -> str:
        return told(moment, self.now)

    def explanation(self, explanation: "maintenance.Explanation", now: Callable[[], datetime] | None = None) -> None:
        """Why something waits; `now` is called where times are not those of this machine's clock."""
        if self.json:
            self.data(explanation)
            return
        self.line(explanation.sentence)
        if explanation.until:
            left = explanation.until - (now() if now else self.now)
            if left > timedelta(0):
                self.line(f"That leaves {span(left)}.")


def cell(value: object) -> "Text":
    from rich.text import Text

    match value:
        case None | "" | ():
            return Text("")
        case bool():
            return Text("yes" if value else "no")
        case float():
            return Text(repr(value).removesuffix(".0"))
        case Mapping():
            shown = ((key, cell(item).plain) for key, item in value.items())
            return Text(", ".join(f"{plain(str(key))}={text}" for key, text in shown if text))
        case list() | tuple():
            return Text(", ".join(cell(item).plain for item in value))
    text = plain(str(value))
    return Text(text, style=STYLES.get(text, ""))


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def cut(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def warn(response: "fleet.AddedVm | fleet.AddedGroup | fleet.Applied") -> None:
    """Warnings of a service that did what was asked."""
    for warning in response.warnings:
        complain(f"warning: {warning}")


class Bar:
    """A progress bar on standard error. Where that is no terminal nothing is drawn, but lines are written."""

    def __init__(self, drawn: "Progress | None" = None) -> None:
        self._drawn = drawn

    def doing(self, what: str, *, total: float | None = None) -> None:
        """Begin the next part of the work; without a total the bar only shows that something is done."""
        if self._drawn is not None:
            # A task that has a total cannot lose it.
            for task in self._drawn.task_ids:
                self._drawn.remove_task(task)
            self._drawn.add_task(plain(what), total=total)

    def done(self, so_far: float) -> None:
        if self._drawn is not None:
            self._drawn.update(self._drawn.task_ids[0], completed=so_far)

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._drawn is None:
            sys.stderr.write(plain(line) + "\n")
            sys.stderr.flush()
        else:
            self._drawn.console.print(plain(line), soft_wrap=True)


@contextmanager
def progress(what: str, *, total: float | None = None) -> Iterator[Bar]:
    """A bar that disappears when the work is done."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as drawn:
        bar = Bar(drawn)
        bar.doing(what, total=total)
        yield bar


UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def span(duration: timedelta) -> str:
    """The two largest units: `14 min 58 s`."""
    rest = round(abs(duration.total_seconds()))
    parts: list[str] = []
    for unit, seconds in UNITS:
        count, rest = divmod(rest, seconds)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part) or "0 s"


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def told(moment: datetime | None, now: datetime) -> str:
    """Relative and exact: `in 14 min 58 s (2026-01-01 12:00:00 UTC)`."""
    return f"{relative(moment, now)} ({utc(moment)})" if moment else ""


def relative(moment: datetime, now: datetime) -> str:
    if abs(moment - now) < timedelta(seconds=1):
        return "now"
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def minutes(text: str) -> float:
    """A duration as one types it: `20`, `20m`, `2h`, `7d`; minutes where no unit is given."""
    return _typed(text, "m", "minutes such as 20, or 90s, 2h, 7d") / 60


def seconds(text: str) -> int:
    """The same in whole seconds: `9`, `9s`, `2m`; seconds where no unit is given."""
    found = _typed(text, "s", "seconds such as 9, or 2m")
    if not found.is_integer():
        raise ValueError(f"{text!r} is not a number of whole seconds: give one such as 9")
    return int(found)


def _typed(text: str, unit: str, such_as: str) -> float:
    """In seconds."""
    typed = f"{text}{unit}" if re.fullmatch(r"\d+(\.\d+)?", text, re.ASCII) else text
    if not SPAN.fullmatch(typed):
        raise ValueError(f"{text!r} is not a duration: give {such_as}")
    return Span.read(typed).total_seconds()


def past(text: str, now: datetime) -> datetime:
    """A moment as one types it, ISO 8601, in UTC where no zone is given; or how long ago it was: `90d`."""
    if re.fullmatch(r"\d+(\.\d+)?\s*[a-z]+", text, re.ASCII):
        return now - Span.read(text)
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: give one such as 2026-01-31T12:00:00Z") from None
