"""Replaying a recording: the real endpoint sends what was recorded, at the recorded intervals divided by speed."""

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, TypeVar

from forenotice import publication
from forenotice.client import endpoint as client_endpoint
from forenotice.client import events as client_events
from forenotice.client.events import parse_date
from forenotice.core import errors, fleet
from forenotice.core.documents import Document
from forenotice.core.fleet import Listening, Policy, Scope, ScopeKind, Vm
from forenotice.core.lifecycle import StartRequests
from forenotice.core.operations import Event, EventType, Source, Status
from forenotice.core.timing import ENDED_APPROVABLE, STARTED_SHOWN, Timing, whole_second_up
from forenotice.emulator import faults, recordings
from forenotice.emulator.active_faults import Faults
from forenotice.emulator.endpoint import Endpoint
from forenotice.emulator.faults import Delay, Fault, FixedResponse, On, Since
from forenotice.emulator.foreground import LogLine
from forenotice.emulator.recordings import Failure, Observation, Recording, Response, events_of
from forenotice.emulator.request_log import RequestLog
from forenotice.runtime import Runtime, Started
from forenotice.settings import Address
from forenotice.settings.values import LONGEST
from forenotice.wire import versions

KEY = fleet.group_key("recorded")
DEFAULT_VM = "web-0"
SHORTEST_ROUND = timedelta(seconds=1)
"""A recording of one moment that is played again and again takes this long."""
UNSURE = timedelta(seconds=client_endpoint.UNSURE)
"""By how much the clock of the recorded endpoint may be misjudged."""
ROUNDED = timedelta(seconds=1)
LARGEST = 2**53
NEVER = datetime.min.replace(tzinfo=UTC)
TIMED_OUT = "timed out"
RECORDED = "In the recording."
SILENT = Fault(
    "recorded-silence",
    Delay(Since.ARRIVAL),
    On.ALL,
    "No response until the recording has one again.",
    RECORDED,
    amount=faults.LONGEST_DELAY,
)

