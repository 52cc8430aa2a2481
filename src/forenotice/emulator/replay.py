"""Replaying a recording: the real endpoint says what was recorded, at the distances of then divided by speed."""

import secrets
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from forenotice import publication
from forenotice.client import endpoint as client_endpoint
from forenotice.client import events as client_events
from forenotice.client.events import parse_date
from forenotice.clock import SystemClock
from forenotice.core import errors, fleet
from forenotice.core.documents import Document
from forenotice.core.fleet import Listening, Policy, Scope, ScopeKind, Vm
from forenotice.core.lifecycle import Approval
from forenotice.core.operations import Event, EventType, Source, Status
from forenotice.core.timing import ENDED_APPROVABLE, STARTED_SHOWN, Timing, whole_second_up
from forenotice.emulator import faults, recordings
from forenotice.emulator.active_faults import Faults
from forenotice.emulator.endpoint import Endpoint
from forenotice.emulator.faults import Delay, Fault, FixedResponse, On, Since
from forenotice.emulator.foreground import LogLine
from forenotice.emulator.recordings import Answer, Failure, Observation, Recording
from forenotice.emulator.request_log import RequestLog
from forenotice.publication import Publication
from forenotice.settings import Address
from forenotice.settings.spans import LONGEST
from forenotice.wire import versions

KEY = fleet.group_key("recorded")
SOMEBODY = "web-0"
SHORTEST_ROUND = timedelta(seconds=1)
"""A recording of one moment that is played again and again takes this long."""
UNSURE = timedelta(seconds=client_endpoint.UNSURE)
"""By how much the clock of the endpoint that was recorded may be misjudged."""
ROUNDED = timedelta(seconds=1)
LARGEST = 2**53
TIMED_OUT = "timed out"
SILENT = Fault(
    name="recorded-silence",
    effect=Delay(since=Since.ARRIVAL),
    on=On.ALL,
    amount=faults.LONGEST_DELAY,
    symptom="Nothing is answered until the recording has an answer again.",
    evidence="In the recording.",
)

