"""`forenotice emulator`: drives an emulator that runs."""

import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cached_property, partial
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any

import click

from forenotice import settings, views
from forenotice.cli import commands, output, wait
from forenotice.cli.api import Rest
from forenotice.cli.commands import Read, UsageError, argument, command, option, switch
from forenotice.cli.output import Output
from forenotice.core import errors
from forenotice.emulator import command as emulator_command
from forenotice.settings import table
from forenotice.settings.values import Span

app = commands.Group()

NONE_LIVE = "There are no live events."
LOOK = 0.1
"""Seconds between two looks at what is waited for."""
LARGEST = 256 * 1024
"""Characters of a scenario; a longer one is refused by the emulator."""
EVENT = argument("event")
RESOURCES = option("--resources", "VM,...", "The VMs concerned, comma-separated.")
PARTS = {"kind": "EVENT", "by": "TIME", "name": "FAULT", "scenario": "SCENARIO", "vm": "VM"}
"""What people call the parts of a request that are arguments; the others are flags."""


class Control(Rest):
    """An emulator's, whose complaints are about what was typed."""

    def _refusal(self, status: int, reason: str, body: bytes) -> errors.ForenoticeError:
        error = super()._refusal(status, reason, body)
        if status == HTTPStatus.UNAUTHORIZED:
            return self._not_ours(status, reason)
        part, in_body, rest = error.message.partition(" in the body")
        if in_body:
            part = part.partition(".")[0]
            error.message = f"{PARTS.get(part, f'--{part}')}{rest}"
        return error


class Emulator:
    """What a command on a running emulator works with."""

    def __init__(self, flags: Mapping[str, object], *, json: bool) -> None:
        self._flags = flags
        self.out = Output(json=json)

    @cached_property
    def api(self) -> Control:
        return Control(settings.load_driver(self._flags, os.environ).control_url, "forenotice emulate")

    def now(self) -> datetime:
        """By the emulator's clock."""
        return self.state().now

    def state(self) -> "views.emulator.State":
        return self.api.get(views.emulator.State, "emulator", "state")

    def explanation(self, event: str) -> "views.maintenance.EventExplanation":
        return self.api.get(views.maintenance.EventExplanation, "emulator", "events", event, "explanation")


drive = partial(command, app, make=Emulator, rows=table.EMULATOR)


@command(
    None,
    "emulate",
    argument("scenario", emulator_command.SCENARIO, required=False),
    switch("--list listed", emulator_command.LIST),
    option("--show shown", "NAME", emulator_command.SHOW),
    switch("--json as_json", "Print JSON for machines."),
    make=lambda flags: flags,
    rows=table.EMULATE,
    shared=(),
)
def emulate(flags: Mapping[str, object], **how: Any) -> int:
    """For help and completion; `__main__` starts it without Click."""
    return emulator_command.emulate(flags, **how)


@drive("state")
def state(ctx: Emulator) -> None:
    """Show the clock, the scenario, the VMs, their events, and the faults that are on."""
    _show(ctx, ctx.state())


@drive(
    "play",
    argument("scenario", metavar="SCENARIO|FILE"),
    RESOURCES,
    option("--seed", "N", "In place of the scenario's own.", type=int),
)
def play(ctx: Emulator, scenario: str, resources: str | None, seed: int | None) -> None:
    """Start afresh with a scenario of `forenotice emulate --list`, or with a TOML file."""
    body: dict[str, object] = {"scenario": scenario, "resources": _names(resources), "seed": seed}
    if scenario.endswith(".toml") or Path(scenario).name != scenario:
        with commands.using(scenario, error=UsageError), Path(scenario).open(encoding="utf-8") as file:
            body |= {"scenario": file.read(LARGEST + 1), "source": scenario}
    _show(ctx, ctx.api.post(views.emulator.State, "emulator", "play", body=body))


@drive(
    "event",
    argument("kind", f"One of {', '.join(views.emulator.KINDS)}.", metavar="EVENT"),
    RESOURCES,
    option("--notice", "TIME", "Until NotBefore, such as 90s; what the event requires if left out."),
    option("--takes", "TIME", "How long it is Started."),
    option("--description", "TEXT", "What guests read."),
)
def announce(ctx: Emulator, resources: str | None, **body: str | None) -> None:
    """Announce an event now, to the VM that callers are unless others are named."""
    asked = {**body, "resources": _names(resources)}
    _show_event(ctx, ctx.api.post(views.emulator.Event, "emulator", "events", body=asked))


