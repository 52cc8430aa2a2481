"""What is known of the server at a moment, and how it is kept up to date with few questions."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from http import HTTPStatus

from forenotice.cli.api import AnswerError, Api, View
from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.fleet import natural_key

EVERY = 2.0
"""Seconds between two looks at the journal; only when it has grown is there more to ask."""
IN_ANY_CASE = 30.0
MOST_EVENTS = 200
MOST_ENTRIES = 12
EXPLAINED = 5
"""Events, and rollouts, whose reason is asked for at one look."""
REASON_LASTS = 10.0

Reason = tuple[View, float, View]
"""Of what, when it was asked for, and the explanation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    events: tuple[View, ...] = ()
    more_events: bool = False
    rollouts: tuple[View, ...] = ()
    entries: tuple[View, ...] = ()
    """The newest last."""
    reasons: dict[str, View] = field(default_factory=dict)
    """Why events and rollouts wait, by id: `sentence` and `until`."""
    lost_since: datetime | None = None
    trouble: str = ""
    """Why the server does not answer."""
    known: bool = False
    """False until it has answered once."""

    def why(self, thing: View) -> str:
        return str(self.reasons[thing["id"]]["sentence"]) if thing["id"] in self.reasons else ""

    def until(self, thing: View) -> str | None:
        """When its wait is over at the latest, where that is known."""
        return self.reasons[thing["id"]]["until"] if thing["id"] in self.reasons else None


class Looker:
    """Asks, and keeps what was answered."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._asked_at = float("-inf")
        self._reasons: dict[str, Reason] = {}
        self._has_rollouts = True
        self.scene = Scene()

    def look(self) -> Scene:
        """As it is now; a server that cannot be reached makes it older, not empty."""
        try:
            self.scene = self._looked()
        except errors.UnavailableError as error:
            since = self.scene.lost_since or SystemClock().now()
            self._asked_at = float("-inf")
            self.scene = replace(self.scene, lost_since=since, trouble=error.message)
        return self.scene

    def _looked(self) -> Scene:
        newest = self._api.get("history", newest_first=True, limit=MOST_ENTRIES)["items"]
        entries = tuple(reversed(newest))
        now = time.monotonic()
        if entries == self.scene.entries and now - self._asked_at < IN_ANY_CASE:
            found = replace(self.scene, lost_since=None, trouble="")
        else:
            page = self._api.get("events", live=True, limit=MOST_EVENTS)
            found = Scene(
                events=tuple(sorted(page["items"], key=_turn)),
                more_events=page["next"] is not None,
                rollouts=tuple(self._rollouts()),
                entries=entries,
                known=True,
            )
            self._asked_at = now
        kept = {**self._explained("rollouts", found.rollouts, now), **self._explained("events", found.events, now)}
        self._reasons = kept
        return replace(found, reasons={key: explanation for key, (_, _, explanation) in kept.items()})

    def _rollouts(self) -> Iterator[View]:
        if not self._has_rollouts:
            return
        try:
            yield from self._api.get("rollouts", live=True, limit=MOST_EVENTS)["items"]
        except AnswerError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                raise
            self._has_rollouts = False

    def _explained(self, noun: str, things: tuple[View, ...], now: float) -> dict[str, Reason]:
        kept = {thing["id"]: self._reasons.get(thing["id"]) for thing in things}
        due = [thing for thing in things if _is_stale(kept[thing["id"]], thing, now)]
        for thing in due[:EXPLAINED]:
            try:
                kept[thing["id"]] = (thing, now, self._api.get(noun, thing["id"], "explanation"))
            except AnswerError:
                # It is gone since.
                continue
        return {key: reason for key, reason in kept.items() if reason is not None}


def _turn(event: View) -> tuple[object, ...]:
    """What has started first, then by NotBefore."""
    return event["status"] != "Started", event["not_before"], natural_key(event["resources"][0]), event["id"]


def _is_stale(kept: Reason | None, thing: View, now: float) -> bool:
    return kept is None or kept[0] != thing or now - kept[1] > REASON_LASTS


class Following(threading.Thread):
    """Looks every other second, beside whoever shows it."""

    def __init__(self, looker: Looker, tell: Callable[[Scene | Exception], None]) -> None:
        super().__init__(name="watch", daemon=True)
        self._looker, self._tell = looker, tell
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._tell(self._looker.look())
                self._over.wait(EVERY)
        except Exception as error:
            self._tell(error)

    def end(self) -> None:
        self._over.set()
