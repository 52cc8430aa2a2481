"""Long random histories of a site with several scopes on each host; `Watch` checks the invariants at every commit."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.core.builders import CLAIM, DAY, HOUR, SECOND, Site, failure, is_nothing, success
from tests.core.invariants import MOVING, USERS

from forenotice.core import errors, explanations, placement
from forenotice.core.blockers import BlockerKind, start_blockers
from forenotice.core.draft import Changes, UserLimits
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.fleet import Listening, Policy, Scope, ScopeKind
from forenotice.core.lifecycle import is_listening
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.timing import ENDED_APPROVABLE

FIVE, SEVEN, FIFTEEN, TWENTY = (timedelta(minutes=minutes) for minutes in (5, 7, 15, 20))
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "listening": st.sampled_from(list(Listening)),
        "auto_approve_restart": st.booleans(),
        "auto_approve_redeploy": st.booleans(),
        "max_user_operations": st.sampled_from([None, 1, 2]),
        "shutdown_timeout": st.sampled_from([timedelta(0), SECOND, HOUR]),
    },
)
DURATIONS = st.one_of(
    st.sampled_from([SECOND / 2, SECOND, 2 * SECOND, 5 * SECOND, 16 * SECOND, 31 * SECOND]),
    st.sampled_from([FIVE, SEVEN, FIFTEEN, TWENTY]),
    st.sampled_from([HOUR, 23 * HOUR, DAY, 8 * DAY]),
)
KINDS = [kind for kind in Kind for _ in range(1 if kind is Kind.HARDWARE_FAILURE else 3)]
CAPACITIES = st.sampled_from([None, 0, 0.3, 2, 3.5, 5, 8])
SIZES = st.sampled_from([None, 0, 0.1, 0.5, 2, 4])
STUCK = {BlockerKind.TARGET_HOST, BlockerKind.UPDATE_DOMAIN, BlockerKind.VM_BUSY}


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.site = self.empty_site()
        self.tasks: list[tuple[Task, str]] = []
        """What drivers have been asked and have not answered, and by which process."""

    def empty_site(self) -> Site:
        return Site()

    @initialize(
        listening=st.sampled_from([Listening.AUTO, Listening.ALWAYS]),
        spare=st.booleans(),
        limits=st.builds(UserLimits, fleet=st.sampled_from([None, 3]), tenant=st.sampled_from([None, 2])),
    )
    def found(self, listening: Listening, spare: bool, limits: UserLimits) -> None:
        site, policy = self.site, Policy(listening=listening)
        site.limits = limits
        site.add_hosts("abcde" if spare else "abcd")
        site.add_group("web", ScopeKind.AVAILABILITY_SET, policy)
        site.add_group("pool", ScopeKind.PLACEMENT_GROUP, policy, terminate_notice=FIVE)
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

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        """One rule, so that it is we who say how often what happens."""
        actions = self.actions()
        data.draw(st.sampled_from([action for action, often in actions.items() for _ in range(often)]))(data)

    def actions(self) -> dict[Callable[[st.DataObject], None], int]:
        return {
            self.schedule: 7,
            self.approve_as_guest: 4,
            self.approve_as_operator: 3,
            self.poll: 2,
            self.tick: 3,
            self.time_passes: 3,
            self.time_passes_until_something_is_due: 4,
            self.driver_answers: 4,
            self.crash: 1,
            self.clock_jumps: 1,
            self.cancel: 1,
            self.change_hosts: 2,
            self.set_policy: 2,
            self.set_vm: 1,
            self.add_vm: 1,
            self.remove_vm: 1,
            self.change_edges: 2,
        }

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

    # Operations

    def schedule(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(KINDS))
        names = self.site.state.hosts if kind.traits.of_host else self.site.state.vms
        if kind is Kind.EVICTION:
            names = {vm.name: vm for vm in self.site.state.vms.values() if vm.spot} or names
        pool = {vm.name: vm for vm in self.site.state.vms.values() if vm.group == "pool"}
        if kind is Kind.DELETION and pool and data.draw(st.booleans()):
            names = pool
        name = data.draw(st.sampled_from(sorted(names)))
        fixed = kind in (Kind.DELETION, Kind.HARDWARE_FAILURE)
        notice = None if fixed else data.draw(st.sampled_from([None, None, None, TWENTY, DAY]))
        same = [
            operation
            for operation in self.site.live()
            if operation.kind is kind
            and operation.status is not Status.STARTED
            and name in ([operation.host] if kind.traits.of_host else operation.vms)
        ]
        by = data.draw(st.sampled_from(["op", "tenant:a", "tenant:b"]))
        accepted = self.attempt(lambda: self.site.schedule(kind, name, notice=notice, by=by))
        if accepted:
            assert not same, "the same kind again while one is Planned or Scheduled is a conflict"
        if accepted and kind in USERS:
            scope = self.site.scope(self.site.vm(name).scope)
            users = [e for e in self.site.listed(scope.key) if self.site.operation(e.operation).kind in USERS]
            assert len(users) <= (scope.policy.max_user_operations or len(users))
            everybody = Counter(operation.by for operation in self.site.live() if operation.kind in USERS)
            limits = self.site.limits
            assert everybody.total() <= (limits.fleet or everybody.total())
            assert by == "op" or everybody[by] <= (limits.tenant or everybody[by])

    def approve_as_guest(self, data: st.DataObject) -> None:
        anybody = sorted(self.site.state.events)[-12:]
        if not anybody:
            return
        scope = self.site.state.events[data.draw(st.sampled_from(anybody))].scope
        own = sorted(event.id for event in self.site.listed(scope)) or anybody
        ids = data.draw(
            st.lists(st.sampled_from(own), min_size=1, max_size=3)
            | st.lists(st.sampled_from(anybody), min_size=1, max_size=2)
        )
        events = [self.site.state.events[key] for key in ids]
        allowed = all(
            event.scope == scope and (event.ended_at is None or self.site.now - event.ended_at <= ENDED_APPROVABLE)
            for event in events
        ) and any(vm.scope == scope for vm in self.site.state.vms.values())
        assert self.attempt(lambda: self.site.approve(scope, *(key.lower() for key in ids))) == allowed
        if allowed:
            assert is_nothing(self.site.approve(scope, *ids))
            for event in events:
                after = self.site.state.events[event.id]
                assert after.status is not Status.SCHEDULED or (after.approved and not after.implied)

    def approve_as_operator(self, data: st.DataObject) -> None:
        """All events of an operation, or all but one."""
        scheduled = sorted(o.id for o in self.site.live() if o.status is Status.SCHEDULED and self.site.events(o))
        if not scheduled:
            return
        told = self.site.events(data.draw(st.sampled_from(scheduled)))
        events = [event for event in told if event.status.live]
        for event in events[data.draw(st.integers(0, 1)) :]:
            self.site.approve_as_operator(event.id)
            assert is_nothing(self.site.approve_as_operator(event.id))

    def cancel(self, data: st.DataObject) -> None:
        live = sorted(operation.id for operation in self.site.live())
        if live:
            operation = data.draw(st.sampled_from(live))
            allowed = self.site.operation(operation).status is not Status.STARTED
            assert self.attempt(lambda: self.site.cancel(operation)) == allowed

    def poll(self, data: st.DataObject) -> None:
        scope = data.draw(st.sampled_from(sorted(self.site.state.scopes)))
        self.site.hear(scope)
        assert is_nothing(self.site.hear(scope))
        self.nothing_is_implied_where_somebody_listens(scope)

    def nothing_is_implied_where_somebody_listens(self, scope: str) -> None:
        if self.listens(self.site.scope(scope)):
            scheduled = [event for event in self.site.listed(scope) if event.status is Status.SCHEDULED]
            assert not any(event.implied for event in scheduled)

    # Time

    def time_passes(self, data: st.DataObject) -> None:
        self.site.wait(data.draw(DURATIONS))

    def time_passes_until_something_is_due(self, data: st.DataObject) -> None:
        moments = [max(o.due_at or self.site.now, o.claimed_until or self.site.now) for o in self.site.live()]
        self.site.now = max(self.site.now, min(moments, default=self.site.now))
        self.tick(data)

    def clock_jumps(self, data: st.DataObject) -> None:
        listening = [key for key, scope in self.site.state.scopes.items() if self.listens(scope)]
        self.site.jump(data.draw(DURATIONS))
        assert all(self.listens(self.site.scope(key)) for key in listening)

    def listens(self, scope: Scope) -> bool:
        return is_listening(scope, self.site.now, self.site.timing)

    def tick(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from("pq"))
        reports: dict[str, Outcome] = {}
        for task, owner in list(self.tasks):
            timely = self.site.operation(task.operation).attempt + 1 == task.attempt
            if timely and owner == process and (outcome := data.draw(self.outcomes(task))):
                self.tasks.remove((task, owner))
                reports[task.operation] = outcome
        self.tasks += [(task, process) for task in self.site.tick(reports, process=process)]
        # What ended may have woken others, which start now and wake nobody; what was planned is first announced.
        for _ in range(2):
            self.tasks += [(task, process) for task in self.site.tick(process=process)]
        assert not self.site.due()
        journal = len(self.site.journal)
        assert not self.site.tick(process=process)
        assert len(self.site.journal) == journal

    def driver_answers(self, data: st.DataObject) -> None:
        if not self.tasks:
            return
        task, process = self.tasks.pop(data.draw(st.integers(0, len(self.tasks) - 1)))
        operation = self.site.operation(task.operation)
        outcome = data.draw(self.outcomes(task)) or success(task)
        changes = self.site.report(task.operation, outcome, process=process, attempt=task.attempt)
        if operation.claimed_by != process or operation.attempt + 1 != task.attempt:
            assert is_nothing(changes), "too late an answer changes nothing"
        elif isinstance(outcome, NotYet):
            self.waiting_is_no_try(operation, outcome, changes)
        elif operation.kind in MOVING and isinstance(outcome, Finished):
            assert all(self.site.vm(name).host == task.targets[name] for name in outcome.done)
        assert is_nothing(self.site.report(task.operation, outcome, process=process, attempt=task.attempt))

    def waiting_is_no_try(self, before: Operation, outcome: NotYet, changes: Changes) -> None:
        after = self.site.operation(before)
        counted = (after.status, after.attempt, after.failures)
        assert counted == (before.status, before.attempt, before.failures), "waiting counts as a try"
        assert (after.claimed_by, after.due_at) == (None, outcome.again_at), "the driver is asked again"
        noted = [entry.data["waiting"] for entry in changes.entries if entry.action == "driver.waiting"]
        assert noted == ([after.waiting] if after.waiting and after.waiting != before.waiting else [])

    def outcomes(self, task: Task) -> st.SearchStrategy[Outcome | None]:
        half = len(task.vms) // 2
        partial = Finished(done=task.vms[:half], failures=dict.fromkeys(task.vms[half:], "no answer"))
        again_at = self.site.now + 10 * SECOND
        later = NotYet(again_at=again_at)
        waits = NotYet(again_at=again_at, waiting={**dict.fromkeys(task.vms, "no fence"), "stranger": "no fence"})
        half_waits = NotYet(again_at=again_at, done=task.vms[:half], waiting=dict.fromkeys(task.vms, "no answer"))
        others = [failure(task), partial, later, waits, half_waits, None]
        return st.sampled_from([success(task), success(task), *others])

    def crash(self, data: st.DataObject) -> None:
        """Whoever was calling drivers is gone; after the restart, what had been started is asked for again."""
        site = self.site
        self.tasks.clear()
        site.wait(data.draw(DURATIONS))
        for operation in site.live():
            site.state.operations[operation.id] = replace(operation, claimed_by=None, claimed_until=None)
        site.expiry_from = site.now + site.timing.startup_grace
        self.tick(data)

    # The fleet

    def change_hosts(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from("abcdef"))
        match data.draw(st.sampled_from(["add", "cordon", "uncordon", "uncordon", "remove", "capacity"])):
            case "add":
                assert self.attempt(lambda: self.site.add_host(host)) or host in self.site.state.hosts
            case "remove":
                self.attempt(lambda: self.site.remove_host(host))
            case "capacity":
                self.attempt(lambda: self.site.set_capacity(host, data.draw(CAPACITIES)))
            case cordon:
                self.attempt(lambda: self.site.cordon(host, cordon == "cordon"))

    def change_edges(self, data: st.DataObject) -> None:
        site, host = self.site, data.draw(st.sampled_from(sorted(self.site.state.hosts)))
        listening = [key for key, scope in site.state.scopes.items() if self.listens(scope)]
        match data.draw(st.sampled_from(["beat", "beat", "late", "unheard", "lost", "forgotten"])):
            case "beat":
                site.beat(host)
                site.find(host)
            case "late":
                site.beat(host, site.now - data.draw(DURATIONS))
            case "unheard":
                site.shown[host] = None
            case "lost" if host in site.shown:
                site.lose(host)
                assert all(self.listens(site.scope(key)) for key in listening)
            case _:
                site.forget_edge(host)

    def set_policy(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.site.state.scopes)))
        policy = data.draw(POLICIES)
        if self.site.scope(key).kind is not ScopeKind.STANDALONE:
            policy["terminate_notice"] = data.draw(st.sampled_from([None, FIVE, SEVEN, FIFTEEN]))
        self.site.set_policy(key, **policy)
        self.nothing_is_implied_where_somebody_listens(key)

    def add_vm(self, data: st.DataObject) -> None:
        facts = {
            "group": data.draw(self.groups()),
            "update_domain": data.draw(st.integers(0, 2)),
            "fault_domain": data.draw(st.integers(0, 1)),
            "spot": data.draw(st.booleans()),
            "size": data.draw(SIZES),
            "addresses": data.draw(st.sampled_from([(), ("10.0.0.1",), ("10.0.0.2", "10.0.0.2")])),
        }
        name = data.draw(st.sampled_from(["new-0", "new-1", "web-0", "db"]))
        host = data.draw(st.sampled_from(sorted(self.site.state.hosts)))
        self.attempt(lambda: self.site.add_vm(name, host, policy=Policy(), **facts))

    def set_vm(self, data: st.DataObject) -> None:
        values: dict[str, st.SearchStrategy[Any]] = {
            "host": st.sampled_from(sorted(self.site.state.hosts)),
            "group": self.groups(),
            "update_domain": st.integers(0, 2),
            "fault_domain": st.integers(0, 1),
            "spot": st.booleans(),
            "size": SIZES,
            "addresses": st.sampled_from([(), ("10.0.0.1",), ("10.0.0.2", "10.0.0.3")]),
        }
        what = data.draw(st.sampled_from(sorted(values)))
        name = data.draw(st.sampled_from(sorted(self.site.state.vms)))
        before, named = self.site.vm(name), self.is_named(name)
        if self.attempt(lambda: self.site.set_vm(name, **{what: data.draw(values[what])})) and named:
            after = self.site.vm(name)
            assert (before.host, before.scope, before.update_domain) == (after.host, after.scope, after.update_domain)

    def remove_vm(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.site.state.vms)))
        allowed = not self.is_named(name)
        if len(self.site.state.vms) > 6:
            assert self.attempt(lambda: self.site.remove_vm(name)) == allowed

    def groups(self) -> st.SearchStrategy[str | None]:
        return st.sampled_from([None, "web", "pool", "shop"])

    def is_named(self, name: str) -> bool:
        return any(name in each.vms for each in self.site.live() if each.status is not Status.PLANNED)

    # What holds at any time

    @invariant()
    def every_live_event_says_why_it_waits(self) -> None:
        live = [event for event in self.site.state.events.values() if event.status.live]
        draft = self.site.look(events=[event.id for event in live], targets=True)
        for event in live:
            said = explanations.explain_event(draft, event, self.site.expiry_from)
            assert (said.noun, said.id) == ("event", event.id)
            assert said.since is not None
            assert said.sentence.endswith(".")
            if event.status is Status.SCHEDULED:
                assert said.waiting_for or said.sentence == "Nothing is in the way: it starts now."
                assert said.until is None or said.until >= self.site.now
            for fact in said.waiting_for:
                assert fact["kind"]

    @invariant()
    def every_planned_operation_says_when_guests_are_told(self) -> None:
        for operation in [each for each in self.site.live() if each.status is Status.PLANNED]:
            arriving = self.site.moving_to([operation.host])
            draft = self.site.look(operations=[operation.id, *arriving])
            said = explanations.explain_operation(draft, operation, self.site.expiry_from)
            assert said.sentence.endswith(".")
            assert said.waiting_for or operation.due_at == self.site.now or self.site.due()
            assert said.until is None or said.until >= self.site.now

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
                assert {blocker.kind for blocker in start_blockers(draft, operation, site.expiry_from)} <= STUCK
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


def too_full(site: Site, vms: set[str]) -> set[str]:
    """Hosts that cannot take all of them; whether they can take some is not asked."""
    draft = site.look(everything=True)
    needed = sum(site.vm(name).takes for name in vms)
    limited = [host for host in site.state.hosts.values() if host.holds is not None]
    return {host.name for host in limited if placement.taken(draft, host.name) + needed > (host.holds or 0)}


def lacks_a_target(site: Site, operation: Operation) -> bool:
    # A host whose own maintenance is announced takes only whom no other can, once that has started.
    shut = {Status.STARTED} if operation.status is Status.STARTED else {Status.SCHEDULED, Status.STARTED}
    closed = {o.host for o in site.live() if o.kind.traits.keeps_others_away and o.status in shut}
    open_hosts = {host.name for host in site.state.hosts.values() if not host.cordoned} - closed - site.lost.keys()
    homeless = set(operation.vms) - set(operation.done) - set(operation.targets)
    if operation.kind not in MOVING or not homeless:
        return False
    coming: dict[str, list[str]] = {}
    for each in site.live():
        for name in set(each.targets) - set(each.done):
            coming.setdefault(name, []).append(each.targets[name])
    for name in homeless:
        vm = site.vm(name)
        neighbours = {
            host
            for other in site.state.vms.values()
            for host in (other.host, *coming.get(other.name, ()))
            if vm.group is not None
            and other.scope == vm.scope
            and (other.update_domain, other.fault_domain) != (vm.update_domain, vm.fault_domain)
        }
        if not open_hosts - {operation.host} - neighbours - too_full(site, homeless):
            return True
    return False


SETTINGS = settings(
    deadline=None,
    report_multiple_bugs=False,
    stateful_step_count=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


@pytest.mark.drawn
def test_what_always_holds_holds_over_random_histories() -> None:
    run_state_machine_as_test(Histories, settings=settings(SETTINGS, max_examples=75))


@pytest.mark.soak
def test_what_always_holds_holds_over_many_random_histories() -> None:
    run_state_machine_as_test(Histories, settings=settings(SETTINGS, max_examples=5000, stateful_step_count=100))
