"""The emulator in the hands of whoever drives it over HTTP."""

from dataclasses import replace
from pathlib import Path

from forenotice.core.explanations import Explanation
from forenotice.core.operations import Event
from forenotice.emulator.announcing import Announcement
from forenotice.emulator.control import models
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.scenarios import catalogue, reading, rehearsing
from forenotice.emulator.scenarios.format import Scenario

BY = "operator"
"""Who approves in place of the guests."""


class Driver:
    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.endpoints: dict[str, str] = {}
        """That were opened, by the VM that callers are there."""
        self.own: dict[str, Scenario] = {}
        """The scenario that was played last of those that are not in the catalogue, by its key."""
        self.remember()

    def play(self, asked: models.Play, *, paused: bool | None = None) -> Scenario:
        """With a clock that stands, or goes; None: as it is."""
        scenario = _scenario(asked)
        if paused is not None:
            (self.emulator.pause if paused else self.emulator.resume)()
        self.emulator.play(scenario)
        self.remember()
        return scenario

    def remember(self) -> None:
        """What is played, should it be wanted again."""
        player = self.emulator.player
        if player is not None and (key := key_of(player.scenario)) not in catalogue.names():
            self.own = {key: player.scenario}

    def announce(self, asked: models.NewEvent) -> Event:
        return self.emulator.announce(
            Announcement(
                kind=asked.kind,
                resources=asked.resources or (self.emulator.as_vm,),
                notice=asked.notice,
                takes=asked.takes,
                description=asked.description,
                duration=asked.duration_seconds,
            )
        )

    def event(self, event_id: str) -> Event:
        return self.emulator.change(lambda _: self.emulator.stage.event(event_id))

    def explain(self, event_id: str) -> Explanation:
        """With what guests were refused since it was announced: that may be why nobody approves it."""
        found = self.emulator.change(lambda now: self.emulator.stage.explain(event_id, now))
        refusals = self.emulator.requests.refusals(self.event(event_id).created_at)
        if not found.waiting_for or not refusals:
            return found
        return replace(found, sentences=(*found.sentences, f"{refusals.removeprefix('; ').rstrip('.')}."))

    def events(self, *, live: bool | None) -> list[Event]:
        """Oldest first."""
        found = self.emulator.change(lambda _: self.emulator.stage.events)
        return [event for event in found if live in (None, event.status.live)]

    def approve(self, event_id: str) -> Event:
        self.emulator.approve(event_id, BY)
        return self.event(event_id)

    def cancel(self, event_id: str) -> Event:
        self.emulator.cancel(event_id)
        return self.event(event_id)

    def endpoint_of(self, vm: str) -> str:
        """Where every caller is this VM."""
        if vm not in self.endpoints:
            self.endpoints[vm] = f"http://{self.emulator.open(vm)}"
        return self.endpoints[vm]


def key_of(scenario: Scenario) -> str:
    """By which it is picked: its name, but for a file of somebody's own that is called as one of ours."""
    name = scenario.name
    if name in catalogue.names() and scenario.text.content != catalogue.load(name).text.content:
        return f"{name}.toml"
    return name


def _scenario(asked: models.Play) -> Scenario:
    if set(asked.scenario) & {"=", "\n"}:
        scenario = reading.read(asked.scenario, asked.source, name=Path(asked.source).stem)
    else:
        scenario = catalogue.load(asked.scenario)
    if asked.resources:
        scenario = scenario.on(asked.resources)
    if asked.seed is not None:
        scenario = replace(scenario, seed=asked.seed)
    return rehearsing.check(scenario)
