"""All that the page shows, looked at in one moment."""

import itertools
import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from time import monotonic
from typing import Any

from forenotice.core import errors
from forenotice.core.journal import Entry
from forenotice.core.operations import Event
from forenotice.emulator import words
from forenotice.emulator.command import telling
from forenotice.emulator.control.driver import Driver, key_of
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.endpoint import Foreseen
from forenotice.emulator.faults import table
from forenotice.emulator.portal import acting, forthcoming, timeline
from forenotice.emulator.requests import Requested
from forenotice.emulator.scenarios import catalogue
from forenotice.emulator.scenarios.format import Scenario
from forenotice.wire import versions

REQUESTS = 20
LOOKED_BACK = 5000
"""Requests among which the last poll of a VM is looked for."""
HAPPENINGS = 30
FIRST = "reboot"
"""What is chosen before anybody has."""
TIME = re.compile(r"(\d\d:\d\d:\d\d)")
STEPS = ("1m", "5m", "15m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the one who looks has chosen, in the page's address."""

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
class Happened:
    key: str
    at: datetime
    said: str
    not_before: datetime | None
    """Of what was announced."""

    @classmethod
    def of(cls, index: int, entry: Entry, event: Event) -> "Happened":
        announced = entry.action == "event.scheduled"
        told = "is announced" if announced else telling.SENTENCES[entry.action](event)
        return cls(
            key=f"{event.id}-{index}",
            at=entry.at,
            said=f"{event.type} of {', '.join(event.resources)} {told}",
            not_before=event.not_before if announced else None,
        )


@cache
def scenarios() -> tuple[Scenario, ...]:
    return tuple(catalogue.load(name) for name in catalogue.names())


def shown(driver: Driver, choice: Choice) -> dict[str, Any]:
    emulator = driver.emulator
    known = {scenario.name: scenario for scenario in scenarios()} | driver.own
    playing = key_of(emulator.player.scenario) if emulator.player else ""
    name = choice.scenario if choice.scenario in known else playing if playing in known else FIRST
    return {
        **emulator.change(lambda now: _looked_at(emulator, now)),
        **_chosen(driver, name, choice.resources),
        **_document(driver, choice),
        **_callers(emulator),
        "scenarios": known,
        "all_faults": table.ALL,
        "kinds": list(words.WORDS),
        "steps": STEPS,
    }


def _looked_at(emulator: Emulator, now: datetime) -> dict[str, Any]:
    stage, player, clock = emulator.stage, emulator.player, emulator.clock
    return {
        "emulated": now,
        "machine_ahead": -clock.ahead,
        "paused": clock.stands,
        "ahead": clock.ahead if abs(clock.ahead) >= timedelta(seconds=1) else None,
        "speed": emulator.timing.speed,
        "endpoint": f"http://{emulator.address}",
        "callers_are": emulator.as_vm,
        "vms": stage.vms,
        "incarnation": stage.scope.incarnation,
        "player": player,
        "waits_for": TIME.sub(r"\1 UTC", player.waiting_for) if player else "",
        "notes": list(player.notes) if player else [],
        "next": forthcoming.following(emulator),
        "events": stage.live,
        "happened": _happened(emulator),
        "drawn": timeline.draw(emulator, now),
        "active": {each.fault.name: each for each in emulator.faults.active},
    }


def _happened(emulator: Emulator) -> list[Happened]:
    """Newest first."""
    stage = emulator.stage
    newest_first = ((index, stage.entries[index]) for index in range(len(stage.entries) - 1, -1, -1))
    told = (each for each in newest_first if each[1].event and each[1].action in telling.SENTENCES)
    return [
        Happened.of(index, entry, stage.event(str(entry.event))) for index, entry in itertools.islice(told, HAPPENINGS)
    ]


def _chosen(driver: Driver, name: str, resources: str) -> dict[str, Any]:
    emulator, wrong = driver.emulator, ""
    found = acting.scenario(driver, name, ())
    try:
        found = acting.scenario(driver, name, acting.names(resources))
    except errors.RefusedError as error:
        wrong = error.message
    if not resources and emulator.player and key_of(emulator.player.scenario) == name:
        found = emulator.player.scenario
    return {
        "chosen": found,
        "chosen_key": name,
        "chosen_wrong": wrong,
        "resources": resources or ", ".join(found.resources),
        "preview": timeline.preview(found, emulator.timing, emulator.clock.now()),
    }


def _document(driver: Driver, choice: Choice) -> dict[str, Any]:
    emulator = driver.emulator
    version = versions.lookup(choice.version) or versions.NEWEST
    vm = choice.vm if choice.vm in {vm.name for vm in emulator.stage.vms} else emulator.as_vm
    found = emulator.foresee(vm, version)
    return {
        "vm": vm,
        "version": version.name,
        "versions": [each.name for each in reversed(versions.ALL)],
        "answer": found,
        "document": found.body.decode(),
        "readable": _readable(found),
        "endpoint_of_vm": f"http://{emulator.address}" if vm == emulator.as_vm else driver.endpoints.get(vm, ""),
    }


def _readable(found: Foreseen) -> str:
    try:
        return json.dumps(json.loads(found.body), indent=2, ensure_ascii=False)
    except ValueError:
        # Cut off, or empty.
        return found.body.decode()


def _callers(emulator: Emulator) -> dict[str, Any]:
    latest = emulator.requests.latest(LOOKED_BACK)
    last: dict[str | None, Requested] = {}
    for _, request in latest:
        if request.is_poll:
            last.setdefault(request.vm, request)
    # By the machine's clock: the emulator's may have been moved meanwhile.
    now = emulator.clock.now() - emulator.clock.ahead + timedelta(seconds=-monotonic())
    at = {vm: now + timedelta(seconds=poll.monotonic) for vm, poll in last.items()}
    return {
        "pollers": [Poller(vm=vm.name, at=at.get(vm.name)) for vm in emulator.stage.vms],
        "requests": latest[:REQUESTS],
        "request_count": latest[0][0] + 1 if latest else 0,
    }
