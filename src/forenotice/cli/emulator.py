"""`forenotice emulator`: drives an emulator that runs."""

import math
import os
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from forenotice import settings
from forenotice.cli import explaining, options, times, waiting
from forenotice.cli.api import Rest, View
from forenotice.cli.output import Output
from forenotice.cli.usage import UsageError
from forenotice.core import errors
from forenotice.emulator import words
from forenotice.settings import table
from forenotice.settings.spans import Span

app = typer.Typer(help="Drive an emulator that runs: events, time, faults.", no_args_is_help=True)

P = ParamSpec("P")
NONE_LIVE = "There are no live events."
LAST = 20
LOOK = 0.1
"""Seconds between two looks at what is waited for."""
LARGEST = 256 * 1024
"""Characters of a scenario; a longer one is refused over there."""

EventId = Annotated[str, typer.Argument(metavar="EVENT", show_default=False)]
Resources = Annotated[
    str | None, typer.Option("--resources", metavar="VM,...", help="Whom it is about, with commas between them.")
]


PLACES = {"kind": "EVENT", "by": "TIME", "name": "FAULT", "scenario": "SCENARIO", "vm": "VM"}
"""What people call the parts of a request that are arguments; the others are flags."""


class Control(Rest):
    """An emulator's, whose complaints are about what was typed."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "forenotice emulate")

    def _refusal(self, status: int, reason: str, body: bytes) -> errors.ForenoticeError:
        error = super()._refusal(status, reason, body)
        if status == HTTPStatus.UNAUTHORIZED:
            return self._stranger(status, reason)
        part, in_body, rest = error.message.partition(" in the body")
        if in_body:
            part = part.partition(".")[0]
            error.message = f"{PLACES.get(part, f'--{part}')}{rest}"
        return error


class Driving:
    """A command's view of an emulator."""

    def __init__(self, flags: Mapping[str, object], common: Mapping[str, Any]) -> None:
        self._flags = flags
        self.out = Output(json=common["json"])

    @cached_property
    def api(self) -> Control:
        return Control(settings.load_driver(self._flags, os.environ).control_url)

    def now(self) -> datetime:
        """By the emulator's clock."""
        return times.read(self.api.get("emulator", "state")["now"])


def command(name: str) -> Callable[[Callable[Concatenate[Driving, P], None]], Callable[Concatenate[Driving, P], None]]:
    def register(function: Callable[Concatenate[Driving, P], None]) -> Callable[Concatenate[Driving, P], None]:
        options.register(app, name, function, rows=table.EMULATOR, context=Driving)
        return function

    return register


@command("state")
def state(driving: Driving) -> None:
    """Show the clock, the scenario, the VMs, what is announced, and the faults that are switched on."""
    _show(driving, driving.api.get("emulator", "state"))


@command("play")
def play(
    driving: Driving,
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO|FILE", show_default=False)],
    resources: Resources = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="In place of the scenario's own.")] = None,
) -> None:
    """Start afresh with a scenario, one that `forenotice emulate --list` shows or a TOML file."""
    body: dict[str, object] = {"scenario": scenario, "resources": _names(resources), "seed": seed}
    if scenario.endswith(".toml") or Path(scenario).name != scenario:
        body |= {"scenario": _read(Path(scenario)), "source": scenario}
    _show(driving, driving.api.post("emulator", "play", body=body))


@command("event")
def announce(
    driving: Driving,
    kind: Annotated[str, typer.Argument(metavar="EVENT", help=f"One of {', '.join(words.WORDS)}.", show_default=False)],
    resources: Resources = None,
    notice: Annotated[
        str | None, typer.Option("--notice", metavar="TIME", help="Until NotBefore, such as 90s; else what it needs.")
    ] = None,
    takes: Annotated[str | None, typer.Option("--takes", metavar="TIME", help="How long it is Started.")] = None,
    description: Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What guests read.")] = None,
) -> None:
    """Announce an event now, to the VM that callers are unless others are named."""
    body = {"kind": kind, "notice": notice, "takes": takes, "description": description}
    _show_event(driving, driving.api.post("emulator", "events", body={**body, "resources": _names(resources)}))


@command("events")
def events(
    driving: Driving, everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False
) -> None:
    """List the events."""
    found = list(driving.api.items("emulator", "events", live=None if everything else True))
    if driving.out.json:
        driving.out.data(found)
        return
    none = "There are no events." if everything else NONE_LIVE
    _show_events(driving, found, driving.api.get("emulator", "state")["now"], none=none)