@drive("events", commands.ALL)
def events(ctx: Emulator, everything: bool) -> None:
    """List the events."""
    found = ctx.api.items(views.emulator.Event, "emulator", "events", live=None if everything else True)
    _list(ctx, found, ctx.now, none="There are no events." if everything else NONE_LIVE)


@drive("explain", EVENT)
def explain(ctx: Emulator, event: str) -> None:
    """Explain why an event waits: for whom, for what, until when."""
    ctx.out.explanation(ctx.explanation(event), ctx.now)


@drive(
    "wait",
    EVENT,
    switch("--approved", "Until it is approved."),
    switch("--started", "Until it has started."),
    switch("--gone", "Until it is over; the default."),
    option("--timeout", "TIME", "Wait at most this long, in real time, such as 30s.", type=Read(Span.read)),
)
def wait_(ctx: Emulator, event: str, approved: bool, started: bool, gone: bool, timeout: Span | None) -> None:
    """Wait until an event is approved, started or over; fail when that takes too long or cannot happen."""
    if approved + started + gone > 1:
        raise UsageError("wait for one thing: give one of --approved, --started and --gone")
    what = "approved" if approved else "started" if started else "over"
    deadline = monotonic() + (math.inf if timeout is None else timeout.total_seconds())
    pause = threading.Event()
    while (never := _never(view := ctx.api.get(views.emulator.Event, "emulator", "events", event), what)) is None:
        if monotonic() >= deadline:
            seconds = timeout.total_seconds() if timeout else 0
            never = f"not {what} after {seconds:g} s. {ctx.explanation(event).sentence}"
            break
        pause.wait(LOOK)
    if not never or ctx.out.json:
        _show_event(ctx, view)
    if never:
        raise wait.UnfinishedError(f"{view.type} of {', '.join(view.resources)} is {never}")


@drive("approve", EVENT)
def approve(ctx: Emulator, event: str) -> None:
    """Approve an event in place of its guests."""
    _show_event(ctx, ctx.api.post(views.emulator.Event, "emulator", "events", event, "approve"))


@drive("cancel", EVENT)
def cancel(ctx: Emulator, event: str) -> None:
    """Cancel an event while it is Scheduled."""
    _show_event(ctx, ctx.api.post(views.emulator.Event, "emulator", "events", event, "cancel"))


@drive("advance", argument("by", "Such as 90s, 15m or 2h.", metavar="TIME"))
def advance(ctx: Emulator, by: str) -> None:
    """Move the emulator's clock forward, with all that happens meanwhile; a speed divides the time."""
    _show(ctx, ctx.api.post(views.emulator.State, "emulator", "advance", body={"by": by}))


def _simple(verb: str, summary: str) -> None:
    @drive(verb, summary=summary)
    def run(ctx: Emulator) -> None:
        _show(ctx, ctx.api.post(views.emulator.State, "emulator", verb))


_simple("step", "Move the emulator's clock forward to the next thing that happens by itself.")
_simple("pause", "Stop the emulator's clock until it is moved or resumed.")
_simple("resume", "Let the emulator's clock continue from where it stands.")


@drive(
    "fault",
    argument("name", required=False, metavar="[FAULT]"),
    switch("--off", "Switch it off; without a name, all."),
    option("--amount", "TIME", "How much, such as 2s."),
    option("--on", "WHICH", "polls, approvals or all."),
    option("--times", "N", "Affect this many requests.", type=int),
    option("--lasts", "TIME", "How long it is on."),
)
def fault(ctx: Emulator, name: str | None, off: bool, **body: object) -> None:
    """Switch a fault on or off."""
    if off:
        _show(ctx, ctx.api.delete(views.emulator.State, "emulator", "faults", *([name] if name else [])))
        return
    if name is None:
        raise UsageError("which fault? `forenotice emulator faults` shows them, and --off switches all off")
    found = ctx.api.post(views.emulator.ActiveFault, "emulator", "faults", body={"name": name, **body})
    ctx.out.result(found, f"{name} is on for {_extent(found)}.")


