"""`--wait`: until what was asked for has ended, with a word on why it waits whenever that changes."""

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from forenotice.cli import narrating, progress, times
from forenotice.cli.api import Api, View
from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.operations import Kind

EVERY = 1.0
"""Seconds between two rounds of questions."""
AT_ONCE = 10
"""How many are asked about in a round; the others have their turn in the next."""
FLEETING = frozenset({"calls_waiting", "calls_under_way"})
NUMBER = re.compile(r"\d+")
INTERRUPTED = 130
"""What shells give for Ctrl-C."""

Wait = Annotated[bool, typer.Option("--wait", help="Wait until it has ended, and say why it waits.")]
Limit = Annotated[
    str | None,
    typer.Option("--wait-limit", metavar="TIME", help="Wait at most this long, such as 30m; else there is no limit."),
]


class UnfinishedError(errors.ForenoticeError):
    """What was asked for has not come to a good end."""

    code = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One thing that is waited for, as it is now."""

    view: View
    what: str
    """Such as `Reboot of web-0`."""
    status: str
    why: str = ""
    """What it waits for, or why it did not come to a good end."""
    gist: object = None
    """What that comes down to: it is told again when this differs. None: whenever the words do."""
    over: bool
    good: bool = True
    """Once it is over: it did."""
    done: int = 0
    """Of `total`, where it has parts."""
    total: int = 1


@dataclass(frozen=True, slots=True)
class Awaited:
    view: View
    """As it was when it was asked for."""
    look: Callable[[], Seen]


@dataclass(frozen=True, slots=True)
class Why:
    said: str
    gist: object = None


@dataclass(frozen=True, slots=True)
class Patience:
    seconds: float = math.inf


def asked(wait: bool, limit: str | None) -> Patience | None:
    """What the two options say; None: not to wait. To be asked before anything is done, as a limit may be no time."""
    return patience(limit) if wait or limit is not None else None


def patience(limit: str | None) -> Patience:
    return Patience() if limit is None else Patience(times.minutes(limit) * 60)


def until_over(
    awaited: Sequence[Awaited], patience: Patience, last: Callable[[Sequence[View]], None] = lambda _: None
) -> list[Seen]:
    """Each as it ended. Neither the limit nor Ctrl-C undoes anything.

    However the waiting ends, `last` is given them as they were last seen.
    """
    waited = [_Waited(each) for each in awaited]
    try:
        with progress.bar("waiting", total=len(waited)) as bar:
            try:
                _watch(waited, bar, patience.seconds)
            except KeyboardInterrupt:
                bar.say("No longer waiting; it goes on without this command. `forenotice watch` shows how.")
                raise typer.Exit(INTERRUPTED) from None
    finally:
        last([each.view for each in waited])
    return [each.seen for each in waited if each.seen is not None]


def require_good(found: Sequence[Seen]) -> None:
    if bad := [seen for seen in found if not seen.good]:
        raise UnfinishedError(
            "; ".join(f"{seen.what} is {seen.status}{f': {seen.why}' if seen.why else ''}" for seen in bad)
        )


class _Waited:
    def __init__(self, awaited: Awaited) -> None:
        self._awaited = awaited
        self._said: tuple[str, object] = ("", "")
        self.seen: Seen | None = None

    def look(self, bar: progress.Bar) -> bool:
        """Whether it is over."""
        seen = self.seen = self._awaited.look()
        if self._said != (said := (seen.status, seen.why if seen.gist is None else seen.gist)) and not seen.over:
            bar.say(f"{seen.what} is {seen.status}. {seen.why}".rstrip())
        self._said = said
        return seen.over

    @property
    def view(self) -> View:
        return self._awaited.view if self.seen is None else self.seen.view

    @property
    def part(self) -> float:
        if self.seen is None:
            return 0
        return 1 if self.seen.over else self.seen.done / max(1, self.seen.total)


def _watch(waited: Sequence[_Waited], bar: progress.Bar, seconds: float) -> None:
    started, pause = time.monotonic(), threading.Event()
    left = deque(waited)
    lost = False
    while left:
        try:
            for _ in range(min(AT_ONCE, len(left))):
                each = left.popleft()
                # It stays in line also when nobody answers.
                left.append(each)
                if each.look(bar):
                    left.pop()
                lost = False
        except errors.UnavailableError as error:
            if not lost:
                stop = "" if error.message.endswith("?") else "."
                bar.say(f"{times.utc(SystemClock().now())}: {error.message}{stop} Trying again.")
            lost = True
        bar.done(sum(each.part for each in waited), len(waited))
        if not left:
            return
        spent = time.monotonic() - started
        if spent >= seconds:
            raise UnfinishedError(_still(left[0], len(left)))
        pause.wait(min(EVERY, seconds - spent))


def _still(first: _Waited, count: int) -> str:
    seen, others = first.seen, f", and {count - 1} more" if count > 1 else ""
    what = "" if seen is None else f": {seen.what}{others} is still {seen.status}. {seen.why}".rstrip()
    return f"the time of --wait-limit is over, and it goes on without this command{what}"


def operation(api: Api, view: View) -> Awaited:
    """How an operation is looked at."""

    def look() -> Seen:
        found = api.get("operations", view["id"])
        what = f"{found['kind'].capitalize()} of {found['host'] if is_of_host(found) else ', '.join(view['vms'])}"
        over = bool(found["ended_at"])
        good = not over or found["status"] == "Completed"
        ended = Why("" if good else _why_ended(api, found))
        why = ended if over else why_waits(api, "operations", found["id"])
        return Seen(view=found, what=what, status=found["status"], why=why.said, gist=why.gist, over=over, good=good)

    return Awaited(view, look)


def is_of_host(operation: View) -> bool:
    return Kind(operation["kind"]).traits.of_host


def why_waits(api: Api, *path: str) -> Why:
    explanation = api.get(*path, "explanation")
    return Why(str(explanation["sentence"]), _gist(explanation["waiting_for"]) or None)


def _gist(facts: Any) -> Any:
    """Without what is new at every look: how many calls wait for the driver, and the numbers in what a gate says."""
    match facts:
        case dict():
            kept = {name: _gist(value) for name, value in facts.items() if name not in FLEETING}
            return {**kept, "said": NUMBER.sub("", str(facts["said"]))} if facts.get("said") else kept
        case list():
            return [_gist(each) for each in facts]
    return facts


def _why_ended(api: Api, operation: View) -> str:
    if operation["failures"]:
        return "; ".join(narrating.outcomes(operation["failures"]))
    page = api.get("history", operation=operation["id"], action="operation.", newest_first=True, limit=1)
    return next((f"by {entry['by']}" for entry in page["items"] if entry["by"]), "")