E = TypeVar("E", bound=StrEnum)
Report = Callable[[LogLine], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the endpoint sends from a moment on."""

    at: datetime
    observation: Observation
    document: Document | None = None
    fault: Fault | None = None
    """In place of a document."""


class Round(NamedTuple):
    """All of a recording, once."""

    steps: tuple[Step, ...]
    ends: datetime


Deadlines = dict[str, tuple[datetime, datetime]]
"""By the id of an event, its NotBefore as it was recorded and as it is shown now."""


class Script:
    """What of a recording is played, and when."""

    def __init__(self, recording: Recording, timing: Timing) -> None:
        self._recording = recording
        self._timing = timing
        version = versions.lookup(recording.start.api_version)
        self._underscore = version is not None and version.underscore
        names = tuple(recording.resources)
        # In a version whose names begin with an underscore, only those of role instances do not.
        role_instances = self._underscore and names and not any(name.startswith("_") for name in names)
        self.kind = ScopeKind.CLOUD_SERVICE if role_instances else ScopeKind.AVAILABILITY_SET
        self.first_vm = self._name(names[0]) if names else None

    @property
    def unknown_types(self) -> tuple[str, ...]:
        """Types of events that no api-version has: they are left out."""
        types = {event.type for each in self._recording.observations for event in events_of(each)}
        return tuple(sorted(kind for kind in types if _member(EventType, kind) is None))

    def round(self, began: datetime) -> Round:
        steps: list[Step] = []
        at, before, ahead = began, self._recording.observations[0].at, 0.0
        deadlines: Deadlines = {}
        for observation in self._recording.observations:
            if steps:
                at += self._interval(steps[-1], observation.at - before)
            before = observation.at
            recorded = self._recording.start.at + timedelta(seconds=observation.at)
            if isinstance(observation, Response) and (date := parse_date(observation.date)):
                ahead = client_endpoint.clock_ahead(date, recorded, observation.took, ahead)
            recorded += timedelta(seconds=ahead)
            at = _not_early(observation, at, recorded, deadlines)
            steps.append(self._step(observation, at, recorded, deadlines))
        ends = at + self._interval(steps[-1], self._recording.length - before)
        return Round(steps=tuple(steps), ends=max(ends, began + SHORTEST_ROUND))

    def _interval(self, step: Step, seconds: float) -> timedelta:
        """For how long it is shown; Started for as long as a poll once a second needs (docs/dev/rules.md)."""
        recorded = timedelta(seconds=seconds)
        started = step.document and any(event.status is Status.STARTED for event in step.document.events)
        return max(self._timing.shortened(recorded), min(recorded, STARTED_SHOWN) if started else timedelta(0))

    def _step(self, observation: Observation, at: datetime, recorded: datetime, deadlines: Deadlines) -> Step:
        """`recorded` is the time by the clock of the recorded endpoint."""
        document = observation.document
        if document is None:
            return Step(at=at, observation=observation, fault=_fault(observation))
        events: list[Event] = []
        for event in document.events:
            before, shown = deadlines.get(event.id.upper(), (None, whole_second_up(at)))
            if event.deadline is not None and before != event.deadline:
                # A deadline that was shown stays as it is, unless the recording moves it.
                distance = max(-LONGEST, min(event.deadline - recorded, LONGEST))
                shown = whole_second_up(at + self._timing.shortened(distance))
                deadlines[event.id.upper()] = event.deadline, shown
            events += self._event(event, at, shown)
        incarnation = max(-LARGEST, min(document.incarnation, LARGEST))
        shown_now = Document(scope=KEY, tag="", kind=self.kind, incarnation=incarnation, events=tuple(events))
        return Step(at=at, observation=observation, document=shown_now)

    def _event(self, event: client_events.Event, at: datetime, not_before: datetime) -> Iterator[Event]:
        """Fields that an old version lacks count as unknown."""
        kind, status = _member(EventType, event.type), _member(Status, event.status)
        if kind is not None and status is not None and status.live:
            seconds = -1 if event.duration_seconds is None else event.duration_seconds
            yield Event(
                id=event.id,
                operation="",
                scope=KEY,
                resources=tuple(map(self._name, event.resources)),
                update_domain=0,
                type=kind,
                source=_member(Source, event.source or "") or Source.PLATFORM,
                description=event.description or "",
                # As any JSON reader can read it.
                duration=max(-LARGEST, min(seconds, LARGEST)),
                status=status,
                created_at=at,
                not_before=not_before,
            )

    def _name(self, name: str) -> str:
        return name.removeprefix("_") if self._underscore else name


class Replay:
    """Every caller is one VM. Approvals are accepted and change nothing: the recording goes on."""

    def __init__(
        self,
        recording: Recording,
        *,
        speed: float = 1,
        as_vm: str | None = None,
        loop: bool = False,
        report: Report = lambda _: None,
        runtime: Runtime | None = None,
    ) -> None:
        self._runtime = runtime = runtime or Runtime()
        timing = Timing(speed=speed)
        self.script = Script(recording, timing)
        self.as_vm = as_vm or self.script.first_vm or DEFAULT_VM
        self.requests = RequestLog(runtime=runtime)
        self._loop = loop
        self._report = report
        self._clock = runtime.clock
        self._faults = Faults(self._clock, speed=speed)
        self._endpoint = Endpoint(
            clock=self._clock,
            timing=timing,
            faults=self._faults,
            requests=self.requests,
            as_vm=self.as_vm,
            runtime=runtime,
        )
        self._lock = threading.Lock()
        self._ended: dict[str, datetime | None] = {}
        """When the events that were shown ended, by id; None: it is live."""
        self._tag = runtime.new_id()[:8]
        self._shown = 0
        self._round = self.script.round(self._clock.now())
        self._stopping = threading.Event()
        self._thread: Started | None = None

    def start(self, at: Address, names: Collection[str] = ()) -> Address:
        vm = Vm(name=self.as_vm, vm_id=self._runtime.new_id(), host="recorded", scope=KEY)
        policy = Policy(listening=Listening.ALWAYS)
        scope = Scope(key=KEY, kind=self.script.kind, tag=self._tag, policy=policy)
        self._endpoint.published.put_scopes([publication.of(scope, (vm,), ())])
        # The loop does not run yet: nobody sees the fleet before this is published.
        self._put(self._round.steps[0])
        address = self._endpoint.start(self, at, names)
        self._thread = self._runtime.start_thread(self._play, "replay")
        return address

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._endpoint.stop()

    def _play(self) -> None:
        steps: Sequence[Step] = self._round.steps[1:]
        while True:
            for step in steps:
                if self._stopped_before(step.at):
                    return
                # Both at once: no poll gets an error that is over, and the document from before it.
                self._endpoint.call(functools.partial(self._put, step))
            if not self._loop or self._stopped_before(self._round.ends):
                return
            self._round = self.script.round(self._clock.now())
            steps = self._round.steps

    def _stopped_before(self, moment: datetime) -> bool:
        return self._stopping.wait(max(0.0, (moment - self._clock.now()).total_seconds()))

    def _put(self, step: Step) -> None:
        if step.document is not None:
            self._shown += 1
            # Recorded incarnations may fall or stay: with a tag of its own it is another document all the same.
            document = replace(step.document, tag=f"{self._tag}.{self._shown}")
            now = self._clock.now()
            with self._lock:
                self._ended = {event_id: ended_at or now for event_id, ended_at in self._ended.items()}
                self._ended |= dict.fromkeys(event.id.upper() for event in document.events)
            self._endpoint.published.put_documents([document])
        self._faults.put(step.fault)
        message = recordings.describe(step.observation)
        self._report(LogLine(at=self._clock.now(), action="replay.shown", message=message))

    # What guests cause: nothing

    def approve(self, approvals: Sequence[StartRequests]) -> list[errors.ForenoticeError | None]:
        return [self._approve(approval) for approval in approvals]

    def heard(self, heard: Mapping[str, datetime]) -> None: ...

    def _approve(self, approval: StartRequests) -> errors.ForenoticeError | None:
        since = self._clock.now() - ENDED_APPROVABLE
        with self._lock:
            known = all((self._ended.get(event_id, NEVER) or since) >= since for event_id in approval.event_ids)
        ids = ", ".join(approval.event_ids)
        action, message = "replay.approved", f"{approval.vm} approves {ids}; the recording goes on"
        if not known:
            action, message = "replay.refused", f"{approval.vm} approves {ids}, which the recording does not have"
        facts = {"vm": approval.vm, "event_ids": approval.event_ids}
        self._report(LogLine(at=self._clock.now(), action=action, message=message, facts=facts))
        if known:
            return None
        return errors.RefusedError("an EventId names no live event of this recording: nothing was approved")


def _not_early(observation: Observation, at: datetime, recorded: datetime, deadlines: Deadlines) -> datetime:
    """When it is shown: an event that did not start early then does not now that NotBefore is rounded up."""
    for event in events_of(observation):
        before, shown = deadlines.get(event.id.upper(), (None, at))
        if before and _member(Status, event.status) is Status.STARTED and recorded >= before - UNSURE:
            at = max(at, min(shown, at + UNSURE + ROUNDED))
    return at


def _fault(observation: Observation) -> Fault:
    """What an observation without a document becomes."""
    if isinstance(observation, Failure):
        return SILENT if observation.error == TIMED_OUT else faults.find("reset")
    if observation.status == 200 and not observation.content.strip():
        return faults.find("empty-body")
    # Only an error can also be the response to an approval.
    on = On.ALL if observation.status >= 400 else On.POLLS
    effect = FixedResponse(observation.status, observation.content)
    return Fault(f"recorded-{observation.status}", effect, on, "What was recorded.", RECORDED)


def _member(kind: type[E], text: str) -> E | None:
    return next((member for member in kind if member.lower() == text.lower()), None)
