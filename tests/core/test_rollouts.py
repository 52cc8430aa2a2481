"""A rollout that somebody asks for: what makes no sense is refused, with what would."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from tests.core.builders import MINUTE, SECOND, Site, row
from tests.core.random_fleets import sites

from forenotice.core import errors, rollouts
from forenotice.core.fleet import Host
from forenotice.core.operations import Kind
from forenotice.core.rollouts import KINDS, MOST_AT_ONCE, Options, RolloutSpec, RolloutStatus, require_sound
from forenotice.core.windows import parse_all


@pytest.mark.parametrize("kind", KINDS.values())
def test_what_can_be_asked_for(kind: Kind) -> None:
    duration = 600 if kind is Kind.HOST_UPDATE else None
    options = Options(duration=duration, notice=15 * MINUTE, batch=MOST_AT_ONCE, pause=timedelta(days=30))
    selector = require_sound(RolloutSpec(kind=kind, hosts="rack1-*,!rack1-07", options=options))
    assert ("rack1-01" in selector, "rack1-07" in selector) == (True, False)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (Kind.RESTART, {}, "a rollout cannot be a restart: give update, migrate, reboot"),
        (Kind.HOST_UPDATE, {"notice": 15 * MINUTE - SECOND}, "the notice must be at least 15 minutes"),
        (Kind.HOST_UPDATE, {"duration": 0}, "the duration must be from 1 to 600 seconds"),
        (Kind.HOST_REBOOT, {"duration": 9}, "the duration of a host-reboot cannot be chosen: leave it out"),
        (Kind.HOST_UPDATE, {"batch": 0}, "batch must be from 1 to 10000 hosts"),
        (Kind.HOST_UPDATE, {"batch": MOST_AT_ONCE + 1}, "batch must be from 1 to 10000 hosts"),
        (Kind.HOST_UPDATE, {"max_failures": 0}, "max_failures must be from 1 to 100000"),
        (Kind.HOST_UPDATE, {"pause": -SECOND}, "the pause must be at most 30 days"),
        (Kind.HOST_UPDATE, {"pause": timedelta(days=31)}, "the pause must be at most 30 days"),
    ],
)
def test_what_is_refused(kind: Kind, options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.RefusedError) as refused:
        require_sound(RolloutSpec(kind=kind, hosts="*", options=Options(**options)))
    assert refused.value.message == said


def test_options_as_operators_write_them() -> None:
    windows = ["mon-fri 22:00-04:00 Europe/Berlin"]
    options = Options(notice=20 * MINUTE, batch=2, pause=90 * SECOND, gate="probe", windows=parse_all(windows))
    assert options.facts() == {
        "notice_minutes": 20,
        "batch": 2,
        "pause_minutes": 1.5,
        "gate": "probe",
        "max_failures": 1,
        "windows": windows,
        "duration_seconds": None,
    }
    assert Options().facts()["notice_minutes"] is None


def test_what_is_live() -> None:
    assert [status for status in RolloutStatus if not status.live] == [RolloutStatus.CANCELED, RolloutStatus.COMPLETED]


HOSTS = {"a": Host(name="a", labels={"rack": "r1"}), "b": Host(name="b")}
MANY = {name: Host(name=name) for name in map(str, range(rollouts.MOST_HOSTS + 1))}


@pytest.mark.parametrize(
    ("text", "hosts", "said"),
    [
        ("label:rack=r1", HOSTS, ["a"]),
        ("!label:rack=r1", HOSTS, ["b"]),
        ("b,label:*", HOSTS, "'label:\\*' is not a label: give one such as label:rack=r1"),
        ("rack-*", HOSTS, "no host is selected by 'rack-"),
        ("a,c", HOSTS, "there is no host 'c'"),
        ("*", MANY, "100001 hosts are too many for one rollout: at most 100000"),
    ],
)
def test_which_hosts_are_chosen(text: str, hosts: dict[str, Host], said: list[str] | str) -> None:
    spec = RolloutSpec(kind=Kind.HOST_UPDATE, hosts=text)
    if isinstance(said, list):
        assert rollouts.chosen_hosts(spec, hosts) == said
    else:
        with pytest.raises((errors.RefusedError, errors.NotFoundError), match=said):
            rollouts.chosen_hosts(spec, hosts)


def test_hosts_go_by_update_domain() -> None:
    site = row()
    assert rollouts.assign_waves(site.look(everything=True), "abcd") == {"a": 0, "b": 1, "c": 2, "d": 0}
    site.add_vm("web-3", "d", group="web", update_domain=1, fault_domain=1)
    assert rollouts.assign_waves(site.look(everything=True), "abcd") == {"a": 0, "b": 1, "c": 2, "d": 1}


@settings(deadline=None, derandomize=True, max_examples=40)
@given(sites())
def test_no_scope_has_two_update_domains_in_one_wave(site: Site) -> None:
    hosts = list(site.state.hosts)
    order = rollouts.assign_waves(site.look(everything=True), hosts)
    assert set(order) == set(hosts)
    assert set(order.values()) == set(range(max(order.values()) + 1)), "no wave is empty"
    domains: dict[tuple[str, int], set[int]] = {}
    for vm in site.state.vms.values():
        domains.setdefault((vm.scope, order[vm.host]), set()).add(vm.update_domain)
    assert all(len(found) == 1 for found in domains.values())


@pytest.mark.parametrize(
    ("found", "domains"),
    [
        ({"group:web": 1, "group:api": 0}, (0, 1)),
        # Its update domain keeps a standalone VM apart from nobody.
        ({"group:web": 1, "vm:db": 0}, (1,)),
        ({"vm:db": 0, "vm:batch": 2}, (0, 2)),
        ({}, ()),
    ],
)
def test_update_domains_of_a_host(found: dict[str, int], domains: tuple[int, ...]) -> None:
    parts = [rollouts.Part(scope=scope, update_domain=domain, vms=1) for scope, domain in found.items()]
    assert rollouts.update_domains(parts) == domains


def test_vms_that_have_nowhere_to_go_are_not_moved() -> None:
    site = row()
    assert site.plan(Kind.LIVE_MIGRATION, "a")
    site.cordon("d")
    with pytest.raises(errors.ConflictError, match="no host can take web-0 of host a: add or uncordon one") as refused:
        site.plan(Kind.LIVE_MIGRATION, "a")
    assert refused.value.facts == {"vm": "web-0", "host": "a"}


def test_vms_that_no_other_host_has_the_capacity_for_are_not_moved() -> None:
    site = Site()
    for name, capacity in {"a": 8, "b": 8, "c": 4, "d": 2}.items():
        site.add_host(name, capacity=capacity)
    for name, host, size in (("big", "a", 5), ("mid", "b", 4), ("low", "d", 1)):
        site.add_vm(name, host, size=size)
    assert site.plan(Kind.LIVE_MIGRATION, "*")
    site.cordon("b")
    with pytest.raises(errors.ConflictError) as refused:
        site.plan(Kind.LIVE_MIGRATION, "*")
    assert refused.value.message == (
        "no other host has the capacity for big (size 5) of host a: raise one, or add or uncordon a host"
    )
    site.cordon("b", False)
    site.add_vm("more", "a", size=3)
    site.add_vm("most", "c", size=4)
    site.add_vm("else", "b", size=3.5)
    with pytest.raises(errors.ConflictError) as refused:
        site.plan(Kind.LIVE_MIGRATION, "a")
    assert refused.value.message == (
        "the VMs of host a take 8, and the other hosts have capacity left for 1.5: make room, raise a capacity, or add "
        "or uncordon a host"
    )
    site.add_host("e")
    assert site.plan(Kind.LIVE_MIGRATION, "*")
    site.cordon("e")
    site.set_capacity("d", 0)
    with pytest.raises(errors.ConflictError, match=r"capacity left for 0\.5"):
        site.plan(Kind.LIVE_MIGRATION, "a")


def test_a_budget_that_can_never_be_met_is_refused_with_the_group_that_is_in_the_way() -> None:
    site = row()
    site.add_group("pool", max_unavailable="34%")
    for number in range(2):
        site.add_vm(f"pool-{number}", "d", group="pool")
    site.add_vm("pool-2", "a", group="pool")
    with pytest.raises(errors.ConflictError) as refused:
        site.plan(Kind.HOST_UPDATE)
    assert refused.value.message == (
        "the budget of group pool can never be met: 2 of its 3 VMs are on host d and go together, "
        "but max_unavailable 34% allows 1 down at once: change it, or spread the group"
    )
    assert refused.value.facts == {"group": "pool", "host": "d", "vms": 2, "members": 3, "allowed": 1}
    assert site.plan(hosts="!d").planned_hosts


def test_windows_that_are_never_open_together_are_refused() -> None:
    site = row()
    site.set_policy("group:web", windows=parse_all(["daily 14:00-15:00 UTC"]))
    with pytest.raises(errors.ConflictError) as refused:
        site.plan(options=Options(windows=parse_all(["daily 15:00-16:00 UTC"])))
    assert refused.value.message == (
        "the windows of web and the rollout are never open together: give them hours in common"
    )