@drive("faults")
def faults(ctx: Emulator) -> None:
    """List the faults there are, and which of them are on."""
    ctx.out.list(
        ctx.api.get(views.base.Page[views.emulator.Fault], "emulator", "faults").items,
        ("fault", "on", "what a client sees"),
        lambda each: (each.name, f"for {_extent(each.active)}" if each.active else "", each.symptom),
        none="",
    )


@drive("requests", option("--last", "N", "How many.", type=click.IntRange(1), default=20))
def requests(ctx: Emulator, last: int) -> None:
    """List the latest requests of guests, and how each was answered."""
    after = max(0, ctx.state().requests - last)
    ctx.out.list(
        list(ctx.api.items(views.emulator.LoggedRequest, "emulator", "requests", after=after))[-last:],
        ("at", "vm", "request", "response", "why"),
        lambda each: (
            f"{each.at:%H:%M:%S}",
            each.vm,
            f"{each.method} {each.target}",
            each.status or "none",
            each.fault or each.reason,
        ),
        none="There are no requests yet.",
    )


@drive("endpoint", argument("vm"))
def endpoint(ctx: Emulator, vm: str) -> None:
    """Open another port, at which every caller is this VM, and print its address."""
    found = ctx.api.post(views.emulator.Endpoint, "emulator", "endpoints", body={"vm": vm})
    ctx.out.result(found, found.endpoint)


_simple("reset", "Remove events, scenario, faults and requests; the VMs stay.")


def _show(ctx: Emulator, found: "views.emulator.State") -> None:
    out = ctx.out
    if out.json:
        out.data(found)
        return
    played = ""
    if scenario := found.scenario:
        played = f"{scenario.name}, {'all is played' if scenario.done else f'waits for {scenario.waiting_for}'}"
    out.facts(
        {
            "clock": output.utc(found.now) + (", paused" if found.paused else ""),
            "speed": f"{found.speed:g}" if found.speed != 1 else "",
            "endpoint": found.endpoint,
            "callers are": found.as_vm,
            "VMs": [vm.name for vm in found.vms],
            "scenario": played,
            "faults": [f"{each.name} for {_extent(each)}" for each in found.faults],
        }
    )
    _list(ctx, found.events, lambda: found.now)


def _list(
    ctx: Emulator, found: Iterable["views.emulator.Event"], now: Callable[[], datetime], *, none: str = NONE_LIVE
) -> None:
    at = ctx.out.now if ctx.out.json else now()
    ctx.out.list(
        found,
        ("event", "type", "status", "resources", "not before", "approved by"),
        lambda event: (
            *(event.id, event.type, event.status, event.resources),
            *(output.told(event.not_before, at), event.approved_by),
        ),
        none=none,
    )


def _show_event(ctx: Emulator, event: "views.emulator.Event") -> None:
    if ctx.out.json:
        ctx.out.data(event)
        return
    told = f", not before {output.utc(event.not_before)}" if event.status == "Scheduled" else ""
    ctx.out.line(f"{event.type} of {', '.join(event.resources)} is {event.status}{told}.")
    ctx.out.line(f"  event {event.id}")


def _never(event: "views.emulator.Event", what: str) -> str | None:
    """Why it will never come to that; empty: it has; None: it may yet."""
    approved = event.approved_at and not event.implied
    match what, event.status:
        case "approved", _ if approved:
            return ""
        case _, "Scheduled":
            return None
        case "approved", status:
            return f"{status}: it was not approved in time"
        case "started", status:
            return "Canceled: it never started" if status == "Canceled" else ""
    return "" if event.ended_at else None


def _extent(active: "views.emulator.ActiveFault") -> str:
    """`polls, amount 5 s, 3 times, until 10:20:00`"""
    parts = [f"{active.on} requests" if active.on == "all" else active.on]
    if active.amount_seconds is not None:
        parts.append(f"amount {active.amount_seconds:g} s")
    if active.times is not None:
        parts.append(f"{active.times} times" if active.times > 1 else "once")
    if active.until is not None:
        parts.append(f"until {active.until:%H:%M:%S}")
    return ", ".join(parts)


def _names(resources: str | None) -> list[str]:
    return [name.strip() for name in resources.split(",")] if resources else []
