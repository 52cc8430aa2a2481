"""For tests: the real endpoint in this process, events at will, and assertions on what a handler did."""

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal, Self

from forenotice.core import errors, fleet, timing
from forenotice.core.operations import Kind
from forenotice.emulator import faults
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.request_log import RequestLog
from forenotice.emulator.scenarios import catalogue
from forenotice.emulator.simulation import Announcement
from forenotice.emulator.testing.event import AnnouncedEvent
from forenotice.emulator.testing.playback import Playback
from forenotice.settings.values import SPEED_MAX, SPEED_MIN, Span
from forenotice.toml import nearest
from forenotice.views.emulator import KINDS
from forenotice.wire import versions

Duration = str | timedelta
"""`"15m"`, or a timedelta."""

AS_VM = "web-0"
SHORT = timedelta(seconds=2)
"""How long Started lasts in a test that does not say: as short as it may be."""
EPOCH = 1970


class ScheduledEvents:
    """A context manager; as a fixture it is called `scheduled_events`.

    Time is real by default; `speed` divides every duration. With `time="virtual"` nothing happens by itself: the clock
    stands until `advance`, and documents and the Date say so.
    """

    def __init__(
        self,
        *,
        as_vm: str = AS_VM,
        vms: str | Iterable[str] | Mapping[str, int] = (),
        time: Literal["real", "virtual"] = "real",
        start: str | datetime | None = None,
        speed: float = 1,
    ) -> None:
        """Every caller is `as_vm`; `vms` are other VMs of its group, perhaps with the update domain of each. `start` is
        where virtual time begins, else now."""
        if time not in ("real", "virtual"):
            raise errors.RefusedError(f'time is "real" or "virtual", not {time!r}')
        if not isinstance(speed, int | float) or not SPEED_MIN <= speed <= SPEED_MAX:
            bounds = f"a number from {SPEED_MIN} to {SPEED_MAX}"
            raise errors.RefusedError(f"speed is how many times as fast: {bounds}, not {speed!r}")
        if start is not None and time != "virtual":
            raise errors.RefusedError('start is for virtual time: give time="virtual" too')
        domains = vms if isinstance(vms, Mapping) else dict.fromkeys(_names(vms), 0)
        self._domains = {_vm(name): _domain(name, domain) for name, domain in domains.items()}
        self._as_vm = _vm(as_vm)
        self._virtual = time == "virtual"
        self._start = None if start is None else _moment(start)
        self._speed = speed
        self._last: Emulator | None = None
        self._runs = False
        self._endpoints: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._runs:
            raise errors.RefusedError("it runs already: use another ScheduledEvents beside it")
        emulator = Emulator(as_vm=self._as_vm, virtual=self._virtual, start=self._start, speed=self._speed)
        emulator.start()
        try:
            for name, domain in self._domains.items():
                emulator.change(partial(emulator.simulation.add_vm, name, update_domain=domain))
        except BaseException:
            emulator.stop()
            raise
        self._last = emulator
        self._runs = True
        self._endpoints.clear()
        return self

    def __exit__(self, *_: object) -> None:
        emulator = self._running
        self._runs = False
        emulator.stop()

    @property
    def _emulator(self) -> Emulator:
        if self._last is None:
            raise errors.RefusedError(
                "nothing is emulated yet: use it as `with ScheduledEvents() as scheduled_events:`"
            )
        return self._last

    @property
    def _running(self) -> Emulator:
        """What has ended can be looked at, but no more."""
        emulator = self._emulator
        if not self._runs:
            raise errors.RefusedError("it has ended: do this within its `with` block")
        return emulator

    # Where, who, when

    @property
    def endpoint(self) -> str:
        """For `FORENOTICE_ENDPOINT`."""
        return f"http://{self._emulator.address}"

    @property
    def url(self) -> str:
        return _url(self.endpoint)

    @property
    def as_vm(self) -> str:
        return self._emulator.as_vm

    def endpoint_of(self, vm: str) -> str:
        """Another port, at which every caller is this VM."""
        emulator = self._running
        if vm not in self._endpoints:
            self._endpoints[vm] = f"http://{emulator.open(vm)}"
        return self._endpoints[vm]

    def url_of(self, vm: str) -> str:
        return _url(self.endpoint_of(vm))

    @property
    def now(self) -> datetime:
        return self._emulator.clock.now()

    # What is to happen

    def reboot(self, *vms: str, notice: Duration | None = None, takes: Duration = SHORT) -> AnnouncedEvent:
        """Requested by a user. Without names, the event names the VM that callers are."""
        return self.announce(Kind.RESTART, *vms, notice=notice, takes=takes)

    def redeploy(self, *vms: str, notice: Duration | None = None, takes: Duration = SHORT) -> AnnouncedEvent:
        """Requested by a user."""
        return self.announce(Kind.REDEPLOY, *vms, notice=notice, takes=takes)

    def freeze(self, *vms: str, notice: Duration | None = None, takes: Duration = SHORT) -> AnnouncedEvent:
        """Maintenance of the host."""
        return self.announce(Kind.HOST_UPDATE, *vms, notice=notice, takes=takes)

    def preempt(self, *vms: str, notice: Duration | None = None, takes: Duration = SHORT) -> AnnouncedEvent:
        """The eviction of a spot VM."""
        return self.announce(Kind.EVICTION, *vms, notice=notice, takes=takes)

    def terminate(self, *vms: str, notice: Duration | None = None, takes: Duration = SHORT) -> AnnouncedEvent:
        """A deletion."""
        return self.announce(Kind.DELETION, *vms, notice=notice, takes=takes)

    def fail(self, *vms: str, takes: Duration = SHORT) -> AnnouncedEvent:
        """Hardware fails: Started at once."""
        return self.announce(Kind.HARDWARE_FAILURE, *vms, takes=takes)

    def announce(
        self,
        kind: Kind | str,
        *vms: str,
        notice: Duration | None = None,
        takes: Duration = SHORT,
        description: str | None = None,
        duration: int | None = None,
    ) -> AnnouncedEvent:
        """Any kind of operation (`live-migration`, `host-reboot`, ...), or what people call it (`reboot`), with any
        notice; by default its least."""
        known = KINDS.get(str(kind).lower())
        if known is None:
            raise errors.RefusedError(nearest(str(kind), list(KINDS), "kind of event"))
        announcement = Announcement(
            kind=known,
            resources=tuple(map(_vm, vms)) or (self.as_vm,),
            notice=None if notice is None else _span(notice),
            takes=_span(takes),
            description=description,
            duration=duration,
        )
        return AnnouncedEvent(self._running, self._running.announce(announcement))

    def play(self, scenario: str | Path, *, resources: str | Iterable[str] = (), seed: int | None = None) -> Playback:
        """One of the catalogue, or a file, perhaps with other VMs in place of its own. It starts afresh: what was there
        before is gone, and every caller is the VM that the scenario names."""
        emulator = self._running
        playback = Playback(emulator, emulator.play(catalogue.load_any(str(scenario), _names(resources), seed)))
        # A VM that is not in the scenario is gone, until its endpoint is requested again.
        self._endpoints.clear()
        return playback

    def advance(self, span: Duration) -> None:
        """Move the clock on; all that is due meanwhile has happened when this returns."""
        self._running.advance(_span(span))

    @property
    def events(self) -> list[AnnouncedEvent]:
        """Those that documents show now."""
        emulator = self._emulator
        return [AnnouncedEvent(emulator, event) for event in emulator.look(lambda: emulator.simulation.live)]

    def fault(
        self,
        name: str,
        *,
        amount: Duration | None = None,
        on: Literal["polls", "approvals", "all"] | None = None,
        times: int | None = None,
        lasts: Duration | None = None,
    ) -> "FaultHandle":
        """From now on; used with `with`, until the end of the block."""
        self._running.switch_on(
            name,
            amount=faults.Amount.read(amount) if isinstance(amount, str) else amount,
            on=on,
            times=times,
            lasts=None if lasts is None else _span(lasts),
        )
        return FaultHandle(self._emulator, name)

    def clear_faults(self) -> None:
        self._running.switch_off()

    def reset(self) -> None:
        """No events, no faults, no requests; the VMs stay."""
        self._running.reset()

    # What the handler did

    @property
    def requests(self) -> RequestLog:
        return self._emulator.requests

    def assert_polled_at_least(self, hz: float = 1, *, by: str | None = None) -> None:
        """From its first poll until now the VM (`as_vm`, unless another is named) was never silent for longer than half
        as long again as it may be. A VM that waits for a response is not silent. A poll that was refused counts
        only where a fault refused it."""
        __tracebackhide__ = True
        if not isinstance(hz, int | float) or not 0 < hz < math.inf:
            raise errors.RefusedError(f"hz is how often a second: a number above 0, not {hz!r}")
        vm = by or self.as_vm
        # In this order: one that is answered meanwhile is seen twice rather than never.
        held = [since for name, since in self._running.polls_under_way() if name == vm]
        polls = [poll for poll in self.requests.polls if poll.vm == vm and not poll.is_refused]
        begins = sorted([*(poll.monotonic for poll in polls), *held])
        expected = f"{vm} was to poll every {1 / hz:g} s, but"
        if not begins:
            raise AssertionError(f"{expected} it did not poll at all{self.requests.refusals()}")
        now = self._emulator.runtime.monotonic()
        ends = sorted([*(poll.answered for poll in polls), *(now for _ in held)])
        longest = max(begin - end for end, begin in zip(ends, [*begins[1:], now], strict=True))
        if longest > 1.5 / hz:
            raise AssertionError(
                f"{expected} once it was silent for {longest:.1f} s ({len(begins)} polls in all)"
                f"{self.requests.refusals()}"
            )


