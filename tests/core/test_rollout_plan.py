"""The plan of a rollout: what it predicts is what happens."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.builders import DAY, HOUR, MINUTE, NOTICE, NOW, SECOND, UPDATE, Site, row
from tests.core.invariants import most_down
from tests.core.random_fleets import WINDOWS, sites

from forenotice.core import errors, windows
from forenotice.core.draft import Draft, World
from forenotice.core.fleet import Host, Policy, Scope, ScopeKind, Vm
from forenotice.core.operations import Kind
from forenotice.core.rollout_plan import Plan, PlannedGroup, expected, expected_end, plan
from forenotice.core.rollouts import Options, RolloutHostStatus, RolloutSpec, RolloutStatus
from forenotice.core.timing import Timing

DIRECT = [Kind.HOST_UPDATE, Kind.HOST_REBOOT, Kind.LIVE_MIGRATION, Kind.DEGRADED_HARDWARE, Kind.HARDWARE_FAILURE]
STAYING = [Kind.HOST_UPDATE, Kind.HOST_REBOOT]
OPTIONS = st.builds(
    Options,
    batch=st.sampled_from([1, 1, 2, 3, 10]),
    pause=st.sampled_from([timedelta(0), 10 * MINUTE, 2 * HOUR]),
    notice=st.sampled_from([None, None, HOUR]),
    windows=st.sampled_from([(), (), *WINDOWS]),
    gate=st.sampled_from([None, "green"]),
    duration=st.sampled_from([None, None, 1, 600]),
)
SETTINGS = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), report_multiple_bugs=False
)


@settings(SETTINGS, max_examples=80)
@given(sites(), st.sampled_from(STAYING), OPTIONS)
def test_what_is_predicted_happens(site: Site, kind: Kind, options: Options) -> None:
    options = options if kind is Kind.HOST_UPDATE else replace(options, duration=None)
    try:
        plan = site.plan(kind, options=options)
    except errors.ConflictError:
        with pytest.raises(errors.ConflictError, match=r"can never be met|never open together"):
            site.begin(kind, options=options)
        return
    _keeps_the_rules(site, plan, options)
    rollout = site.begin(kind, options=options)
    site.carry_on(takes=expected(kind, options.duration))
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED
    happened = sorted((operation for operation in site.state.operations.values()), key=lambda o: (o.created_at, o.host))
    assert [(host.announced_at, host.host) for host in plan.planned_hosts] == [(o.created_at, o.host) for o in happened]
    for host, operation in zip(plan.planned_hosts, happened, strict=True):
        assert (host.vms, host.not_before, host.wave) == (
            operation.vms,
            operation.not_before,
            site.rollout_host(rollout, host.host).wave,
        )
        assert operation.ended_at is not None
        assert abs(operation.ended_at - host.ends_at) <= SECOND
    skipped = [host.host for host in site.hosts_of(rollout) if host.status is RolloutHostStatus.SKIPPED]
    assert skipped == list(plan.empty)


def _keeps_the_rules(site: Site, plan: Plan, options: Options) -> None:
    """Counted anew, from what is told of each host."""
    assert [host.host for host in plan.planned_hosts] == [
        host.host for host in sorted(plan.planned_hosts, key=lambda host: (host.announced_at, host.host))
    ]
    for host in plan.planned_hosts:
        together = [o for o in plan.planned_hosts if o.announced_at <= host.announced_at < o.ends_at]
        assert len(together) <= options.batch
        for scope in {site.vm(name).scope for name in host.vms}:
            named = [name for other in together for name in other.vms if site.vm(name).scope == scope]
            assert len({site.vm(name).update_domain for name in named}) == 1
            policy, members = site.scope(scope).policy, sum(vm.scope == scope for vm in site.state.vms.values())
            assert len(named) <= most_down(policy, members)
            assert windows.is_open(policy.windows, host.not_before)
        assert windows.is_open(options.windows, host.not_before)
        assert host.not_before >= host.announced_at + (options.notice or NOTICE)
    for earlier, later in _waves(plan):
        assert later >= earlier + options.pause
    assert plan.ends_at == max((host.ends_at for host in plan.planned_hosts), default=plan.begins_at)


def _waves(plan: Plan) -> Iterator[tuple[datetime, datetime]]:
    waves = sorted({host.wave for host in plan.planned_hosts})
    for one, other in pairwise(waves):
        yield (
            max(host.ends_at for host in plan.planned_hosts if host.wave == one),
            min(host.announced_at for host in plan.planned_hosts if host.wave == other),
        )


def test_a_plan_says_what_it_means_to_each_group() -> None:
    site = Site()
    site.add_hosts("abcd")
    site.add_group("web", max_unavailable="1", min_available=1)
    for host in "abc":
        site.add_vm(f"web-{host}", host, group="web")
    site.add_vm("db", "a")
    plan = site.plan(options=Options(batch=3))
    assert [(host.host, host.vms) for host in plan.planned_hosts] == [
        ("a", ("db", "web-a")),
        ("b", ("web-b",)),
        ("c", ("web-c",)),
    ]
    assert plan.groups == (
        PlannedGroup(
            scope="group:web", members=3, down=3 * UPDATE, most_down=1, allowed=1, budget="max_unavailable 1", delayed=2
        ),
        PlannedGroup(scope="vm:db", members=1, down=UPDATE, most_down=1, allowed=None, budget="", delayed=0),
    )
    assert (plan.empty, plan.begins_at, plan.ends_at) == (("d",), NOW, NOW + 3 * (NOTICE + UPDATE))


def test_nothing_to_do() -> None:
    site = Site()
    site.add_hosts("ab")
    plan = site.plan()
    assert (plan.planned_hosts, plan.groups, plan.empty, plan.ends_at) == ((), (), ("a", "b"), NOW)


def test_what_others_have_announced_or_started_comes_first() -> None:
    site = row()
    site.add_vm("db", "d")
    announced = site.schedule(Kind.HOST_REBOOT, "b", notice=HOUR)
    started = site.schedule(Kind.HOST_UPDATE, "d")
    site.schedule(Kind.DEGRADED_HARDWARE, "c")
    site.schedule(Kind.RESTART, "web-2")
    site.approve_all(started)
    site.tick()
    site.wait(SECOND)
    plan = site.plan()
    free_at = announced.not_before + expected(Kind.HOST_REBOOT)
    assert [(host.host, host.wave, host.announced_at) for host in plan.planned_hosts] == [
        ("d", 0, NOW + UPDATE),
        ("a", 0, free_at),
        ("b", 1, free_at + NOTICE + UPDATE),
        ("c", 2, free_at + 2 * (NOTICE + UPDATE)),
    ]


def test_what_should_have_ended_is_taken_to_end_now() -> None:
    site = row()
    site.approve_all(site.schedule(Kind.HOST_UPDATE, "b"))
    site.tick()
    site.wait(HOUR)
    assert site.plan().planned_hosts[0].announced_at == site.now


@settings(SETTINGS, max_examples=25)
@given(sites(), st.data())
def test_others_under_way_never_stop_a_plan(site: Site, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        kind, host = data.draw(st.sampled_from(DIRECT)), data.draw(st.sampled_from(sorted(site.state.hosts)))
        with suppress(errors.ConflictError):
            operation = site.schedule(kind, host)
            if data.draw(st.booleans()):
                site.approve_all(operation)
                site.tick()
    with suppress(errors.ConflictError):
        plan = site.plan(options=data.draw(OPTIONS))
        planned = {host.host for host in plan.planned_hosts}
        assert planned == {vm.host for vm in site.state.vms.values()}


@pytest.mark.parametrize(
    "options", [Options(notice=timedelta.max), Options(notice=timedelta(days=2_000_000)), Options(notice=999_999 * DAY)]
)
def test_a_plan_beyond_the_calendar_is_refused(options: Options) -> None:
    site = row()
    site.set_policy("group:web", windows=WINDOWS[1])
    with pytest.raises(errors.RefusedError, match="it would go on beyond the calendar: give less notice, a shorter"):
        site.plan(options=options)


def test_who_has_waited_goes_before_hosts_that_come_later_by_name() -> None:
    """As hosts do while it runs; smaller ones pass where a larger one has no room."""
    site = Site()
    site.add_hosts("abcdefg")
    site.add_group("web", max_unavailable="2")
    for number, host in enumerate("abbccd"):
        site.add_vm(f"web-{number}", host, group="web")
    for host in "efg":
        site.add_vm(f"vm-{host}", host)
    options = Options(batch=3)
    plan = site.plan(options=options)
    rollout = site.begin(options=options)
    site.carry_on(takes=UPDATE)
    happened = sorted(site.state.operations.values(), key=lambda operation: (operation.created_at, operation.host))
    assert [host.host for host in plan.planned_hosts] == [operation.host for operation in happened] == list("adebfgc")
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED


def test_a_large_group_with_a_small_budget_is_planned_in_time() -> None:
    world = World(hosts={f"h{number:04}": Host(name=f"h{number:04}") for number in range(3000)})
    web = Scope(key="group:web", kind=ScopeKind.AVAILABILITY_SET, tag="", policy=Policy(max_unavailable="1"))
    world.scopes[web.key] = web
    for host in world.hosts:
        world.vms[host] = Vm(name=host, vm_id=host, host=host, scope=web.key)
    draft = Draft(world, now=NOW, timing=Timing(), new_id=str)
    began = time.monotonic()
    made = plan(draft, RolloutSpec(kind=Kind.HOST_UPDATE, hosts="*", options=Options(batch=10)))
    assert made.ends_at == NOW + 3000 * (NOTICE + UPDATE)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("kind", "duration", "started_at", "now", "ends_at"),
    [
        (Kind.HOST_REBOOT, -1, None, NOW, NOW + HOUR + 5 * MINUTE),
        (Kind.HOST_REBOOT, -1, None, NOW + 2 * HOUR, NOW + 2 * HOUR + 5 * MINUTE),
        (Kind.HOST_REBOOT, -1, NOW, NOW, NOW + 5 * MINUTE),
        (Kind.HOST_REBOOT, -1, NOW, NOW + HOUR, NOW + HOUR),
        (Kind.HOST_UPDATE, 60, NOW, NOW, NOW + MINUTE),
        (Kind.RESTART, -1, None, NOW, None),
    ],
)
def test_when_an_operation_is_expected_to_end(
    kind: Kind, duration: int, started_at: datetime | None, now: datetime, ends_at: datetime | None
) -> None:
    found = expected_end(kind, duration, not_before=NOW + HOUR, started_at=started_at, now=now, timing=Timing())
    assert found == ends_at


def test_the_end_of_a_large_host_lets_several_small_ones_go() -> None:
    site = Site()
    site.add_hosts("abcd")
    site.add_group("web", max_unavailable="2")
    for number, host in enumerate("aabcd"):
        site.add_vm(f"web-{number}", host, group="web")
    hosts = site.plan(options=Options(batch=4)).planned_hosts
    step = NOTICE + UPDATE
    assert [(host.host, host.announced_at - NOW) for host in hosts] == [
        ("a", 0 * step),
        ("b", step),
        ("c", step),
        ("d", 2 * step),
    ]