E = TypeVar("E", bound=StrEnum)
Tell = Callable[[LogLine], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the endpoint says from a moment on."""

    at: datetime
    heard: Observation
    document: Document | None = None
    fault: Fault | None = None
    """In place of a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All of a recording, once."""

    steps: tuple[Step, ...]
    ends: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A NotBefore: by the clock of then, and as it is shown now."""

    then: datetime
    now: datetime


class Script:
    """What of a recording is played, and when."""

    def __init__(self, recording: Recording, timing: Timing) -> None:
        self._recording = recording
        self._timing = timing
        version = versions.lookup(recording.start.api_version)
        self._underscore = version is not None and version.underscore
        names = tuple(recording.resources)
        # Where names ought to carry an underscore, only those of role instances do not.
        role_instances = self._underscore and names and not any(name.startswith("_") for name in names)
        self.kind = ScopeKind.CLOUD_SERVICE if role_instances else ScopeKind.AVAILABILITY_SET
        self.first_vm = self._name(names[0]) if names else None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Types of events that no api-version has: they are left out."""
        types = {event.type for heard in self._recording.heard for event in _events(heard)}
        return tuple(sorted(kind for kind in types if _member(EventType, kind) is None))

    def round(self, began: datetime) -> Round:
        steps: list[Step] = []
        at, before, ahead = began, self._recording.heard[0].at, 0.0
        promises: dict[str, Promise] = {}
        for heard in self._recording.heard:
            if steps:
                at += self._stays(steps[-1], heard.at - before)
            before = heard.at
            then = self._recording.start.at + timedelta(seconds=heard.at)
            if isinstance(heard, Answer) and (date := parse_date(heard.date)):
                ahead = client_endpoint.clock_ahead(date, then, heard.took, ahead)
            then += timedelta(seconds=ahead)
            at = _kept(heard, at, then, promises)
            steps.append(self._step(heard, at, then, promises))
        ends = at + self._stays(steps[-1], self._recording.length - before)
        return Round(steps=tuple(steps), ends=max(ends, began + SHORTEST_ROUND))

    def _stays(self, step: Step, seconds: float) -> timedelta:
        """For how long it is shown; Started for as long as a poll once a second needs (PROTOCOL, life of an event)."""
        then = timedelta(seconds=seconds)
        started = step.document and any(event.status is Status.STARTED for event in step.document.events)
        return max(self._timing.shortened(then), min(then, STARTED_SHOWN) if started else timedelta(0))

    def _step(self, heard: Observation, at: datetime, then: datetime, promises: dict[str, Promise]) -> Step:
        """`then` was when by the clock of the endpoint that was recorded."""
        document = heard.document if isinstance(heard, Answer) else None
        if document is None:
            return Step(at=at, heard=heard, fault=_fault(heard))
        events: list[Event] = []
        for event in document.events:
            said = promises.get(event.id.upper())
            if event.deadline is not None and (said is None or said.then != event.deadline):
                # Only where it was moved: once said, it is not said differently.
                distance = max(-LONGEST, min(event.deadline - then, LONGEST))
                shown = whole_second_up(at + self._timing.shortened(distance))
                promises[event.id.upper()] = said = Promise(then=event.deadline, now=shown)
            events += self._event(event, at, said.now if said else whole_second_up(at))
        incarnation = _bounded(document.incarnation)
        said_now = Document(scope=KEY, tag="", kind=self.kind, incarnation=incarnation, events=tuple(events))
        return Step(at=at, heard=heard, document=said_now)

    def _event(self, event: client_events.Event, at: datetime, not_before: datetime) -> Iterator[Event]:
        """What an old version has not told is as if unknown."""
        kind, status = _member(EventType, event.type), _member(Status, event.status)
        if kind is not None and status is not None and status.live:
            yield Event(
                id=event.id,
                operation="",
                scope=KEY,
                resources=tuple(map(self._name, event.resources)),
                update_domain=0,
                type=kind,
                source=_member(Source, event.source or "") or Source.PLATFORM,
                description=event.description or "",
                duration=-1 if event.duration_seconds is None else _bounded(event.duration_seconds),
                status=status,
                created_at=at,
                not_before=not_before,
            )

    def _name(self, name: str) -> str:
        return name.removeprefix("_") if self._underscore else name


class Replay:
    """Callers are one VM. Approvals are taken, and change nothing: the recording goes on."""

    def __init__(
        self,
        recording: Recording,
        *,
        speed: float = 1,
        as_vm: str | None = None,
        loop: bool = False,
        tell: Tell = lambda _: None,
    ) -> None:
        timing = Timing(speed=speed)
        self.script = Script(recording, timing)
        self.as_vm = as_vm or self.script.first_vm or SOMEBODY
        self.requests = RequestLog()
        self._loop = loop
        self._tell = tell
        self._clock = SystemClock()
        self._faults = Faults(self._clock, speed=speed)
        self._endpoint = Endpoint(
            clock=self._clock, timing=timing, faults=self._faults, requests=self.requests, as_vm=self.as_vm
        )
        self._guests = Guests(self._clock, tell)
        self._tag = secrets.token_hex(4)
        self._shown = 0
        self._round = self.script.round(self._clock.now())
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._play, name="replay", daemon=True)

    def start(self, at: Address, names: Collection[str] = ()) -> Address:
        """Gives where guests are answered."""
        self._endpoint.published.put_scopes([self._members()])
        # The loop does not run yet: nobody sees the fleet before this is published.
        self._put(self._round.steps[0])
        address = self._endpoint.start(self._guests, at, names)
        self._thread.start()
        return address

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._endpoint.stop()

    def _play(self) -> None:
        steps: Sequence[Step] = self._round.steps[1:]
        while True:
            for step in steps:
                if self._stopped_before(step.at):
                    return
                self._show(step)
            if not self._loop or self._stopped_before(self._round.ends):
                return
            self._round = self.script.round(self._clock.now())
            steps = self._round.steps

    def _stopped_before(self, moment: datetime) -> bool:
        return self._stopping.wait(max(0.0, (moment - self._clock.now()).total_seconds()))

    def _show(self, step: Step) -> None:
        # Both at once: no poll finds an error that is over, and the document from before it.
        self._endpoint.call(lambda: self._put(step))

    def _put(self, step: Step) -> None:
        if step.document is not None:
            self._shown += 1
            # Recorded incarnations may fall or stay: a tag of its own makes it another document all the same.
            document = replace(step.document, tag=f"{self._tag}.{self._shown}")
            self._guests.show(document)
            self._endpoint.published.put_documents([document])
        self._faults.put(step.fault)
        self._tell(LogLine(at=self._clock.now(), action="replay.said", said=recordings.described(step.heard)))

    def _members(self) -> Publication:
        policy = Policy(listening=Listening.ALWAYS)
        vm = Vm(name=self.as_vm, vm_id=str(uuid.uuid4()), host="recorded", scope=KEY)
        return publication.of(Scope(key=KEY, kind=self.script.kind, tag=self._tag, policy=policy), (vm,), ())


class Guests:
    """What guests cause, for `metadata.bridge`: nothing."""

    def __init__(self, clock: SystemClock, tell: Tell) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._ended: dict[str, datetime | None] = {}
        """By id; None: it is live."""

    def show(self, document: Document) -> None:
        now = self._clock.now()
        live = {event.id.upper() for event in document.events}
        with self._lock:
            for event_id, ended_at in self._ended.items():
                self._ended[event_id] = ended_at or now
            self._ended.update(dict.fromkeys(live))

    def approve(self, approvals: Sequence[Approval]) -> list[errors.ForenoticeError | None]:
        return [self._approve(approval) for approval in approvals]

    def heard(self, heard: Mapping[str, datetime]) -> None: ...

    def _approve(self, approval: Approval) -> errors.ForenoticeError | None:
        with self._lock:
            known = all(self._is_approvable(event_id) for event_id in approval.event_ids)
        ids = ", ".join(approval.event_ids)
        facts = {"vm": approval.vm, "event_ids": approval.event_ids}
        if not known:
            self._say("replay.refused", f"{approval.vm} approves what the recording does not have: {ids}", facts)
            return errors.RefusedError("an EventId names no live event of this recording: nothing was approved")
        self._say("replay.approved", f"{approval.vm} approves {ids}; the recording goes on", facts)
        return None

    def _say(self, action: str, said: str, facts: Mapping[str, object]) -> None:
        self._tell(LogLine(at=self._clock.now(), action=action, said=said, facts=facts))

    def _is_approvable(self, event_id: str) -> bool:
        if event_id not in self._ended:
            return False
        ended_at = self._ended[event_id]
        return ended_at is None or self._clock.now() - ended_at <= ENDED_APPROVABLE


def _kept(heard: Observation, at: datetime, then: datetime, promises: Mapping[str, Promise]) -> datetime:
    """When it is said: what did not start early then does not do so now that NotBefore is rounded up."""
    for event in _events(heard):
        said = promises.get(event.id.upper())
        if said and _member(Status, event.status) is Status.STARTED and then >= said.then - UNSURE:
            at = max(at, min(said.now, at + UNSURE + ROUNDED))
    return at


def _events(heard: Observation) -> Sequence[client_events.Event]:
    document = heard.document if isinstance(heard, Answer) else None
    return document.events if document else ()


def _fault(heard: Observation) -> Fault:
    """What comes back of that which was no document."""
    if isinstance(heard, Failure):
        return SILENT if heard.error == TIMED_OUT else faults.find("reset")
    if heard.status == 200 and not heard.content.strip():
        return faults.find("empty-body")
    return Fault(
        name=f"recorded-{heard.status}",
        effect=FixedResponse(status=heard.status, body=heard.content),
        # Whatever is no error would not pass for the answer to an approval.
        on=On.ALL if heard.status >= 400 else On.POLLS,
        symptom="What was recorded.",
        evidence="In the recording.",
    )


def _bounded(number: int) -> int:
    """As any JSON reader can read it."""
    return max(-LARGEST, min(number, LARGEST))


def _member(kind: type[E], text: str) -> E | None:
    return next((member for member in kind if member.lower() == text.lower()), None)
