"""`forenotice watch`: live events, rollouts and the latest history, on a terminal, as it happens."""

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import NamedTuple, Union

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from forenotice import views
from forenotice.cli import output
from forenotice.cli.api import Api, RefusalError
from forenotice.cli.commands import Operator, operator, plain, switch
from forenotice.cli.output import STYLES, WIDTH
from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.fleet import natural_key
from forenotice.runtime import start_thread

TICK = 1.0
RESPONSE_WITHIN = 10.0
EVERY = 2.0
"""Seconds between two looks at the journal; only when it has grown is there more to ask."""
IN_ANY_CASE = 30.0
MOST_EVENTS = 200
MOST_ENTRIES = 12
EXPLAINED = 5
"""Events, and rollouts, that one poll explains."""
REASON_LASTS = 10.0

Waiting = Union["views.maintenance.Event", "views.rollouts.ListedRollout"]
NARROW = 90
"""Columns below which the reason of an event has a line of its own."""
LONGEST_WHO = 40
LEAST_HISTORY = 3
"""Lines that are kept for it where there is more to show than fits."""
AROUND = 5
"""Lines that are neither events nor history: two blank ones, the heading, how many others there are, the last."""
SOON = timedelta(minutes=1)
BAR = 20
NOUNS = ("vm", "event", "host", "operation", "scope")
"""What a line of the history names: the first that it has."""
ROLLOUT_NOUNS = ("rollout", "host")
"""Where it is about a rollout: both."""
STYLE = {**STYLES, "Running": "bold magenta", "Paused": "yellow", "Canceling": "yellow"}


# What is known of the service


class Reason(NamedTuple):
    thing: Waiting
    at: float
    """When it was requested."""
    why: "views.maintenance.Explanation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    events: tuple["views.maintenance.Event", ...] = ()
    more_events: bool = False
    rollouts: tuple["views.rollouts.ListedRollout", ...] = ()
    entries: tuple["views.history.Entry", ...] = ()
    """The newest last."""
    reasons: dict[str, Reason] = field(default_factory=dict)
    """Why events and rollouts wait, by id."""
    lost_since: datetime | None = None
    trouble: str = ""
    """Why the server does not respond."""
    known: bool = False
    """False until it has responded once."""

    def why(self, thing: Waiting) -> str:
        own = "" if isinstance(thing, views.maintenance.Event) else thing.why
        return own or (self.reasons[thing.id].why.sentence if thing.id in self.reasons else "")

    def until(self, thing: Waiting) -> datetime | None:
        """When its wait is over at the latest, where that is known."""
        return self.reasons[thing.id].why.until if thing.id in self.reasons else None


