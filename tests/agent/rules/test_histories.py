"""Whole lives of two events that share handlers: whatever happens and whenever the agent dies, the promises hold."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.agent.rules.builders import ME, T0, after, event
from tests.agent.rules.builders import rule as handler

from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Phase, Policy
from forenotice.agent.rules.saga import Progress, Saga, SagaIndex, State
from forenotice.agent.rules.transitions import Approve, Begin, Displace, Stop, View
from forenotice.client.events import Event

RULES = (
    handler("first", retries=1),
    handler("second", stage=1, retries=0),
    handler("lazy", stage=1, retries=0, blocks=False, lead=timedelta(seconds=890)),
)
BLOCKING = ("first", "second")
IDS = ("A", "B")
ids = st.sampled_from(IDS)


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = T0
        self.document: dict[str, Event] = {}
        self.sagas: dict[str, Saga] = {}
        self.running: dict[tuple[str, Phase, str], int] = {}
        self.stopping: set[tuple[str, Phase, str]] = set()
        self.displaced: set[tuple[str, Phase, str]] = set()
        self.runs: Counter[tuple[str, Phase, str]] = Counter()
        self.deaths: Counter[tuple[str, Phase, str]] = Counter()
        self.failures: Counter[tuple[str, Phase, str]] = Counter()
        self.approvals: set[str] = set()
        self.seen_started: set[str] = set()

    # The world

    @precondition(lambda self: len(self.sagas) < len(IDS))
    @rule(born_started=st.booleans())
    def announce(self, born_started: bool) -> None:
        name = IDS[len(self.sagas)]
        changes: dict[str, Any] = (
            {"status": "Started", "not_before": None}
            if born_started
            else {"not_before": after(900 - 850 * len(self.sagas))}
        )
        self.document[name] = event(id=name, **changes)
        self.sagas[name] = transitions.appeared(self.document[name], self.now)
        self.turn()

    @rule(name=ids)
    def start(self, name: str) -> None:
        if name in self.document:
            self.document[name] = event(id=name, status="Started", not_before=None)
            self.seen_started.add(name)
            self.turn()

    @rule(name=ids)
    def vanish(self, name: str) -> None:
        self.document.pop(name, None)
        self.turn()

    @rule(seconds=st.sampled_from([0.5, 5, 60, 700]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.turn()

    # Handlers and the endpoint

    @rule(data=st.data(), ok=st.booleans())
    def a_handler_ends(self, data: st.DataObject, ok: bool) -> None:
        if self.running:
            key = data.draw(st.sampled_from(sorted(self.running)))
            self.finish(key, ok=ok and key not in self.stopping)
            self.turn()

    @rule(rounds=st.integers(1, 4), fails=st.sampled_from(["", "", "second"]))
    def handlers_get_on(self, rounds: int, fails: str) -> None:
        for _ in range(rounds):
            for key in list(self.running):
                self.finish(key, ok=key[2] != fails and key not in self.stopping)
            self.turn()

    @rule(name=ids)
    def the_approval_arrives(self, name: str) -> None:
        if name in self.approvals:
            self.sagas[name] = transitions.approved(self.sagas[name], self.now)
            self.turn()

    @rule()
    def the_agent_dies(self) -> None:
        for key in self.running:
            self.deaths[key] += 1
        self.running.clear()
        self.stopping.clear()
        self.displaced.clear()
        self.sagas = {name: transitions.resumed(saga, "") for name, saga in self.sagas.items()}
        self.turn()

    def finish(self, key: tuple[str, Phase, str], *, ok: bool) -> None:
        name, phase, who = key
        del self.running[key]
        self.stopping.discard(key)
        self.failures[key] += not ok
        if key in self.displaced and not ok:
            self.displaced.discard(key)
            step = self.sagas[name].step(phase, who)
            assert step is not None
            self.sagas[name] = transitions.interrupted(self.sagas[name], step)
            return
        step = self.sagas[name].step(phase, who)
        assert step is not None
        known = next(rule for rule in RULES if rule.name == who)
        self.sagas[name] = transitions.ended(self.sagas[name], step, known, ok=ok, message="", now=self.now)

    def turn(self) -> None:
        others = SagaIndex(self.sagas.values())
        for name, saga in self.sagas.items():
            anew = SagaIndex(self.sagas.values())
            for what in ("busy", "held", "less_urgent", "owed"):
                assert getattr(others, what)(saga) == getattr(anew, what)(saga), "kept up to date"
            view = View(
                now=self.now,
                names=(ME,),
                listed=self.document.get(name),
                rules=RULES,
                policy=Policy(),
                busy=others.busy(saga),
                held=others.held(saga),
                less_urgent=others.less_urgent(saga),
                owed=others.owed(saga),
            )
            after, effects = transitions.advance(saga, view)
            assert transitions.advance(after, replace(view, may_approve=False))[0] == after, (
                "a turn is done when it is done"
            )
            self.sagas[name] = after
            others.update(after)
            for effect in effects:
                self.do(name, effect)

    def do(self, name: str, effect: transitions.Effect) -> None:
        saga = self.sagas[name]
        match effect:
            case Begin(step=step, deadline=deadline):
                key = (name, step.phase, step.handler)
                assert step in saga.steps, "written before it is done"
                assert deadline > self.now
                assert not any(who == step.handler for _, _, who in self.running), "one event at a time"
                if step.phase in (Phase.RECOVER, Phase.UNDO):
                    assert name not in self.document, "nothing is taken back while the event is listed"
                    needed = [other for other in self.sagas.values() if other.live and not other.state.returning]
                    assert not any(step.handler in other.prepared_by for other in needed), "nor what another needs"
                else:
                    assert name in self.document
                self.running[key] = step.attempt
                self.runs[key] += 1
            case Stop(step):
                self.stopping.add((name, step.phase, step.handler))
            case Displace(who):
                left = {key for key in self.running if key[0] != name and key[1:] == (Phase.PREPARE, who)}
                assert left
                self.stopping |= left
                self.displaced |= left
            case Approve():
                assert name in self.document
                assert saga.approving_at is not None
                for who in BLOCKING:
                    prepared = saga.step(Phase.PREPARE, who)
                    assert prepared is not None
                    assert prepared.progress is Progress.DONE, "never without success"
                self.approvals.add(name)

    # What always holds

    @invariant()
    def no_more_runs_than_reasons(self) -> None:
        for key, runs in self.runs.items():
            assert runs <= 1 + self.deaths[key] + self.failures[key], key

    @invariant()
    def the_way_back_is_the_right_one(self) -> None:
        for name, saga in self.sagas.items():
            if saga.state is State.UNDOING:
                assert name not in self.seen_started
                assert name not in self.approvals
            ways = [step.handler for step in saga.steps if step.phase in (Phase.RECOVER, Phase.UNDO)]
            assert len(ways) == len(set(ways)), "each takes one way back"

    def teardown(self) -> None:
        """At last all is gone and everybody answers: nothing stays prepared, and nothing is taken back twice."""
        self.document.clear()
        self.turn()
        for _ in range(50):
            for key in list(self.running):
                self.finish(key, ok=True)
            self.now += timedelta(seconds=60)
            self.turn()
        for saga in self.sagas.values():
            assert saga.state is State.DONE, saga
        for who in (known.name for known in RULES):
            prepared = [saga for saga in self.sagas.values() if who in saga.prepared_by]
            back = [
                step
                for saga in prepared
                for step in saga.steps
                if step.handler == who and step.phase in (Phase.RECOVER, Phase.UNDO)
            ]
            assert len(back) == len(prepared)
            if prepared:
                assert any(step.progress is not Progress.PASSED_ON for step in back)


@pytest.mark.drawn
def test_what_always_holds_holds_over_random_lives() -> None:
    run_state_machine_as_test(Lives, settings=settings(max_examples=100, stateful_step_count=40, deadline=None))