@command("explain")
def explain(driving: Driving, event_id: EventId) -> None:
    """Say why an event waits: for whom, for what, until when."""
    explaining.show(driving.out, driving.api.get("emulator", "events", event_id, "explanation"), driving.now)


@command("wait")
def wait(
    driving: Driving,
    event_id: EventId,
    approved: Annotated[bool, typer.Option("--approved", help="Until somebody has approved it.")] = False,
    started: Annotated[bool, typer.Option("--started", help="Until it has started.")] = False,
    gone: Annotated[bool, typer.Option("--gone", help="Until it is over; the default.")] = False,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="Wait at most this long, in real time, such as 30s."),
    ] = None,
) -> None:
    """Wait until an event is approved, has started or is over; fail when that takes too long or cannot happen."""
    if approved + started + gone > 1:
        raise UsageError("wait for one thing: give one of --approved, --started and --gone")
    what = "approved" if approved else "started" if started else "over"
    deadline = monotonic() + (math.inf if timeout is None else _seconds(timeout))
    pause = threading.Event()
    while (never := _never(event := driving.api.get("emulator", "events", event_id), what)) is None:
        if monotonic() >= deadline:
            why = driving.api.get("emulator", "events", event_id, "explanation")["sentence"]
            never = f"not {what} after {timeout}. {why}"
            break
        pause.wait(LOOK)
    if not never or driving.out.json:
        _show_event(driving, event)
    if never:
        raise waiting.UnfinishedError(f"{event['type']} of {', '.join(event['resources'])} is {never}")


@command("approve")
def approve(driving: Driving, event_id: EventId) -> None:
    """Approve an event in place of its guests."""
    _show_event(driving, driving.api.post("emulator", "events", event_id, "approve"))


@command("cancel")
def cancel(driving: Driving, event_id: EventId) -> None:
    """Cancel an event while it is Scheduled."""
    _show_event(driving, driving.api.post("emulator", "events", event_id, "cancel"))


@command("advance")
def advance(
    driving: Driving,
    by: Annotated[str, typer.Argument(metavar="TIME", help="Such as 90s, 15m or 2h.", show_default=False)],
) -> None:
    """Move the emulator's clock on, with all that happens meanwhile; a speed divides the time."""
    _show(driving, driving.api.post("emulator", "advance", body={"by": by}))


@command("step")
def step(driving: Driving) -> None:
    """Move the emulator's clock on to the next thing that happens by itself."""
    _show(driving, driving.api.post("emulator", "step"))


@command("pause")
def pause(driving: Driving) -> None:
    """Let the emulator's clock stand still, until it is moved on or resumed."""
    _show(driving, driving.api.post("emulator", "pause"))


@command("resume")
def resume(driving: Driving) -> None:
    """Let the emulator's clock go on from where it stands."""
    _show(driving, driving.api.post("emulator", "resume"))


@command("fault")
def fault(
    driving: Driving,
    name: Annotated[str | None, typer.Argument(metavar="FAULT", show_default=False)] = None,
    off: Annotated[bool, typer.Option("--off", help="Switch it off; without a name, all.")] = False,
    amount: Annotated[str | None, typer.Option("--amount", metavar="TIME", help="How much, such as 2s.")] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="WHICH", help="polls, approvals or all.")] = None,
    count: Annotated[int | None, typer.Option("--times", metavar="N", help="So many requests meet it.")] = None,
    lasts: Annotated[str | None, typer.Option("--lasts", metavar="TIME", help="How long it is on.")] = None,
) -> None:
    """Switch a fault on or off."""
    if off:
        _show(driving, driving.api.delete("emulator", "faults", *([name] if name else [])))
        return
    if name is None:
        raise UsageError("which fault? `forenotice emulator faults` shows them, and --off switches all off")
    body = {"name": name, "amount": amount, "on": on, "times": count, "lasts": lasts}
    found = driving.api.post("emulator", "faults", body=body)
    if driving.out.json:
        driving.out.data(found)
        return
    driving.out.line(f"{name} is switched on for {_extent(found)}.")


@command("faults")
def faults(driving: Driving) -> None:
    """List the faults there are, and which of them are switched on."""
    found = driving.api.get("emulator", "faults")["items"]
    if driving.out.json:
        driving.out.data(found)
        return
    driving.out.table(
        ("fault", "switched on", "what a client sees"),
        ((each["name"], f"for {_extent(each['active'])}" if each["active"] else "", each["sees"]) for each in found),
        none="",
    )


