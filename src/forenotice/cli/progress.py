"""How far long work has come: a bar on standard error, on a terminal only."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forenotice.cli.output import plain

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Where there is no terminal, it draws nothing; what it says is said anyway."""

    def __init__(self, drawn: "Progress | None", task: "TaskID | None") -> None:
        self._drawn, self._task = drawn, task

    def doing(self, what: str, *, total: float | None = None) -> None:
        """What is done from now on; without a total the bar only shows that something is."""
        if self._drawn is not None and self._task is not None:
            # One that has a total cannot lose it.
            self._drawn.remove_task(self._task)
            self._task = self._drawn.add_task(plain(what), total=total)

    def done(self, so_far: float, total: float | None = None) -> None:
        if self._drawn is not None and self._task is not None:
            self._drawn.update(self._task, completed=so_far, total=total)

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._drawn is None:
            sys.stderr.write(plain(line) + "\n")
            sys.stderr.flush()
        else:
            self._drawn.console.print(plain(line), soft_wrap=True)


@contextmanager
def bar(what: str, *, total: float | None = None) -> Iterator[Bar]:
    """It is gone when the work is."""
    if not sys.stderr.isatty():
        yield Bar(None, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as drawn:
        yield Bar(drawn, drawn.add_task(plain(what), total=total))
