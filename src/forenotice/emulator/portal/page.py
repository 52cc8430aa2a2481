"""All that the page shows, looked at in one moment."""

import functools
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from forenotice.core import errors
from forenotice.core.operations import Event, Operation, Status
from forenotice.core.timing import Timing
from forenotice.emulator import faults
from forenotice.emulator.control.app import Controller, key_of
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.endpoint import PollPreview
from forenotice.emulator.portal import actions
from forenotice.emulator.request_log import LoggedRequest
from forenotice.emulator.scenarios import catalogue, preview
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.scenarios.preview import PlannedEvent, PlannedFault, Preview
from forenotice.portal import timeline
from forenotice.portal.timeline import Bar, Timeline
from forenotice.views.emulator import KINDS
from forenotice.wire import versions

REQUESTS = 20
SEARCHED = 5000
"""Requests among which the last poll of a VM is looked for."""
HISTORY = 30
FIRST = "reboot"
"""What is chosen before anybody has."""
TIME = re.compile(r"(\d\d:\d\d:\d\d)")
STEPS = ("1m", "5m", "15m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The reader's choices, in the page's address."""

    scenario: str
    resources: str
    vm: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Poller:
    vm: str
    at: datetime | None
    """When it last polled, by the machine's clock; None: not that we remember."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    key: str
    at: datetime
    sentence: str


@cache
def scenarios() -> tuple[Scenario, ...]:
    return tuple(catalogue.load(name) for name in catalogue.names())


def shown(controller: Controller, choice: Choice) -> dict[str, Any]:
    emulator = controller.emulator
    known = {scenario.name: scenario for scenario in scenarios()} | controller.own
    playing = key_of(emulator.player.scenario) if emulator.player else ""
    name = choice.scenario if choice.scenario in known else playing if playing in known else FIRST
    return {
        **emulator.change(lambda now: _simulated(emulator, now)),
        **_chosen(controller, name, choice.resources),
        **_document(controller, choice),
        **_callers(emulator),
        "scenarios": known,
        "all_faults": faults.ALL,
        "kinds": list(KINDS),
        "steps": STEPS,
    }


def _simulated(emulator: Emulator, now: datetime) -> dict[str, Any]:
    simulation, player, clock = emulator.simulation, emulator.player, emulator.clock
    return {
        "emulated": now,
        "machine_ahead": -clock.ahead,
        "paused": clock.stands,
        "ahead": clock.ahead if abs(clock.ahead) >= timedelta(seconds=1) else None,
        "speed": emulator.timing.speed,
        "endpoint": f"http://{emulator.address}",
        "callers_are": emulator.as_vm,
        "vms": simulation.vms,
        "incarnation": simulation.scope.incarnation,
        "player": player,
        "waits_for": TIME.sub(r"\1 UTC", player.waiting_for) if player else "",
        "notes": list(player.deviations) if player else [],
        "next": upcoming(emulator),
        "events": simulation.live,
        "history": _history(emulator),
        "drawn": draw(emulator, now),
        "active": {each.fault.name: each for each in emulator.faults.active},
    }


def _history(emulator: Emulator) -> list[HistoryEntry]:
    """Newest first."""
    simulation = emulator.simulation
    newest_first = ((index, simulation.entries[index]) for index in range(len(simulation.entries) - 1, -1, -1))
    found = (
        HistoryEntry(key=f"{entry.event}-{index}", at=entry.at, sentence=sentence)
        for index, entry in newest_first
        if (sentence := simulation.sentence(entry)) is not None
    )
    return list(itertools.islice(found, HISTORY))


def _chosen(controller: Controller, name: str, resources: str) -> dict[str, Any]:
    emulator, wrong = controller.emulator, ""
    found = actions.scenario(controller, name, ())
    try:
        found = actions.scenario(controller, name, actions.names(resources))
    except errors.RefusedError as error:
        wrong = error.message
    if not resources and emulator.player and key_of(emulator.player.scenario) == name:
        found = emulator.player.scenario
    return {
        "chosen": found,
        "chosen_key": name,
        "chosen_wrong": wrong,
        "resources": resources or ", ".join(found.resources),
        "preview": preview_timeline(found, emulator.timing, emulator.clock.now()),
    }


def _document(controller: Controller, choice: Choice) -> dict[str, Any]:
    emulator = controller.emulator
    version = versions.lookup(choice.version) or versions.NEWEST
    vm = choice.vm if choice.vm in {vm.name for vm in emulator.simulation.vms} else emulator.as_vm
    found = emulator.preview_poll(vm, version)
    return {
        "vm": vm,
        "version": version.name,
        "versions": [each.name for each in reversed(versions.ALL)],
        "answer": found,
        "document": found.body.decode(),
        "readable": _readable(found),
        "endpoint_of_vm": f"http://{emulator.address}" if vm == emulator.as_vm else controller.endpoints.get(vm, ""),
    }


def _readable(found: PollPreview) -> str:
    try:
        return json.dumps(json.loads(found.body), indent=2, ensure_ascii=False)
    except ValueError:
        # Cut off, or empty.
        return found.body.decode()


def _callers(emulator: Emulator) -> dict[str, Any]:
    latest = emulator.requests.latest(SEARCHED)
    last: dict[str | None, LoggedRequest] = {}
    for _, request in latest:
        if request.is_poll:
            last.setdefault(request.vm, request)
    # By the machine's clock: the emulator's may have been moved meanwhile.
    now = emulator.clock.now() - emulator.clock.ahead + timedelta(seconds=-emulator.runtime.monotonic())
    at = {vm: now + timedelta(seconds=poll.monotonic) for vm, poll in last.items()}
    return {
        "pollers": [Poller(vm=vm.name, at=at.get(vm.name)) for vm in emulator.simulation.vms],
        "requests": latest[:REQUESTS],
        "request_count": latest[0][0] + 1 if latest else 0,
    }


@dataclass(frozen=True, slots=True)
class Upcoming:
    at: datetime
    sentence: str


def upcoming(emulator: Emulator) -> Upcoming | None:
    """Call it while nothing changes."""
    return min(_due(emulator), key=lambda each: each.at, default=None)


def _due(emulator: Emulator) -> Iterator[Upcoming]:
    """What is first of equals comes first."""
    operation, player = emulator.simulation.next_operation, emulator.player
    if operation is not None and operation.due_at is not None:
        yield Upcoming(operation.due_at, _of_operation(emulator, operation))
    if player is not None and player.due is not None:
        yield Upcoming(player.due, "the scenario goes on with its next step")
    if emulator.faults.due is not None:
        yield Upcoming(emulator.faults.due, _of_faults(emulator, emulator.faults.due))


def _of_operation(emulator: Emulator, operation: Operation) -> str:
    event = next(event for event in emulator.simulation.live if event.operation == operation.id)
    ends = "starts: its NotBefore has come" if operation.status is Status.SCHEDULED else "is done and goes"
    return f"{event.type} of {', '.join(event.resources)} {ends}"


def _of_faults(emulator: Emulator, at: datetime) -> str:
    names = [each.fault.name for each in emulator.faults.active if each.end == at]
    return f"{', '.join(names)} is over" if names else "a request that a fault holds back is answered"


FAULT = "other"
"""The colour of what is no event."""
LEAST = timedelta(minutes=5)
"""That is drawn, before speed divides it."""
BACK = timedelta(hours=1)
"""What is over for longer is not drawn, unless the scenario lasts as long; before speed divides it."""
MARGIN = 0.04
MOST_EVENTS = 500

cached_preview = functools.lru_cache(maxsize=32)(preview.compute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    so_far: Timeline | None
    """Events as they are and will be if nobody approves; None: there were none."""
    written: Timeline | None
    """The scenario, if nobody approves; None: none is played."""


def draw(emulator: Emulator, now: datetime) -> Timelines:
    """Both over the same time. Call it while nothing changes."""
    player, timing = emulator.player, emulator.timing
    plan = list(_plan(cached_preview(player.scenario), player.began, timing)) if player is not None else []
    events = emulator.simulation.recent[-MOST_EVENTS:]
    real = [bar for event in events for bar in _bars(emulator, event)]
    if not plan and not real:
        return Timelines(so_far=None, written=None)
    length = max((bar.end - bar.begin for bar in plan if bar.end), default=timedelta(0))
    begin, end = _frame([*plan, *real], now - max(timing.shortened(BACK), length * 2), timing, now)
    return Timelines(
        so_far=timeline.draw(real, begin=begin, end=end, now=now) if real else None,
        written=timeline.draw(plan, begin=begin, end=end, now=now) if plan else None,
    )


def preview_timeline(scenario: Scenario, timing: Timing, now: datetime) -> Timeline:
    """As if it began now."""
    plan = list(_plan(cached_preview(scenario), now, timing))
    begin, end = _frame(plan, now, timing, now)
    return timeline.draw(plan, begin=begin, end=end)


def _frame(bars: list[Bar], earliest: datetime, timing: Timing, now: datetime) -> tuple[datetime, datetime]:
    begin = max(min(bar.begin for bar in bars), earliest)
    end = max(begin + timing.shortened(LEAST), now, *(bar.end or bar.begin for bar in bars))
    return begin, end + (end - begin) * MARGIN


def _bars(emulator: Emulator, event: Event) -> Iterator[Bar]:
    """One in the lane of each VM that it names."""
    started = emulator.simulation.started_at(event)
    start, end = started, event.ended_at
    if event.status.live:
        start = max(event.not_before, emulator.clock.now()) if started is None else started
        end = start + emulator.simulation.takes(event)
    label = f"{event.type} of {', '.join(event.resources)}: {event.status}, NotBefore {event.not_before:%H:%M:%S} UTC"
    for name in event.resources:
        yield Bar(
            id=f"{event.id}-{name}",
            lane=name,
            type=str(event.type),
            label=label,
            begin=event.created_at,
            not_before=event.not_before,
            start=start,
            end=end,
            expected=event.status.live and started is None,
            status=str(event.status),
        )


def _plan(scenario: Preview, began: datetime, timing: Timing) -> Iterator[Bar]:
    for index, event in enumerate(scenario.events):
        yield from _planned_event(event, index, began, timing)
    for index, fault in enumerate(scenario.faults):
        yield _planned_fault(fault, index, began, timing)


def _planned_event(planned: PlannedEvent, index: int, began: datetime, timing: Timing) -> Iterator[Bar]:
    def at(since: timedelta) -> datetime:
        return began + timing.shortened(since)

    after = f"after {_written(planned.announced)}" if planned.announced else "at once"
    starts = "cancelled" if planned.started is None else f"started after {_written(planned.started)}"
    label = f"{planned.event.type} of {', '.join(planned.event.resources)}: announced {after}, {starts}"
    for name in planned.event.resources:
        yield Bar(
            id=f"plan-{index}-{name}",
            lane=name,
            type=str(planned.event.type),
            label=f"{label}, gone after {_written(planned.ended)}",
            begin=at(planned.announced),
            start=None if planned.started is None else at(planned.started),
            end=at(planned.ended),
        )


def _planned_fault(planned: PlannedFault, index: int, began: datetime, timing: Timing) -> Bar:
    begin = began + timing.shortened(planned.since)
    end = None if planned.until is None else began + timing.shortened(planned.until)
    label = f"fault {planned.name}: switched on after {_written(planned.since)}"
    return Bar(id=f"plan-fault-{index}", lane=planned.name, type=FAULT, label=label, begin=begin, start=begin, end=end)


def _written(since: timedelta) -> str:
    minutes, seconds = divmod(round(since.total_seconds()), 60)
    return f"{minutes} min" + (f" {seconds} s" if seconds else "")