@command("requests")
def requests(
    driving: Driving, last: Annotated[int, typer.Option("--last", metavar="N", min=1, help="So many.")] = LAST
) -> None:
    """List what guests have asked last, and how it was answered."""
    total = driving.api.get("emulator", "state")["requests"]
    found = list(driving.api.items("emulator", "requests", after=max(0, total - last)))[-last:]
    if driving.out.json:
        driving.out.data(found)
        return
    driving.out.table(
        ("at", "vm", "request", "answer", "why"),
        (
            (
                f"{times.read(each['at']):%H:%M:%S}",
                each["vm"],
                f"{each['method']} {each['target']}",
                each["status"] or "none",
                each["fault"] or each["reason"],
            )
            for each in found
        ),
        none="Nobody has asked yet.",
    )


@command("endpoint")
def endpoint(driving: Driving, vm: Annotated[str, typer.Argument(metavar="VM", show_default=False)]) -> None:
    """Open another port, at which every caller is this VM, and print its address."""
    found = driving.api.post("emulator", "endpoints", body={"vm": vm})
    if driving.out.json:
        driving.out.data(found)
        return
    driving.out.line(found["endpoint"])


@command("reset")
def reset(driving: Driving) -> None:
    """Forget events, scenario, faults and requests; the VMs stay."""
    _show(driving, driving.api.post("emulator", "reset"))


def _show(driving: Driving, found: View) -> None:
    out = driving.out
    if out.json:
        out.data(found)
        return
    scenario = found["scenario"]
    out.facts(
        {
            "clock": times.utc(times.read(found["now"])) + (", paused" if found["paused"] else ""),
            "speed": f"{found['speed']:g}" if found["speed"] != 1 else "",
            "endpoint": found["endpoint"],
            "callers are": found["as"],
            "VMs": [vm["name"] for vm in found["vms"]],
            "scenario": _played(scenario) if scenario else "",
            "faults": [f"{each['name']} for {_extent(each)}" for each in found["faults"]],
        }
    )
    _show_events(driving, found["events"], found["now"])


def _played(scenario: View) -> str:
    so_far = "all is played" if scenario["done"] else f"waits for {scenario['waiting_for']}"
    return f"{scenario['name']}, {so_far}"


def _show_events(driving: Driving, found: list[View], now: str, *, none: str = NONE_LIVE) -> None:
    driving.out.table(
        ("event", "type", "status", "resources", "not before", "approved by"),
        (
            (
                event["id"],
                event["type"],
                event["status"],
                event["resources"],
                times.told(event["not_before"], times.read(now)),
                event["approved_by"],
            )
            for event in found
        ),
        none=none,
    )


def _show_event(driving: Driving, event: View) -> None:
    if driving.out.json:
        driving.out.data(event)
        return
    told = f", not before {times.utc(times.read(event['not_before']))}" if event["status"] == "Scheduled" else ""
    driving.out.line(f"{event['type']} of {', '.join(event['resources'])} is {event['status']}{told}.")
    driving.out.line(f"  event {event['id']}")


def _never(event: View, what: str) -> str | None:
    """Why it will never come to that; empty: it has; None: it may yet."""
    status = event["status"]
    if what == "approved" and event["approved_at"] and not event["implied"]:
        return ""
    if status == "Scheduled":
        return None
    if what == "approved":
        return f"{status}: nobody approved it in time"
    if what == "started":
        return "Canceled: it never started" if status == "Canceled" else ""
    return "" if event["ended_at"] else None


def _seconds(written: str) -> float:
    try:
        return Span.read(written).total_seconds()
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None


def _extent(active: View) -> str:
    """`polls, amount 5 s, 3 times, until 10:20:00`"""
    parts = [f"{active['on']} requests" if active["on"] == "all" else active["on"]]
    if active["amount_seconds"] is not None:
        parts.append(f"amount {active['amount_seconds']:g} s")
    if active["times"] is not None:
        parts.append(f"{active['times']} times" if active["times"] > 1 else "once")
    if active["until"] is not None:
        parts.append(f"until {times.read(active['until']):%H:%M:%S}")
    return ", ".join(parts)


def _names(resources: str | None) -> list[str]:
    return [name.strip() for name in resources.split(",")] if resources else []


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{path} cannot be read: it is not UTF-8") from None
