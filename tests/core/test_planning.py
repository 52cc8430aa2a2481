"""The plan of a rollout: what it predicts is what happens."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.builders import HOUR, MINUTE, SECOND
from tests.core.invariants_of_rollouts import most_out
from tests.core.random_fleets import WINDOWS, sites
from tests.core.rolling_site import NOTICE, RollingSite

from notbefore.core import errors, windows
from notbefore.core.operations import Kind
from notbefore.core.planning import Plan, expected
from notbefore.core.rollouts import Options, RolloutStatus, StopStatus

STAYING = [Kind.HOST_UPDATE, Kind.HOST_REBOOT]
OPTIONS = st.builds(
    Options,
    batch=st.sampled_from([1, 1, 2, 3, 10]),
    pause=st.sampled_from([timedelta(0), 10 * MINUTE, 2 * HOUR]),
    notice=st.sampled_from([None, None, HOUR]),
    windows=st.sampled_from([(), (), *WINDOWS]),
    gate=st.sampled_from([None, "green"]),
)
SETTINGS = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), report_multiple_bugs=False
)


@settings(SETTINGS, max_examples=150)
@given(sites(), st.sampled_from(STAYING), OPTIONS)
def test_what_is_predicted_happens(site: RollingSite, kind: Kind, options: Options) -> None:
    try:
        plan = site.plan(kind, options=options)
    except errors.ConflictError:
        with pytest.raises(errors.ConflictError, match=r"can never be met|never open together"):
            site.begin(kind, options=options)
        return
    _keeps_the_rules(site, plan, options)
    rollout = site.begin(kind, options=options)
    site.carry_on(takes=expected(kind))
    assert site.rollout(rollout).status is RolloutStatus.COMPLETED
    happened = sorted((operation for operation in site.state.operations.values()), key=lambda o: (o.created_at, o.host))
    assert [(stop.announced_at, stop.host) for stop in plan.stops] == [(o.created_at, o.host) for o in happened]
    for stop, operation in zip(plan.stops, happened, strict=True):
        assert (stop.vms, stop.not_before, stop.turn) == (
            operation.vms,
            operation.not_before,
            site.stop(rollout, stop.host).turn,
        )
        assert operation.ended_at is not None
        assert abs(operation.ended_at - stop.ends_at) <= SECOND
    skipped = [stop.host for stop in site.stops_of(rollout) if stop.status is StopStatus.SKIPPED]
    assert skipped == list(plan.empty)


def _keeps_the_rules(site: RollingSite, plan: Plan, options: Options) -> None:
    """Counted anew, from what is told of each stop."""
    assert [stop.host for stop in plan.stops] == [
        stop.host for stop in sorted(plan.stops, key=lambda stop: (stop.announced_at, stop.host))
    ]
    for stop in plan.stops:
        together = [o for o in plan.stops if o.announced_at <= stop.announced_at < o.ends_at]
        assert len(together) <= options.batch
        for scope in {site.vm(name).scope for name in stop.vms}:
            named = [name for other in together for name in other.vms if site.vm(name).scope == scope]
            assert len({site.vm(name).update_domain for name in named}) == 1
            policy, members = site.scope(scope).policy, sum(vm.scope == scope for vm in site.state.vms.values())
            assert len(named) <= most_out(policy, members)
            assert windows.is_open(policy.windows, stop.not_before)
        assert windows.is_open(options.windows, stop.not_before)
        assert stop.not_before >= stop.announced_at + (options.notice or NOTICE)
    for earlier, later in _turns(plan):
        assert later >= earlier + options.pause
    assert plan.ends_at == max((stop.ends_at for stop in plan.stops), default=plan.begins_at)


def _turns(plan: Plan) -> Iterator[tuple[datetime, datetime]]:
    turns = sorted({stop.turn for stop in plan.stops})
    for one, other in pairwise(turns):
        yield (
            max(stop.ends_at for stop in plan.stops if stop.turn == one),
            min(stop.announced_at for stop in plan.stops if stop.turn == other),
        )