class Poller:
    """Requests what is shown, and keeps the responses."""

    def __init__(self, api: Api, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._monotonic = monotonic
        self._polled_at = float("-inf")
        self._has_rollouts = True
        self.snapshot = Snapshot()

    def poll(self) -> Snapshot:
        """As it is now; a server that cannot be reached makes it older, not empty."""
        try:
            self.snapshot = self._poll()
        except errors.UnavailableError as error:
            since = self.snapshot.lost_since or SystemClock().now()
            self._polled_at = float("-inf")
            self.snapshot = replace(self.snapshot, lost_since=since, trouble=error.message)
        return self.snapshot

    def _poll(self) -> Snapshot:
        newest = self._api.items(views.history.Entry, "history", newest_first=True, limit=MOST_ENTRIES)
        entries, now = tuple(reversed([*newest])), self._monotonic()
        found = replace(self.snapshot, lost_since=None, trouble="")
        if entries != found.entries or now - self._polled_at >= IN_ANY_CASE:
            page = self._api.get(views.base.Page[views.maintenance.Event], "events", live=True, limit=MOST_EVENTS)
            found = replace(
                found,
                events=tuple(sorted(page.items, key=_order)),
                more_events=page.next is not None,
                rollouts=tuple(self._rollouts()),
                entries=entries,
                known=True,
            )
            self._polled_at = now
        reasons = {**self._explained("rollouts", found.rollouts, now), **self._explained("events", found.events, now)}
        return replace(found, reasons=reasons)

    def _rollouts(self) -> Sequence["views.rollouts.ListedRollout"]:
        kind = views.base.Page[views.rollouts.ListedRollout]
        try:
            return self._api.get(kind, "rollouts", live=True, limit=MOST_EVENTS).items if self._has_rollouts else ()
        except RefusalError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                raise
            self._has_rollouts = False
            return ()

    def _explained(self, noun: str, things: Sequence[Waiting], now: float) -> dict[str, Reason]:
        known = self.snapshot.reasons
        kept = {thing.id: known[thing.id] for thing in things if thing.id in known}
        fresh = {key for key, reason in kept.items() if now - reason.at <= REASON_LASTS}
        due = [thing for thing in things if thing.id not in fresh or kept[thing.id].thing != thing]
        for thing in due[:EXPLAINED]:
            # Refused if it is gone since.
            with suppress(RefusalError):
                why = self._api.get(views.maintenance.Explanation, noun, thing.id, "explanation")
                kept[thing.id] = Reason(thing, now, why)
        return kept


def _order(event: "views.maintenance.Event") -> tuple[object, ...]:
    """What has started first, then by NotBefore."""
    return event.status != "Started", event.not_before, natural_key(event.resources[0]), event.id


# How it is drawn, line by line


def draw(snapshot: Snapshot, now: datetime, *, width: int, height: int | None, url: str) -> RenderableType:
    """`height` None: all there is."""
    lines = [*_head(snapshot, now, url), *_rollouts(snapshot, now, width, None if height is None else height // 3)]
    if snapshot.known:
        lines += _events(snapshot, now, width, None if height is None else height - len(lines) - AROUND - LEAST_HISTORY)
        room = len(snapshot.entries) if height is None else height - len(lines) - 2
        lines += _history(snapshot.entries[-room:] if room > 0 else ())
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _head(snapshot: Snapshot, now: datetime, url: str) -> Iterator[Text]:
    yield Text.assemble(("forenotice ", "bold"), f"{plain(url)}  {now:%H:%M:%S} UTC")
    if snapshot.lost_since is not None:
        since = f"not reachable since {snapshot.lost_since:%H:%M:%S} UTC, trying again"
        yield Text(f"{since} ({plain(snapshot.trouble)})", style="bold red")
    elif not snapshot.known:
        yield Text("connecting ...", style="dim")


def _events(snapshot: Snapshot, now: datetime, width: int, room: int | None) -> Iterator[Text]:
    yield Text("")
    if not snapshot.events:
        yield Text("There are no live events.", style="dim")
        return
    wide = width >= NARROW
    shown = snapshot.events if room is None else snapshot.events[: max(1, room if wide else room // 2)]
    longest = min(LONGEST_WHO, max(len(_who(event)) for event in shown))
    yield Text(f"{'status':<10} {'not before':>12}  {'type':<9}  who", style="bold")
    for event in shown:
        scheduled, left = event.status == "Scheduled", event.not_before - now
        due = "" if not scheduled else "due" if left <= timedelta(0) else output.span(left)
        # Until its reason is known.
        guess = "" if not scheduled else "approved" if event.approved_at else "not approved yet"
        why = Text(plain(snapshot.why(event) or guess), style="dim")
        line = Text.assemble(
            (f"{event.status:<10} ", STYLE.get(event.status, "")),
            (f"{due:>12}", "bold red" if left < SOON else ""),
            f"  {event.type:<9}  {_who(event):<{longest if wide else 0}}",
        )
        yield line.append("  ").append_text(why) if wide and why else line
        if why and not wide:
            yield Text("  ").append_text(why)
    if (hidden := len(snapshot.events) - len(shown)) or snapshot.more_events:
        more = " or more" if snapshot.more_events else ""
        yield Text(f"and {hidden}{more} others: forenotice event list", style="dim")


def _who(event: "views.maintenance.Event") -> str:
    names = plain(", ".join(event.resources))
    return f"{event.group}: {names}" if event.group else names


def _rollouts(snapshot: Snapshot, now: datetime, width: int, room: int | None) -> Iterator[Text]:
    """The first always has its two lines."""
    shown = snapshot.rollouts if room is None else snapshot.rollouts[: max(1, (room - 1) // 2)]
    for rollout in shown:
        yield _rollout(rollout, BAR if width >= NARROW else BAR // 2)
        if why := snapshot.why(rollout):
            left = (snapshot.until(rollout) or now) - now
            waits = f"{output.span(left)} left: " if left > timedelta(0) else ""
            yield Text.assemble(f"  {waits}", (plain(why), "dim"))
    if hidden := len(snapshot.rollouts) - len(shown):
        yield Text(f"and {hidden} others: forenotice rollout list", style="dim")


def _rollout(rollout: "views.rollouts.ListedRollout", bar: int) -> Text:
    hosts = plain(rollout.hosts)
    hosts = hosts if len(hosts) <= LONGEST_WHO else f"{hosts[: LONGEST_WHO - 1]}…"
    line = Text(f"rollout {rollout.kind} {hosts}  ", style="bold")
    line.append(rollout.status, style=STYLE.get(rollout.status, ""))
    counts = rollout.progress
    done = counts.done + counts.failed + counts.skipped
    total = done + counts.waiting + counts.under_way
    full = bar * done // max(1, total)
    drawn = "━" * full + "─" * (bar - full)
    line.append(f"  wave {rollout.wave} of {rollout.waves}  {drawn} {done}/{total} hosts")
    return line.append(f"  {rollout.id}", style="dim")


def _history(entries: Sequence["views.history.Entry"]) -> Iterator[Text]:
    yield Text("")
    for entry in entries:
        of_rollout = entry.action.startswith("rollout.")
        about = [str(getattr(entry, noun)) for noun in (ROLLOUT_NOUNS if of_rollout else NOUNS) if getattr(entry, noun)]
        by = f" by {entry.by}" if entry.by else ""
        said = f"{entry.at:%H:%M:%S}  {entry.action}{by}  {' '.join(about if of_rollout else about[:1])}"
        yield Text(plain(said.rstrip()), style="dim")


# The command


Update = Snapshot | Exception


@operator(None, "watch", switch("--once", "Show the current state once."))
def watch(ctx: Operator, once: bool) -> None:
    """Show live events with their countdowns, rollouts, and what just happened, until Ctrl-C."""
    console = Console(highlight=False, markup=False, emoji=False)
    poller = Poller(ctx.api.hasty(RESPONSE_WITHIN))
    if once or not (ctx.out.json or console.is_terminal):
        _show_once(ctx, poller, console)
        return
    with _updates(poller) as updates:
        if ctx.out.json:
            _print_changes(updates)
        else:
            _draw(updates, console, ctx.api.url)


def _show_once(ctx: Operator, poller: Poller, console: Console) -> None:
    snapshot = poller.poll()
    if snapshot.lost_since is not None:
        raise errors.UnavailableError(snapshot.trouble)
    if ctx.out.json:
        ctx.out.data(_data(snapshot))
        return
    if not console.is_terminal:
        console.width = WIDTH
    console.print(draw(snapshot, ctx.out.now, width=console.width, height=None, url=ctx.api.url))


@contextmanager
def _updates(poller: Poller) -> Iterator["queue.SimpleQueue[Update]"]:
    """A thread of its own polls every other second."""
    updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
    over = threading.Event()

    def run() -> None:
        try:
            while not over.is_set():
                updates.put(poller.poll())
                over.wait(EVERY)
        except Exception as error:
            updates.put(error)

    start_thread(run, "watch")
    # Ctrl-C and SIGTERM both end it, and leave the terminal clean.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield updates
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        over.set()


def _next(updates: "queue.SimpleQueue[Update]", seconds: float) -> Snapshot | None:
    try:
        found = updates.get(timeout=seconds)
    except queue.Empty:
        return None
    if isinstance(found, Exception):
        raise found
    return found


def _draw(updates: "queue.SimpleQueue[Update]", console: Console, url: str) -> None:
    snapshot = Snapshot()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            now = SystemClock().now()
            live.update(draw(snapshot, now, width=console.width, height=console.height, url=url), refresh=True)
            snapshot = _next(updates, TICK) or snapshot


def _print_changes(updates: "queue.SimpleQueue[Update]") -> None:
    """One line of JSON whenever something differs."""
    last = ""
    while True:
        if (snapshot := _next(updates, EVERY)) and (line := msgspec.json.encode(_data(snapshot)).decode()) != last:
            print(line, flush=True)
            last = line


def _data(snapshot: Snapshot) -> dict[str, object]:
    def explained(things: Sequence[Waiting]) -> list[dict[str, object]]:
        return [
            {**msgspec.structs.asdict(thing), "why": snapshot.why(thing), "until": snapshot.until(thing)}
            for thing in things
        ]

    return {
        "events": explained(snapshot.events),
        "rollouts": explained(snapshot.rollouts),
        "history": snapshot.entries,
        "lost_since": snapshot.lost_since,
        "trouble": snapshot.trouble,
    }
