"""Events, rules and views for tests of the agent's rules."""

from datetime import UTC, datetime, timedelta
from typing import Any

from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Phase, Policy, Rule
from forenotice.agent.rules.saga import Saga, State, Step
from forenotice.agent.rules.transitions import Effect, View
from forenotice.client.events import Event
from forenotice.wire import dates

T0 = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
ME = "web-0"
ALL = frozenset(Phase)


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def event(**changes: Any) -> Event:
    not_before = changes.pop("not_before", after(900))
    given: dict[str, Any] = {
        "id": "E1",
        "status": "Scheduled",
        "type": "Reboot",
        "resources": (ME,),
        "source": "User",
        "not_before_text": dates.http(not_before) if not_before else "",
    }
    return Event(**{**given, **changes})


def started(**changes: Any) -> Event:
    return event(status="Started", not_before=None, **changes)


def rule(name: str = "drain", **changes: Any) -> Rule:
    return Rule(**{"name": name, "phases": ALL, **changes})


class Story:
    """One event told step by step; handlers and the endpoint answer when the test says so."""

    def __init__(self, *rules: Rule, policy: Policy | None = None, at: Event | None = None, lost: bool = False) -> None:
        self.rules = rules or (rule(),)
        self.policy = policy or Policy()
        self.now = T0
        self.boot = ""
        self.saga: Saga = transitions.appeared(at or event(), T0, (ME,), lost=lost)
        self.listed: Event | None = self.saga.event
        self.more: dict[str, Any] = {}

    @property
    def state(self) -> State:
        return self.saga.state

    def turn(self, *listed: Event | None, **more: Any) -> list[Effect]:
        """With the event as it is listed from now on, if that changes; None: it is gone."""
        if listed:
            (self.listed,) = listed
        view = View(
            now=self.now,
            listed=self.listed,
            rules=self.rules,
            policy=self.policy,
            boot=self.boot,
            **{"names": (ME,), **self.more, **more},
        )
        self.saga, effects = transitions.advance(self.saga, view)
        return list(effects)

    def begun(self, *listed: Event | None, **more: Any) -> list[str]:
        """What this turn begins, as `phase handler`."""
        effects = self.turn(*listed, **more)
        return [f"{e.step.phase} {e.step.handler}" for e in effects if isinstance(e, transitions.Begin)]

    def begin(self) -> transitions.Begin:
        """The one effect of this turn."""
        [begin] = self.turn()
        assert isinstance(begin, transitions.Begin)
        return begin

    def step(self, phase: Phase, name: str = "drain") -> Step:
        step = self.saga.step(phase, name)
        assert step is not None
        return step

    def end(self, phase: Phase, name: str = "drain", *, ok: bool = True, message: str = "") -> None:
        known = next((rule for rule in self.rules if rule.name == name), None)
        step = self.step(phase, name)
        self.saga = transitions.ended(self.saga, step, known, ok=ok, message=message, now=self.now)

    def finish(self, phase: Phase, name: str = "drain", *, ok: bool = True, message: str = "") -> list[Effect]:
        """A handler ends, and the next turn."""
        self.end(phase, name, ok=ok, message=message)
        return self.turn()

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def approve(self) -> None:
        self.saga = transitions.approved(self.saga, self.now)

    def die(self) -> None:
        self.saga = transitions.resumed(self.saga, "")
