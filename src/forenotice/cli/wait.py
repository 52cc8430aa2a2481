"""`--wait`: until what was asked for has ended, with the reason for the wait whenever that changes."""

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from forenotice import views
from forenotice.cli import times
from forenotice.cli.commands import Read, option, switch
from forenotice.cli.output import Bar, progress
from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.operations import by_reason

if TYPE_CHECKING:
    from forenotice.cli.api import Api

    View = views.maintenance.Operation | views.rollouts.ListedRollout

EVERY = 1.0
"""Seconds between two rounds of requests."""
AT_ONCE = 10
"""How many are requested in a round; the others follow in the next."""
FLEETING = frozenset({"calls_waiting", "calls_under_way"})
NUMBER = re.compile(r"\d+")
INTERRUPTED = 130
"""What shells give for Ctrl-C."""
LIMIT = option(
    "--wait-limit",
    "TIME",
    "Wait at most this long, such as 30m; without it there is no limit.",
    type=Read(times.minutes),
)
OPTIONS = (switch("--wait", "Wait until it has ended, and tell why it waits."), LIMIT)


class UnfinishedError(errors.ForenoticeError):
    """What was asked for has not ended well."""

    code = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """One operation or rollout as it is now."""

    view: "View"
    what: str
    """Such as `Reboot of web-0`."""
    status: str
    why: str = ""
    """What it waits for, or why it did not end well."""
    gist: object = None
    """What `why` comes down to: it is told again when this differs. None: whenever the words do."""
    over: bool
    good: bool = True
    """Whether it has ended well, once it is over."""
    done: int = 0
    """Of `total`, where it has parts."""
    total: int = 1


class Awaited:
    def __init__(self, view: "View", look: Callable[[], State]) -> None:
        """`view` is its state when it was asked for."""
        self.view = view
        self.state: State | None = None
        self._look = look
        self._told: tuple[str, object] = ("", "")

    def look(self, bar: Bar) -> bool:
        """Whether it is over."""
        state = self.state = self._look()
        self.view = state.view
        gist = state.why if state.gist is None else state.gist
        if self._told != (state.status, gist) and not state.over:
            bar.say(f"{state.what} is {state.status}. {state.why}".rstrip())
        self._told = (state.status, gist)
        return state.over

    @property
    def part(self) -> float:
        if self.state is None:
            return 0
        return 1 if self.state.over else self.state.done / max(1, self.state.total)


def limit(wait: bool, wait_limit: float | None) -> float | None:
    """The seconds that the two options allow; None: do not wait."""
    if wait_limit is not None:
        return wait_limit * 60
    return math.inf if wait else None


def until_over(
    awaited: Sequence[Awaited], seconds: float, last: Callable[[Sequence[Any]], None] = lambda _: None
) -> list[State]:
    """Each as it ended. Neither the limit nor Ctrl-C undoes anything.

    However the wait ends, `last` gets the views as they were last seen.
    """
    try:
        with progress("waiting", total=len(awaited)) as bar:
            try:
                _watch(awaited, bar, seconds)
            except KeyboardInterrupt:
                bar.say("No longer waiting; the maintenance continues. `forenotice watch` shows it.")
                raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        last([each.view for each in awaited])
    return [each.state for each in awaited if each.state is not None]


def require_success(found: Sequence[State]) -> None:
    if bad := [state for state in found if not state.good]:
        raise UnfinishedError(
            "; ".join(f"{state.what} is {state.status}{f': {state.why}' if state.why else ''}" for state in bad)
        )


def _watch(awaited: Sequence[Awaited], bar: Bar, seconds: float) -> None:
    started, pause = time.monotonic(), threading.Event()
    left = deque(awaited)
    lost = False
    while left:
        try:
            for _ in range(min(AT_ONCE, len(left))):
                # It stays in the queue also when the service cannot be reached.
                left.rotate(-1)
                if left[-1].look(bar):
                    left.pop()
                lost = False
        except errors.UnavailableError as error:
            if not lost:
                stop = "" if error.message.endswith("?") else "."
                bar.say(f"{times.utc(SystemClock().now())}: {error.message}{stop} Trying again.")
            lost = True
        bar.done(sum(each.part for each in awaited), len(awaited))
        if not left:
            return
        spent = time.monotonic() - started
        if spent >= seconds:
            raise UnfinishedError(_still(left[0].state, len(left)))
        pause.wait(min(EVERY, seconds - spent))


def _still(state: State | None, count: int) -> str:
    others = f", and {count - 1} more" if count > 1 else ""
    what = "" if state is None else f": {state.what}{others} is still {state.status}. {state.why}".rstrip()
    return f"the time of --wait-limit is over, but the maintenance continues{what}"


def operation(api: "Api", view: "views.maintenance.Operation") -> Awaited:
    def look() -> State:
        found = api.get(views.maintenance.Operation, "operations", view.id)
        of_host = found.kind.traits.of_host
        over = found.ended_at is not None
        good = not over or found.status == "Completed"
        why, gist = ("" if good else _why_ended(api, found), None) if over else reason(api, "operations", found.id)
        return State(
            view=found,
            what=f"{found.kind.capitalize()} of {found.host if of_host else ', '.join(view.vms)}",
            status=found.status,
            why=why,
            gist=gist,
            over=over,
            good=good,
        )

    return Awaited(view, look)


def reason(api: "Api", *path: str) -> tuple[str, object]:
    """Why something waits, and the gist of that."""
    explanation = api.get(views.maintenance.Explanation, *path, "explanation")
    return str(explanation.sentence), _gist(explanation.waiting_for) or None


def _gist(facts: Any) -> Any:
    """Without what differs at every look: how many calls wait for the driver, and numbers in a gate's status."""
    match facts:
        case dict():
            kept = {name: _gist(value) for name, value in facts.items() if name not in FLEETING}
            if kept.get("kind") == "gate":
                kept["status"] = NUMBER.sub("", str(facts.get("status")))
            return kept
        case list():
            return [_gist(each) for each in facts]
    return facts


def _why_ended(api: "Api", operation: "views.maintenance.Operation") -> str:
    if operation.failures:
        return "; ".join(outcomes(operation.failures))
    page = api.get(
        views.base.Page[views.history.Entry],
        "history",
        operation=operation.id,
        action="operation.",
        newest_first=True,
        limit=1,
    )
    return next((f"by {entry.by}" for entry in page.items if entry.by), "")


def outcomes(results: Mapping[str, str]) -> list[str]:
    """What became of VMs; those that share a reason together."""
    return [f"{', '.join(vms)}: {why}" for why, vms in by_reason(results).items()]
