"""For tests: the real endpoint in this process, events at will, and assertions on what a handler did."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Literal, Self

from notbefore.core.operations import Kind
from notbefore.emulator.announced import AnnouncedEvent
from notbefore.emulator.emulator import Emulator
from notbefore.emulator.performance import Performance
from notbefore.emulator.requests import Requests
from notbefore.emulator.stage import Announcement
from notbefore.settings.spans import Span
from notbefore.wire import versions

Duration = str | timedelta
"""`"15m"`, or a timedelta."""

AS_VM = "web-0"
SHORT = timedelta(seconds=2)
"""How long Started lasts in a test that does not say: as short as it may be."""


class ScheduledEvents:
    """A context manager; as a fixture it is called `scheduled_events`.

    Time is real by default; `speed` divides every duration. With `time="virtual"` nothing happens by itself: the clock
    stands until `advance`, and documents and the Date say so.
    """

    def __init__(
        self,
        *,
        as_vm: str = AS_VM,
        vms: Iterable[str] | Mapping[str, int] = (),
        time: Literal["real", "virtual"] = "real",
        speed: float = 1,
    ) -> None:
        """Whoever asks is `as_vm`; `vms` are others of its group, perhaps with the update domain of each."""
        self._emulator = Emulator(as_vm=as_vm, virtual=_is_virtual(time), speed=speed)
        domains = vms if isinstance(vms, Mapping) else dict.fromkeys(vms, 0)
        for name, domain in domains.items():
            self._emulator.stage.add_vm(name, self.now, update_domain=domain)
        self._endpoints: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._emulator.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._emulator.stop()

    # Where, who, when

    @property
    def endpoint(self) -> str:
        """For `NOTBEFORE_ENDPOINT`."""
        return f"http://{self._emulator.address}"

    @property
    def url(self) -> str:
        return _url(self.endpoint)

    @property
    def as_vm(self) -> str:
        return self._emulator.as_vm

    def endpoint_of(self, vm: str) -> str:
        """Another port, at which every caller is this VM."""
        if vm not in self._endpoints:
            self._endpoints[vm] = f"http://{self._emulator.open(vm)}"
        return self._endpoints[vm]

    def url_of(self, vm: str) -> str:
        return _url(self.endpoint_of(vm))

    @property
    def now(self) -> datetime:
        return self._emulator.clock.now()

    # What is to happen

    def reboot(self, *vms: str, notice: Duration | None = None, takes: Duration = SHORT) -> AnnouncedEvent:
        """As a user asks for it. Without names it is about the VM that asks."""
        return self.announce(Kind.RESTART, *vms, notice=notice, takes=takes)

    def redeploy(self, *vms: str, notice: Duration | None = None, takes: Duration = SHORT) -> AnnouncedEvent:
        """As a user asks for it."""
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
        """Any kind of operation (`live-migration`, `host-reboot`, ...), with any notice; by default its least."""
        announcement = Announcement(
            kind=Kind(kind),
            resources=vms or (self.as_vm,),
            notice=None if notice is None else _span(notice),
            takes=_span(takes),
            description=description,
            duration=duration,
        )
        return AnnouncedEvent(self._emulator, self._emulator.announce(announcement))

    def play(self, scenario: str | Path, *, resources: Iterable[str] = (), seed: int | None = None) -> Performance:
        """One of the catalogue, or a file. It starts afresh: events that were there before are gone."""
        return Performance.begin(self._emulator, scenario, tuple(resources), seed)

    def advance(self, span: Duration) -> None:
        """Move the clock on; all that is due meanwhile has happened when this returns."""
        self._emulator.advance(_span(span))

    @property
    def events(self) -> list[AnnouncedEvent]:
        """Those that documents show now."""
        return [AnnouncedEvent(self._emulator, event) for event in self._emulator.stage.live]

    def fault(
        self,
        name: str,
        *,
        amount: Duration | None = None,
        on: Literal["polls", "approvals", "all"] | None = None,
        times: int | None = None,
        lasts: Duration | None = None,
    ) -> "SwitchedOn":
        """From now on; used with `with`, until the end of the block."""
        self._emulator.switch_on(
            name,
            amount=None if amount is None else _span(amount),
            on=on,
            times=times,
            lasts=None if lasts is None else _span(lasts),
        )
        return SwitchedOn(self._emulator, name)

    def clear_faults(self) -> None:
        self._emulator.switch_off()

    def reset(self) -> None:
        """No events, no faults, no requests; the VMs stay."""
        self._emulator.reset()

    # What the handler did

    @property
    def requests(self) -> Requests:
        """Everything that was asked, with its answer."""
        return self._emulator.requests

    def assert_polled_at_least(self, hz: float = 1) -> None:
        """Never silent for longer than half as long again as it may be, from the first poll until now."""
        polls = self.requests.polls
        if not polls:
            raise AssertionError(f"there was to be a poll every {1 / hz:g} s, but there was none at all")
        ends = [poll.answered for poll in polls]
        begins = [poll.monotonic for poll in polls[1:]] + [monotonic()]
        longest = max(begin - end for end, begin in zip(ends, begins, strict=True))
        if longest > 1.5 / hz:
            silence = f"for {longest:.1f} s there was none ({len(polls)} polls in all)"
            raise AssertionError(f"there was to be a poll every {1 / hz:g} s, but {silence}")


class SwitchedOn:
    """A fault."""

    def __init__(self, emulator: Emulator, name: str) -> None:
        self._emulator = emulator
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._emulator.switch_off(self.name)


def _is_virtual(time: str) -> bool:
    if time not in ("real", "virtual"):
        raise ValueError(f'time is "real" or "virtual", not {time!r}')
    return time == "virtual"


def _span(written: Duration) -> timedelta:
    return written if isinstance(written, timedelta) else Span.read(written)


def _url(endpoint: str) -> str:
    return f"{endpoint}/metadata/scheduledevents?api-version={versions.NEWEST.name}"
