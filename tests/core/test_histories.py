"""Long random histories of a site with several scopes on each host; `Watch` checks the invariants at every commit."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.core.builders import CLAIM, DAY, HOUR, SECOND, Site, failure, is_nothing, success
from tests.core.invariants import MOVING, USERS

from notbefore.core import errors, explaining
from notbefore.core.driving import Finished, NotYet, Outcome, Task
from notbefore.core.fleet import Listening, Policy, ScopeKind
from notbefore.core.listening import is_listening
from notbefore.core.obstacles import ObstacleKind, obstacles
from notbefore.core.operations import Kind, Operation, Status
from notbefore.core.timing import ENDED_APPROVABLE

KINDS = st.sampled_from(list(Kind))
POLICIES = st.builds(
    Policy,
    listening=st.sampled_from(list(Listening)),
    auto_approve=st.booleans(),
    max_user_operations=st.sampled_from([None, None, 1, 2]),
)
TERMINATE_NOTICES = st.sampled_from([None, timedelta(minutes=5), timedelta(minutes=7), timedelta(minutes=15)])
DURATIONS = st.one_of(
    st.floats(0.1, 5).map(lambda seconds: timedelta(seconds=seconds)),
    st.integers(1, 20).map(lambda minutes: timedelta(minutes=minutes)),
    st.sampled_from([HOUR, 23 * HOUR, DAY, 8 * DAY]),
)
NOTICES = st.sampled_from([None, None, None, timedelta(minutes=20), DAY])
PROCESSES = st.sampled_from(["p", "q"])
STUCK = {ObstacleKind.TARGET_HOST, ObstacleKind.UPDATE_DOMAIN, ObstacleKind.VM_BUSY}


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.site = Site()
        self.tasks: list[tuple[Task, str]] = []
        """What drivers have been asked and have not answered, and by which process."""

    @initialize(listening=st.sampled_from([Listening.AUTO, Listening.AUTO, Listening.ALWAYS]), spare=st.booleans())
    def found(self, listening: Listening, spare: bool) -> None:
        site, policy = self.site, Policy(listening=listening)
        site.add_hosts("abcd" if spare else "abc")
        site.add_group("web", ScopeKind.AVAILABILITY_SET, policy)
        site.add_group("pool", ScopeKind.PLACEMENT_GROUP, policy, terminate_notice=timedelta(minutes=5))
        site.add_group("shop", ScopeKind.CLOUD_SERVICE, policy)
        for number, host in enumerate("abc"):
            site.add_vm(f"web-{number}", host, group="web", update_domain=number, fault_domain=number)
        for number, host in enumerate("aabbc"):
            domain = "abc".index(host)
            site.add_vm(f"pool_{number}", host, group="pool", update_domain=domain, fault_domain=domain % 2)
        for number, host in enumerate("ab"):
            site.add_vm(f"FrontEnd_IN_{number}", host, group="shop", update_domain=number)
        site.add_vm("db", "b", policy=policy, addresses=("10.0.0.1",))
        site.add_vm("batch", "c", policy=policy, spot=True)

    def attempt(self, command: Callable[[], Any]) -> bool:
        """Whether it is allowed. A refusal is one of the errors that callers know, and changes nothing."""
        before = [dict(getattr(self.site.state, part)) for part in ("hosts", "vms", "scopes", "operations", "events")]
        try:
            command()
        except (errors.RefusedError, errors.ConflictError, errors.NotFoundError) as refusal:
            after = [getattr(self.site.state, part) for part in ("hosts", "vms", "scopes", "operations", "events")]
            assert before == after
            return not refusal.message
        return True

    def some_vm(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.site.state.vms)), label="vm")

    def some_host(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.site.state.hosts)), label="host")

    def some_scope(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.site.state.scopes)), label="scope")

    def has_vms(self) -> bool:
        return bool(self.site.state.vms)

    def has_events(self) -> bool:
        return bool(self.site.state.events)

    # Operations

    @precondition(lambda self: "group:pool" in self.site.state.scopes)
    @rule(approved=st.booleans())
    def delete_from_the_pool(self, approved: bool) -> None:
        names = sorted(vm.name for vm in self.site.state.vms.values() if vm.group == "pool")
        for name in names[:2]:
            self.attempt(partial(self.site.schedule, Kind.DELETION, name))
        events = self.site.listed("group:pool")
        if approved and events:
            self.site.approve("group:pool", max(events, key=lambda event: event.not_before).id)

    @precondition(has_vms)
    @rule(data=st.data(), kind=KINDS, notice=NOTICES)
    def schedule(self, data: st.DataObject, kind: Kind, notice: timedelta | None) -> None:
        name = self.some_host(data) if kind.traits.of_host else self.some_vm(data)
        same = [
            operation
            for operation in self.site.live()
            if operation.kind is kind
            and operation.status is Status.SCHEDULED
            and name in ([operation.host] if kind.traits.of_host else operation.vms)
        ]
        notice = None if kind in (Kind.DELETION, Kind.HARDWARE_FAILURE) else notice
        accepted = self.attempt(lambda: self.site.schedule(kind, name, notice=notice))
        if accepted and kind is not Kind.HARDWARE_FAILURE:
            assert not same, "the same kind again while one is Scheduled is a conflict"
        if accepted and kind in USERS:
            scope = self.site.state.scopes.get(self.site.vm(name).scope)
            limit = scope.policy.max_user_operations if scope else None
            users = [
                e for e in self.site.listed(self.site.vm(name).scope) if self.site.operation(e.operation).kind in USERS
            ]
            assert limit is None or len(users) <= limit

    @precondition(has_events)
    @rule(data=st.data())
    def approve_as_guest(self, data: st.DataObject) -> None:
        anybody = sorted(self.site.state.events)[-12:]
        scope = self.site.state.events[data.draw(st.sampled_from(anybody))].scope
        own = sorted(event.id for event in self.site.listed(scope)) or anybody
        ids = data.draw(
            st.lists(st.sampled_from(own), min_size=1, max_size=3) | st.lists(st.sampled_from(anybody), min_size=1)
        )
        events = [self.site.state.events[key] for key in ids]
        allowed = all(
            event.scope == scope and (event.ended_at is None or self.site.now - event.ended_at <= ENDED_APPROVABLE)
            for event in events
        )
        assert self.attempt(lambda: self.site.approve(scope, *(key.lower() for key in ids))) == allowed
        if allowed:
            assert is_nothing(self.site.approve(scope, *ids))
            assert all(
                self.site.state.events[key].approved or event.status is not Status.SCHEDULED
                for key, event in zip(ids, events, strict=True)
            )

    @precondition(lambda self: any(event.status.live for event in self.site.state.events.values()))
    @rule(data=st.data())
    def approve_as_operator(self, data: st.DataObject) -> None:
        live = sorted(event.id for event in self.site.state.events.values() if event.status.live)
        event = data.draw(st.sampled_from(live))
        self.site.approve_as_operator(event)
        assert is_nothing(self.site.approve_as_operator(event))

    @precondition(lambda self: self.site.live())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(sorted(operation.id for operation in self.site.live())))
        scheduled = self.site.operation(operation).status is Status.SCHEDULED
        assert self.attempt(lambda: self.site.cancel(operation)) == scheduled

    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        scope = self.some_scope(data)
        self.site.hear(scope)
        assert is_nothing(self.site.hear(scope))
        if is_listening(self.site.scope(scope), self.site.now, self.site.timing):
            scheduled = [event for event in self.site.listed(scope) if event.status is Status.SCHEDULED]
            assert not any(event.implied for event in scheduled)

    # Time

    @rule(data=st.data(), duration=DURATIONS, ticks=st.sampled_from([True, True, False]))
    def time_passes(self, data: st.DataObject, duration: timedelta, ticks: bool) -> None:
        self.site.wait(duration)
        if ticks:
            self.tick(data, "p")

    @precondition(lambda self: self.site.live())
    @rule(data=st.data())
    def time_passes_until_something_is_due(self, data: st.DataObject) -> None:
        self.site.now = max(self.site.now, min(operation.due_at or self.site.now for operation in self.site.live()))
        self.tick(data, "p")

    @rule(data=st.data(), process=PROCESSES)
    def some_process_ticks(self, data: st.DataObject, process: str) -> None:
        self.tick(data, process)

    def tick(self, data: st.DataObject, process: str) -> None:
        reports: dict[str, Outcome] = {}
        for task, owner in list(self.tasks):
            if owner == process and (outcome := data.draw(self.outcomes(task), label="outcome")):
                self.tasks.remove((task, owner))
                reports[task.operation] = outcome
        self.tasks += [(task, process) for task in self.site.tick(reports, process=process)]
        # What ended may have woken others, which start now and wake nobody.
        self.tasks += [(task, process) for task in self.site.tick(process=process)]
        assert not self.site.due()
        journal = len(self.site.journal)
        assert not self.site.tick(process=process)
        assert len(self.site.journal) == journal

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def driver_answers(self, data: st.DataObject) -> None:
        task, process = self.tasks.pop(data.draw(st.integers(0, len(self.tasks) - 1)))
        operation = self.site.operation(task.operation)
        outcome = data.draw(self.outcomes(task)) or success(task)
        changes = self.site.report(task.operation, outcome, process=process)
        if operation.status is not Status.STARTED or operation.claimed_by != process:
            assert is_nothing(changes), "too late an answer changes nothing"
        assert is_nothing(self.site.report(task.operation, outcome, process=process))

    def outcomes(self, task: Task) -> st.SearchStrategy[Outcome | None]:
        half = len(task.vms) // 2
        partial = Finished(done=task.vms[:half], failures=dict.fromkeys(task.vms[half:], "no answer"))
        later = NotYet(again_at=self.site.now + 10 * SECOND)
        return st.sampled_from([success(task), success(task), failure(task), partial, later, None])

    @rule()
    def crash(self) -> None:
        """Whoever was calling drivers is gone; after the restart, what had been started is asked for again."""
        site = self.site
        self.tasks.clear()
        for operation in site.live():
            site.state.operations[operation.id] = replace(operation, claimed_by=None, claimed_until=None)
        site.expiry_from = site.now + site.timing.startup_grace

    # The fleet

    @rule(data=st.data(), what=st.sampled_from(["cordon", "uncordon", "add", "remove"]))
    def change_hosts(self, data: st.DataObject, what: str) -> None:
        host = data.draw(st.sampled_from("abcdef"))
        if what == "add":
            assert self.attempt(lambda: self.site.add_host(host)) or host in self.site.state.hosts
        elif what == "remove" and len(self.site.state.hosts) > 1:
            self.attempt(lambda: self.site.remove_host(host))
        else:
            self.attempt(lambda: self.site.cordon(host, what == "cordon"))

    @rule(
        data=st.data(),
        name=st.sampled_from(["new-0", "new-1", "web-0", "db"]),
        domains=st.tuples(st.integers(0, 2), st.integers(0, 1)),
        spot=st.booleans(),
        addresses=st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2"]), max_size=2),
    )
    def add_vm(
        self, data: st.DataObject, name: str, domains: tuple[int, int], spot: bool, addresses: list[str]
    ) -> None:
        self.attempt(
            lambda: self.site.add_vm(
                name,
                self.some_host(data),
                policy=Policy(),
                group=data.draw(self.groups()),
                update_domain=domains[0],
                fault_domain=domains[1],
                spot=spot,
                addresses=tuple(addresses),
            )
        )

    @precondition(has_vms)
    @rule(data=st.data(), what=st.sampled_from(["host", "group", "update_domain", "fault_domain", "spot", "addresses"]))
    def set_vm(self, data: st.DataObject, what: str) -> None:
        values: dict[str, st.SearchStrategy[Any]] = {
            "host": st.sampled_from(sorted(self.site.state.hosts)),
            "group": self.groups(),
            "update_domain": st.integers(0, 2),
            "fault_domain": st.integers(0, 1),
            "spot": st.booleans(),
            "addresses": st.sampled_from([(), ("10.0.0.1",), ("10.0.0.2", "10.0.0.3")]),
        }
        name = self.some_vm(data)
        before, named = self.site.vm(name), self.is_named(name)
        if self.attempt(lambda: self.site.set_vm(name, **{what: data.draw(values[what])})):
            after = self.site.vm(name)
            assert not named or (before.host, before.scope) == (after.host, after.scope)

    @precondition(lambda self: len(self.site.state.vms) > 1)
    @rule(data=st.data())
    def remove_vm(self, data: st.DataObject) -> None:
        name = self.some_vm(data)
        named = self.is_named(name)
        assert self.attempt(lambda: self.site.remove_vm(name)) != named

    @rule(data=st.data(), policy=POLICIES, notice=TERMINATE_NOTICES)
    def set_policy(self, data: st.DataObject, policy: Policy, notice: timedelta | None) -> None:
        key = self.some_scope(data)
        standalone = self.site.scope(key).kind is ScopeKind.STANDALONE
        notice = None if standalone else notice
        self.site.set_policy(
            key,
            listening=policy.listening,
            auto_approve=policy.auto_approve,
            max_user_operations=policy.max_user_operations,
            terminate_notice=notice,
        )

    def groups(self) -> st.SearchStrategy[str | None]:
        return st.sampled_from([None, "web", "pool", "shop"])

    def is_named(self, name: str) -> bool:
        return any(name in operation.vms for operation in self.site.live())

    # What holds at any time

    @invariant()
    def every_live_event_says_why_it_waits(self) -> None:
        live = [event for event in self.site.state.events.values() if event.status.live]
        draft = self.site.look(events=[event.id for event in live], targets=True)
        for event in live:
            said = explaining.explain(draft, event, self.site.expiry_from)
            assert said.event == event.id
            assert said.sentence.endswith(".")
            if event.status is Status.SCHEDULED:
                assert said.waiting_for or said.sentence == "Nothing is in the way: it starts now."
                assert said.until is None or said.until >= self.site.now
            for fact in said.waiting_for:
                assert fact["kind"]

    def teardown(self) -> None:
        """Nothing waits for ever, but for what lacks a target host, and that no longer when there are hosts."""
        site = self.site
        if site.watch.broken:
            return
        if len(site.journal) % 2:
            for event in [event for event in site.state.events.values() if event.status.live]:
                site.approve_as_operator(event.id)
        self.carry_on(31 * DAY)
        draft = site.look(operations=[operation.id for operation in site.live()], targets=True)
        lacking = [operation for operation in site.live() if lacks_a_target(site, operation)]
        for operation in site.live():
            assert lacking, "something waits for nothing"
            if operation.status is Status.SCHEDULED:
                assert {obstacle.kind for obstacle in obstacles(draft, operation, site.expiry_from)} <= STUCK
            else:
                assert operation in lacking
        for name in site.state.vms:
            site.add_host(f"for-{name}")
        self.carry_on(CLAIM)
        assert not site.live()

    def carry_on(self, duration: timedelta) -> None:
        self.site.wait(duration)
        for _ in range(3 * len(self.site.live()) + 3):
            tasks = self.site.tick(process="r")
            self.site.tick({task.operation: success(task) for task in tasks}, process="r")
            self.site.wait(61 * SECOND)


def lacks_a_target(site: Site, operation: Operation) -> bool:
    open_hosts = {host.name for host in site.state.hosts.values() if not host.cordoned}
    homeless = set(operation.vms) - set(operation.done) - set(operation.targets)
    if operation.kind not in MOVING or not homeless:
        return False
    for name in homeless:
        vm = site.vm(name)
        neighbours = {
            other.host
            for other in site.state.vms.values()
            if vm.group is not None
            and other.scope == vm.scope
            and (other.update_domain, other.fault_domain) != (vm.update_domain, vm.fault_domain)
        }
        if not open_hosts - {operation.host} - neighbours:
            return True
    return False


SETTINGS = settings(
    deadline=None,
    report_multiple_bugs=False,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def test_what_always_holds_holds_over_random_histories() -> None:
    run_state_machine_as_test(Histories, settings=settings(SETTINGS, max_examples=100))


@pytest.mark.soak
def test_what_always_holds_holds_over_many_random_histories() -> None:
    run_state_machine_as_test(Histories, settings=settings(SETTINGS, max_examples=5000, stateful_step_count=100))
