"""Faults are switched on and off, last as long as they are told to, and refuse what makes no sense."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.emulator.faulty import SHORT, MovingClock

from forenotice.core import errors
from forenotice.emulator import faults
from forenotice.emulator.active_faults import NO_FAULTS, Faults
from forenotice.emulator.faults import Fault, On

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
MINUTE = timedelta(minutes=1)


class Switched:
    def __init__(self, speed: float = 1) -> None:
        self.clock = MovingClock()
        self.faults = Faults(self.clock, speed=speed)

    def on(
        self,
        name: str,
        *,
        amount: timedelta | None = None,
        on: str | None = None,
        times: int | None = None,
        lasts: timedelta | None = None,
    ) -> None:
        self.faults.switch_on(name, amount=amount, on=on, times=times, lasts=lasts, now=self.clock.now())

    @property
    def names(self) -> list[str]:
        return [active.fault.name for active in self.faults.active]


@pytest.mark.parametrize("fault", faults.ALL, ids=lambda fault: fault.name)
def test_every_fault_can_be_switched(fault: Fault) -> None:
    switched = Switched()
    switched.on(fault.name)
    (active,) = switched.faults.active
    assert active.on is fault.on
    assert active.amount == (fault.amount or timedelta(0))
    met = switched.faults.apply(On.POLLS)
    assert met.names == fault.name
    switched.faults.switch_off(fault.name)
    assert switched.faults.apply(On.POLLS) is NO_FAULTS


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("latency", {"amount": timedelta(minutes=11)}, "give at most 10m"),
        ("latency", {"amount": -MINUTE}, "cannot be negative"),
        ("frozen", {"lasts": timedelta(hours=1)}, "give at most 10m"),
        ("frozen", {"amount": timedelta(0)}, "frozen cannot last no time: give a duration such as 5s"),
        ("frozen", {"amount": MINUTE, "lasts": MINUTE}, "frozen lasts for its amount: give one of the two"),
        ("clock-skew", {"amount": -timedelta(days=367)}, "give at most 366d"),
        ("reset", {"amount": MINUTE}, "reset has no amount: leave it out"),
        ("reset", {"times": 0}, "give 1 or more"),
        ("reset", {"lasts": timedelta(0)}, "give a duration such as 30s"),
        ("reset", {"on": "puts"}, "requests are polls, approvals, all, not 'puts'"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, options: dict[str, object], message: str) -> None:
    switched = Switched()
    with pytest.raises(errors.RefusedError, match=message):
        switched.on(name, **options)  # type: ignore[arg-type]
    assert not switched.faults.active


def test_times_are_counted_by_those_who_meet_it() -> None:
    switched = Switched()
    switched.on("error-500", times=2, on="approvals")
    switched.on("iso-dates", times=1)
    assert switched.faults.apply(On.ALL).names is None
    assert switched.faults.apply(On.APPROVALS).names == "error-500"
    (first, _) = switched.faults.active
    assert first.times == 1
    assert switched.faults.apply(On.POLLS).names == "iso-dates"
    assert switched.faults.apply(On.APPROVALS).names == "error-500"
    assert switched.faults.active == ()


def test_an_error_leaves_times_to_those_who_see_documents() -> None:
    switched = Switched()
    switched.on("iso-dates", times=1)
    switched.on("error-500", times=1)
    assert switched.faults.apply(On.POLLS).names == "error-500"
    assert switched.faults.apply(On.POLLS).names == "iso-dates"


def test_what_lasts_is_over_by_the_emulators_clock() -> None:
    switched = Switched()
    switched.on("reset", lasts=MINUTE)
    switched.on("stale-document")
    switched.clock.moved += timedelta(seconds=50)
    assert switched.names == ["reset"]
    switched.clock.moved += timedelta(seconds=10)
    assert switched.faults.apply(On.POLLS).names is None
    assert switched.names == []


def test_once_more_is_anew() -> None:
    switched = Switched()
    switched.on("latency", times=1)
    switched.on("reset")
    switched.on("latency", amount=SHORT)
    assert switched.names == ["reset", "latency"]
    assert switched.faults.active[1].times is None
    switched.faults.switch_off()
    assert switched.names == []


def test_defaults_follow_the_speed_and_what_is_given_does_not() -> None:
    switched = Switched(speed=60)
    switched.on("slow-first-answer")
    switched.on("latency", amount=SHORT)
    switched.on("stale-document")
    first, second, third = switched.faults.active
    assert first.amount == timedelta(seconds=2)
    assert second.amount == SHORT
    assert third.until is not None
    assert third.until - switched.clock.now() <= timedelta(seconds=50) / 60


@pytest.mark.parametrize("speed", [0.5, 7])
def test_limits_follow_the_speed(speed: float) -> None:
    switched = Switched(speed=speed)
    switched.on("frozen", amount=timedelta(minutes=10) / speed)
    with pytest.raises(errors.RefusedError, match="give at most 10m"):
        switched.on("latency", amount=timedelta(minutes=11) / speed)
    assert switched.names == ["frozen"]


@pytest.mark.parametrize(("text", "span"), [("2s", timedelta(seconds=2)), ("-5m", -timedelta(minutes=5))])
def test_amounts_are_read_with_their_sign(text: str, span: timedelta) -> None:
    assert faults.Amount.read(text) == span
    with pytest.raises(ValueError, match="is not a duration"):
        faults.Amount.read(f"-{text}x")


def test_the_page_is_the_table() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert rows == [f"| `{fault.name}` | {fault.symptom} | {fault.evidence} |" for fault in faults.ALL]


def test_the_page_says_who_meets_what() -> None:
    for_polls = ", ".join(f"`{fault.name}`" for fault in faults.ALL if fault.on is On.POLLS)
    assert f"are on `polls`: {for_polls}. The others are on `all`." in PAGE.read_text()
    assert not [fault.name for fault in faults.ALL if fault.on is On.APPROVALS]
