"""`--wait`: until what was asked for has ended, with the reason for the wait whenever that changes."""

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from forenotice import views
from forenotice.cli import output
from forenotice.cli.commands import Operator, Read, option, switch
from forenotice.cli.output import Bar, progress
from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.operations import by_reason

if TYPE_CHECKING:
    from forenotice.cli.api import Api

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
    type=Read(output.minutes),
)
OPTIONS = (switch("--wait", "Wait until it has ended, and tell why it waits."), LIMIT)


class UnfinishedError(errors.ForenoticeError):
    """What was asked for has not ended well."""

    code = "unfinished"


class AwaitedOperation:
    """One operation, as it was seen last."""

    path = "operations"

    def __init__(self, api: "Api", view: Any) -> None:
        self.api, self.view = api, view
        self.what = self.name()
        self.why = ""
        """What it waits for, or why it did not end well."""
        self._reported: object = None

    def name(self) -> str:
        """Such as `Reboot of web-0`."""
        view = self.view
        return f"{view.kind.capitalize()} of {view.host if view.kind.traits.of_host else ', '.join(view.vms)}"

    @property
    def over(self) -> bool:
        return self.view.ended_at is not None

    @property
    def part(self) -> float:
        """How much of it is done, up to 1."""
        return float(self.over)

    def outcome(self) -> str:
        """Why it ended as it did."""
        view = self.view
        if view.status == "Completed":
            return ""
        if view.failures:
            return "; ".join(outcomes(view.failures))
        entries = self.api.items(
            views.history.Entry, "history", operation=view.id, action="operation.", newest_first=True, limit=1
        )
        return next((f"by {entry.by}" for entry in entries if entry.by), "")

    def look(self, bar: Bar) -> bool:
        """Whether it is over; if not, report why, when that has changed."""
        self.view = self._present()
        if self.over:
            self.why = self.outcome()
            return True
        explanation = self.api.get(views.maintenance.Explanation, self.path, self.view.id, "explanation")
        self.why = explanation.sentence
        reported = (self.view.status, gist(explanation.waiting_for) or self.why)
        # It may have started between the two requests: then the next look reports it.
        if reported != self._reported and self._present().status == self.view.status:
            bar.say(f"{self.what} is {self.view.status}. {self.why}".rstrip())
            self._reported = reported
        return False

    def _present(self) -> Any:
        return self.api.get(type(self.view), self.path, self.view.id)


def gist(facts: Any) -> Any:
    """Without what differs at every look: how many calls wait for the driver, and numbers in a gate's status."""
    match facts:
        case dict():
            kept = {name: gist(value) for name, value in facts.items() if name not in FLEETING}
            if kept.get("kind") == "gate":
                kept["status"] = NUMBER.sub("", str(facts.get("status")))
            return kept
        case list():
            return [gist(each) for each in facts]
    return facts


def outcomes(results: Mapping[str, str]) -> list[str]:
    """What became of VMs; those that share a reason together."""
    return [f"{', '.join(vms)}: {why}" for why, vms in by_reason(results).items()]


def limit(wait: bool, wait_limit: float | None) -> float | None:
    """The seconds that the two options allow; None: do not wait."""
    if wait_limit is not None:
        return wait_limit * 60
    return math.inf if wait else None


def follow(ctx: Operator, awaited: Sequence[AwaitedOperation], seconds: float, data: Callable[[], object]) -> None:
    """Wait until all are over; UnfinishedError unless all are Completed. Neither the limit nor Ctrl-C undoes anything.

    However the wait ends, `data` is printed as JSON, if that was asked for.
    """
    try:
        with progress("waiting", total=len(awaited)) as bar:
            try:
                _watch(awaited, bar, seconds)
            except KeyboardInterrupt:
                bar.say("No longer waiting; the maintenance continues. `forenotice watch` shows it.")
                raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        if ctx.out.json:
            ctx.out.data(data())
    ended = {each: f"{each.what} is {each.view.status}{f': {each.why}' if each.why else ''}" for each in awaited}
    if bad := [text for each, text in ended.items() if each.view.status != "Completed"]:
        raise UnfinishedError("; ".join(bad))
    if not ctx.out.json:
        for text in ended.values():
            ctx.out.line(f"{text}.")


def _watch(awaited: Sequence[AwaitedOperation], bar: Bar, seconds: float) -> None:
    started, pause = time.monotonic(), threading.Event()
    left = deque(awaited)
    lost = False
    while True:
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
                bar.say(f"{output.utc(SystemClock().now())}: {error.message}{stop} Trying again.")
            lost = True
        bar.done(sum(each.part for each in awaited))
        if not left:
            return
        spent = time.monotonic() - started
        if spent >= seconds:
            others = f", and {len(left) - 1} more" if len(left) > 1 else ""
            state = f"{left[0].what}{others} is still {left[0].view.status}. {left[0].why}".rstrip()
            raise UnfinishedError(f"the time of --wait-limit is over, but the maintenance continues: {state}")
        pause.wait(min(EVERY, seconds - spent))