class FaultHandle:
    """A fault."""

    def __init__(self, emulator: Emulator, name: str) -> None:
        self._emulator = emulator
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._emulator.switch_off(self.name)


def _vm(name: object) -> str:
    if not isinstance(name, str):
        raise errors.RefusedError(f"{str(name)[:80]} is not a VM name: give names such as web-0, each by itself")
    return fleet.require_name("VM", name)


def _domain(name: str, domain: object) -> int:
    if not isinstance(domain, int):
        raise errors.RefusedError(f"{name} is in update domain 0, 1 and so on, not {domain!r:.80}")
    return domain


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _span(written: Duration) -> timedelta:
    return written if isinstance(written, timedelta) else Span.read(written)


def _moment(start: str | datetime) -> datetime:
    try:
        found = timing.require_aware(datetime.fromisoformat(str(start)))
    except (OverflowError, ValueError):
        found = None
    if found is None or found.microsecond or found.year < EPOCH:
        right = f"a whole second with its zone, from {EPOCH} on, such as 2026-01-31T12:00:00Z"
        raise errors.RefusedError(f"start is {right}, not {start!s:.80}")
    return found


def _url(endpoint: str) -> str:
    return f"{endpoint}/metadata/scheduledevents?api-version={versions.NEWEST.name}"
