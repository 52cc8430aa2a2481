"""Long random histories of random fleets with several rollouts at once, among all that happens otherwise."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, run_state_machine_as_test
from tests.core.builders import HOUR, MINUTE, Site
from tests.core.random_fleets import WINDOWS, policies, sites
from tests.core.test_histories import POLICIES, SETTINGS, Histories

from forenotice.core.blockers import Blocker, BlockerKind, announcement_blockers, start_blockers
from forenotice.core.fleet import Policy
from forenotice.core.operations import Status
from forenotice.core.rollouts import KINDS, Options, RolloutStatus

OPTIONS = st.builds(
    Options,
    batch=st.sampled_from([1, 1, 2, 3]),
    pause=st.sampled_from([timedelta(0), 10 * MINUTE]),
    notice=st.sampled_from([None, None, HOUR]),
    gate=st.sampled_from([None, None, "gate"]),
    max_failures=st.sampled_from([1, 2]),
    windows=st.sampled_from([(), (), (), *WINDOWS]),
)
SELECTORS = st.sampled_from(["*", "*", "a,b,c", "!a", "d,e,f,a", "?"])


class RolloutHistories(Histories):
    site: Site

    def empty_site(self) -> Site:
        return Site()

    @initialize(data=st.data())
    def found(self, data: st.DataObject) -> None:
        self.site = data.draw(sites(spare=data.draw(st.integers(0, 1)), policy=data.draw(st.builds(Policy))))
        self.site.add_vm("first", "a", policy=Policy())

    def actions(self) -> dict[Callable[[st.DataObject], None], int]:
        if not self.site.state.vms:
            return {self.change_hosts: 1, self.roll: 1, **({self.add_vm: 1} if self.site.state.hosts else {})}
        return {
            **super().actions(),
            self.schedule: 3,
            self.begin: 4,
            self.roll: 8,
            self.pause: 1,
            self.resume: 2,
            self.cancel_rollout: 1,
        }

    def begin(self, data: st.DataObject) -> None:
        live = [rollout for rollout in self.site.state.rollouts.values() if rollout.status.live]
        if len(live) < 3:
            kind, selector = data.draw(st.sampled_from(sorted(KINDS.values()))), data.draw(SELECTORS)
            options = data.draw(OPTIONS)
            self.attempt(lambda: self.site.begin(kind, selector, options))

    def roll(self, data: st.DataObject) -> None:
        for ask in self.site.roll():
            self.site.hear_gate(ask, data.draw(st.booleans()))
        if data.draw(st.booleans()):
            self.time_passes_until_something_is_due(data)

    def pause(self, data: st.DataObject) -> None:
        self.on_some_rollout(data, self.site.pause, RolloutStatus.RUNNING)

    def resume(self, data: st.DataObject) -> None:
        retry = data.draw(st.booleans())
        self.on_some_rollout(data, lambda key: self.site.resume(key, retry=retry), RolloutStatus.PAUSED)

    def cancel_rollout(self, data: st.DataObject) -> None:
        self.on_some_rollout(data, self.site.cancel_rollout, RolloutStatus.RUNNING, RolloutStatus.PAUSED)

    def on_some_rollout(self, data: st.DataObject, command: Callable[[str], None], *allowed: RolloutStatus) -> None:
        if self.site.state.rollouts:
            key = data.draw(st.sampled_from(sorted(self.site.state.rollouts)))
            status = self.site.rollout(key).status
            assert self.attempt(lambda: command(key)) == (status in allowed)

    def set_policy(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.site.state.scopes)))
        changes: dict[str, Any] = data.draw(POLICIES) | data.draw(policies(group=key.startswith("group:")))
        self.site.set_policy(key, **changes)
        self.nothing_is_implied_where_somebody_listens(key)

    def groups(self) -> st.SearchStrategy[str | None]:
        groups = [key.partition(":")[2] for key in self.site.state.scopes if key.startswith("group:")]
        return st.sampled_from([None, *groups])

    @invariant()
    def every_rollout_says_where_it_is(self) -> None:
        for rollout in self.site.state.rollouts.values():
            said = self.site.explain_rollout(rollout)
            assert (said.noun, said.id) == ("rollout", rollout.id)
            assert said.sentence.endswith(".")
            assert said.since is not None
            assert said.until is None or rollout.due_at is None or said.until >= min(self.site.now, rollout.due_at)
            assert all(next(iter(fact)) == "kind" for fact in said.waiting_for), "read first"

    def teardown(self) -> None:
        """With guests that approve and drivers that succeed, every rollout comes to its end, whatever others do."""
        site = self.site
        if site.watch.broken or site.watch_rollouts.broken:
            return
        self.tasks.clear()
        for operation in site.live():
            site.state.operations[operation.id] = replace(operation, claimed_by=None, claimed_until=None)
        for host in list(site.state.hosts):
            site.cordon(host, False)
        for name in site.state.vms:
            site.add_host(f"for-{name}")
        for _ in range(4):
            for rollout in [r for r in site.state.rollouts.values() if r.status is RolloutStatus.PAUSED]:
                site.resume(rollout)
            self.carry_on_approving()
            paused = any(rollout.status is RolloutStatus.PAUSED for rollout in site.state.rollouts.values())
            if site.live() or paused:
                assert paused or self.impossible(), "something waits for nothing"
                self.relax()
        assert not site.live()
        assert not any(rollout.status.live for rollout in site.state.rollouts.values())

    def impossible(self) -> list[Blocker]:
        """Budgets that can never be met, and windows that are never open together: somebody has changed them."""
        live = [operation.id for operation in self.site.live() if operation.status is Status.SCHEDULED]
        draft = self.site.look(operations=live, targets=True)
        found = [blocker for key in live for blocker in start_blockers(draft, draft.operation(key), self.site.now)]
        planned = [operation for operation in self.site.live() if operation.status is Status.PLANNED]
        draft = self.site.look(operations=[operation.id for operation in planned])
        found += [blocker for operation in planned for blocker in announcement_blockers(draft, operation)]
        return [
            blocker
            for blocker in found
            if (blocker.kind is BlockerKind.BUDGET and blocker.event is None)
            or (blocker.kind is BlockerKind.WINDOW and blocker.until is None)
        ]

    def relax(self) -> None:
        for key in self.site.state.scopes:
            self.site.set_policy(key, windows=(), max_unavailable=None, min_available=None)

    def carry_on_approving(self) -> None:
        """Until nothing is to come, or nothing has happened for many looks."""
        site, quiet = self.site, 0
        while quiet < 15:
            before = len(site.journal)
            for event in [event for event in site.state.events.values() if event.status.live]:
                site.approve_as_operator(event.id)
            site.settle_now()
            moment = site.next_moment()
            if moment is None:
                return
            quiet = 0 if len(site.journal) > before else quiet + 1
            if quiet > 3:
                # What a window puts off is looked at every minute until then.
                live = [rollout for rollout in site.state.rollouts.values() if rollout.status.live]
                told = [at for rollout in live for at in site.told_at(rollout) if at > site.now]
                moment = min(told, default=moment)
            site.now = max(site.now, moment)


@pytest.mark.drawn
def test_rollouts_keep_their_promises_over_random_histories() -> None:
    run_state_machine_as_test(RolloutHistories, settings=settings(SETTINGS, max_examples=60, derandomize=True))


@pytest.mark.soak
def test_rollouts_keep_their_promises_over_many_random_histories() -> None:
    run_state_machine_as_test(RolloutHistories, settings=settings(SETTINGS, max_examples=3000))
