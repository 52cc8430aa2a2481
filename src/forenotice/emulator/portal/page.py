"""All that the page shows, looked at in one moment."""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from forenotice.core import errors
from forenotice.core.operations import Event, Status
from forenotice.core.timing import Timing
from forenotice.emulator import faults
from forenotice.emulator.api import Controller, key_of
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.scenarios import catalogue, preview
from forenotice.emulator.scenarios.format import Scenario
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

LEAST = timedelta(minutes=5)
"""That is drawn, before speed divides it."""
BACK = timedelta(hours=1)
"""What is over for longer is not drawn, unless the scenario lasts as long; before speed divides it."""
MARGIN = 0.04
MOST_EVENTS = 500

cached_preview = functools.lru_cache(maxsize=32)(preview.compute)


@functools.cache
def scenarios() -> Mapping[str, Scenario]:
    return {name: catalogue.load(name) for name in catalogue.names()}


def names(text: str | None) -> tuple[str, ...]:
    return tuple(name for part in (text or "").split(",") if (name := part.strip()))


def shown(controller: Controller, choice: Mapping[str, str]) -> dict[str, Any]:
    """`choice` is what the page's address says."""
    emulator = controller.emulator
    return {
        **emulator.change(lambda now: _simulated(emulator, now)),
        **_chosen(controller, choice["scenario"], choice["resources"]),
        **_document(controller, choice["vm"], choice["api-version"]),
        **_callers(emulator),
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
        # Of equals the first.
        "next": min(_due(emulator), key=lambda each: each[0], default=None),
        "events": simulation.live,
        "history": list(itertools.islice(_history(emulator), HISTORY)),
        "active": {each.fault.name: each for each in emulator.faults.active},
        **_timelines(emulator, now),
    }


def _history(emulator: Emulator) -> Iterator[tuple[str, datetime, str]]:
    """Newest first: a key, when, and a sentence."""
    entries = emulator.simulation.entries
    for index in range(len(entries) - 1, -1, -1):
        sentence = emulator.simulation.sentence(entries[index])
        if sentence is not None:
            yield f"{entries[index].event}-{index}", entries[index].at, sentence


def _due(emulator: Emulator) -> Iterator[tuple[datetime, str]]:
    """What happens next by itself: when, and a sentence."""
    operation, player, over = emulator.simulation.next_operation, emulator.player, emulator.faults.due
    if operation is not None and operation.due_at is not None:
        event = next(event for event in emulator.simulation.live if event.operation == operation.id)
        ends = "starts: its NotBefore has come" if operation.status is Status.SCHEDULED else "is done and goes"
        yield operation.due_at, f"{event.type} of {', '.join(event.resources)} {ends}"
    if player is not None and player.due is not None:
        yield player.due, "the scenario goes on with its next step"
    if over is not None:
        ended = ", ".join(each.fault.name for each in emulator.faults.active if each.end == over)
        yield over, f"{ended} is over" if ended else "a request that a fault holds back is answered"


def _chosen(controller: Controller, wanted: str, resources: str) -> dict[str, Any]:
    emulator, wrong = controller.emulator, ""
    player = emulator.player
    known = {**scenarios(), **controller.own}
    playing = key_of(player.scenario) if player else ""
    key = next(name for name in (wanted, playing, FIRST) if name in known)
    found = known[key]
    if player is not None and playing == key and not resources:
        found = player.scenario
    elif others := names(resources):
        try:
            found = found.on(others)
        except errors.RefusedError as error:
            wrong = error.message
    now = emulator.clock.now()
    plan = list(_plan(found, now, emulator.timing))
    begin, end = _frame(plan, now, emulator.timing, now)
    return {
        "scenarios": known,
        "chosen": found,
        "chosen_key": key,
        "chosen_wrong": wrong,
        "resources": resources or ", ".join(found.resources),
        # As if it began now.
        "preview": timeline.draw(plan, begin=begin, end=end),
    }


def _document(controller: Controller, vm: str, api_version: str) -> dict[str, Any]:
    emulator = controller.emulator
    version = versions.lookup(api_version) or versions.NEWEST
    vm = vm if vm in {known.name for known in emulator.simulation.vms} else emulator.as_vm
    found = emulator.preview_poll(vm, version)
    document = found.body.decode()
    try:
        readable = json.dumps(json.loads(document), indent=2, ensure_ascii=False)
    except ValueError:
        # Cut off, or empty.
        readable = document
    return {
        "vm": vm,
        "version": version.name,
        "versions": [each.name for each in reversed(versions.ALL)],
        "answer": found,
        "document": document,
        "readable": readable,
        "endpoint_of_vm": f"http://{emulator.address}" if vm == emulator.as_vm else controller.endpoints.get(vm, ""),
    }


def _callers(emulator: Emulator) -> dict[str, Any]:
    latest = emulator.requests.latest(SEARCHED)
    # By the machine's clock: the emulator's may have been moved meanwhile.
    began = emulator.clock.now() - emulator.clock.ahead - timedelta(seconds=emulator.runtime.monotonic())
    polls = {poll.vm: began + timedelta(seconds=poll.monotonic) for _, poll in reversed(latest) if poll.is_poll}
    return {
        "pollers": {vm.name: polls.get(vm.name) for vm in emulator.simulation.vms},
        "requests": latest[:REQUESTS],
        "request_count": latest[0][0] + 1 if latest else 0,
    }


def _timelines(emulator: Emulator, now: datetime) -> dict[str, Timeline | None]:
    """Events as they are, and will be if nobody approves; and the scenario as it is written, over the same time."""
    player, timing = emulator.player, emulator.timing
    plan = list(_plan(player.scenario, player.began, timing)) if player is not None else []
    real = [bar for event in emulator.simulation.recent[-MOST_EVENTS:] for bar in _bars(emulator, event)]
    if not plan and not real:
        return {"so_far": None, "written": None}
    length = max((bar.end - bar.begin for bar in plan if bar.end), default=timedelta(0))
    begin, end = _frame([*plan, *real], now - max(timing.shortened(BACK), length * 2), timing, now)
    return {
        "so_far": timeline.draw(real, begin=begin, end=end, now=now) if real else None,
        "written": timeline.draw(plan, begin=begin, end=end, now=now) if plan else None,
    }


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


def _plan(scenario: Scenario, began: datetime, timing: Timing) -> Iterator[Bar]:
    def at(since: timedelta | None) -> datetime | None:
        return None if since is None else began + timing.shortened(since)

    planned = cached_preview(scenario)
    for index, each in enumerate(planned.events):
        after = f"after {_written(each.announced)}" if each.announced else "at once"
        starts = "cancelled" if each.started is None else f"started after {_written(each.started)}"
        label = f"{each.event.type} of {', '.join(each.event.resources)}: announced {after}, {starts}"
        for name in each.event.resources:
            yield Bar(
                id=f"plan-{index}-{name}",
                lane=name,
                type=str(each.event.type),
                label=f"{label}, gone after {_written(each.ended)}",
                begin=began + timing.shortened(each.announced),
                start=at(each.started),
                end=at(each.ended),
            )
    for index, fault in enumerate(planned.faults):
        begin = began + timing.shortened(fault.since)
        yield Bar(
            id=f"plan-fault-{index}",
            lane=fault.name,
            # The colour of what is no event.
            type="other",
            label=f"fault {fault.name}: switched on after {_written(fault.since)}",
            begin=begin,
            start=begin,
            end=at(fault.until),
        )


def _written(since: timedelta) -> str:
    minutes, seconds = divmod(round(since.total_seconds()), 60)
    return f"{minutes} min" + (f" {seconds} s" if seconds else "")
