"""What happens in an emulator, as it happens: one sentence each, for people or as JSON."""

import itertools
from collections.abc import Callable, Iterator, Mapping

from forenotice.core.journal import Entry
from forenotice.core.operations import Event
from forenotice.emulator.command.foreground import Happening
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.playing import Note, Player
from forenotice.emulator.requests import Requested
from forenotice.emulator.stage import Stage

LOOK = 0.2
"""Seconds at most until requests are looked at, which change nothing by themselves."""

SENTENCES: Mapping[str, Callable[[Event], str]] = {
    "event.scheduled": lambda event: f"is announced, not before {event.not_before:%H:%M:%S} ({event.id})",
    "event.approved": lambda event: f"is approved by {event.approved_by}",
    "event.silence_withdrawn": lambda _: "is no longer approved by silence: somebody listens",
    "event.started": lambda _: "is started",
    "event.completed": lambda _: "is gone",
    "event.canceled": lambda _: "is cancelled and gone",
    "event.failed": lambda _: "has failed and is gone",
}


class Teller:
    """Remembers what it has told."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._stage: Stage | None = None
        self._entry: Entry | None = None
        self._request: Requested | None = None
        self._player: Player | None = None
        self._note: Note | None = None
        self._waits = ""
        self._faults: set[str] = set()
        self._paused = False

    def wait(self) -> list[Happening]:
        """What is new, in order of time, or nothing for a while."""
        found: list[Happening] = []

        def look() -> bool:
            found.extend(self._new())
            return bool(found)

        self._emulator.wait_for(look, LOOK)
        return sorted(found, key=lambda each: each.at)

    def _new(self) -> Iterator[Happening]:
        yield from self._of_stage()
        if self._emulator.stage is not self._stage:
            yield from self._begin_stage()
            yield from self._of_stage()
        yield from self._of_clock()
        yield from self._of_faults()
        yield from self._of_requests()
        if self._player is not None:
            yield from self._of_player(self._player)

    def _begin_stage(self) -> Iterator[Happening]:
        first = self._stage is None
        self._stage, self._entry = self._emulator.stage, None
        self._player, self._note, self._waits = self._emulator.player, None, ""
        now = min(entry.at for entry in self._stage.entries)
        if self._player is not None:
            scenario = self._player.scenario
            yield Happening(
                at=now,
                action="scenario.started",
                said=f"{scenario.name} is played: {scenario.title}; callers are {scenario.caller}",
                facts={"scenario": scenario.name, "as": scenario.caller},
            )
        elif not first:
            yield Happening(at=now, action="emulator.reset", said="all is reset: no events, no faults")

    def _of_stage(self) -> Iterator[Happening]:
        if self._stage is None or not self._stage.entries:
            return
        last = self._entry
        newest_first = itertools.takewhile(lambda entry: entry is not last, reversed(self._stage.entries))
        self._entry = self._stage.entries[-1]
        for entry in reversed(list(newest_first)):
            if entry.event is not None and entry.action in SENTENCES:
                yield _of_event(entry, self._stage.event(entry.event))

    def _of_clock(self) -> Iterator[Happening]:
        paused = self._emulator.clock.stands and not self._emulator.clock.virtual
        if paused != self._paused:
            self._paused = paused
            word, said = ("paused", "stands still") if paused else ("resumed", "goes on")
            yield Happening(at=self._emulator.clock.now(), action=f"clock.{word}", said=f"the clock {said}")

    def _of_requests(self) -> Iterator[Happening]:
        """Only those that met a fault: a handler that polls would drown all else."""
        requests = self._emulator.requests
        if not len(requests):
            return
        kept, last = requests.all, self._request
        self._request = kept[-1]
        for request in reversed(list(itertools.takewhile(lambda each: each is not last, reversed(kept)))):
            if request.fault is not None:
                answer = request.status or "nothing"
                yield Happening(
                    at=request.at,
                    action="fault.met",
                    said=f"{request.method} of {request.vm or 'a stranger'} met {request.fault}, answered {answer}",
                    facts={"fault": request.fault, "vm": request.vm, "status": request.status},
                )

    def _of_faults(self) -> Iterator[Happening]:
        active = {each.fault.name for each in self._emulator.faults.active}
        now = self._emulator.clock.now()
        for name in sorted(self._faults - active):
            yield Happening(at=now, action="fault.over", said=f"{name} is over", facts={"fault": name})
        for name in sorted(active - self._faults):
            yield Happening(at=now, action="fault.began", said=f"{name} is switched on", facts={"fault": name})
        self._faults = active

    def _of_player(self, player: Player) -> Iterator[Happening]:
        last = self._note
        newest_first = itertools.takewhile(lambda note: note is not last, reversed(player.notes))
        for note in reversed(list(newest_first)):
            self._note = note
            verb = note.step.act.verb
            yield Happening(at=note.at, action="scenario.differs", said=f"step {verb!r}: {note.said}")
        # Its last events go on when all is played.
        lasts = player.done and self._emulator.stage.live
        if player.waiting_for == self._waits or lasts:
            return
        self._waits = player.waiting_for
        now = self._emulator.clock.now()
        if player.done:
            said = "the scenario is over; the emulator goes on until Ctrl-C"
            yield Happening(at=now, action="scenario.ended", said=said)
        else:
            yield Happening(at=now, action="scenario.waits", said=f"the scenario waits for {self._waits}")


def _of_event(entry: Entry, event: Event) -> Happening:
    return Happening(
        at=entry.at,
        action=entry.action,
        said=f"{event.type} of {', '.join(event.resources)} {SENTENCES[entry.action](event)}",
        facts={
            "event": event.id,
            "type": str(event.type),
            "resources": list(event.resources),
            "not_before": event.not_before.isoformat().replace("+00:00", "Z"),
            "approved_by": event.approved_by,
        },
    )
