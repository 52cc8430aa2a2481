"""Explanations are right, however little is looked at: few hosts of those that could take somebody, and of operations
elsewhere only what the same groups are told."""

from typing import Any

import pytest
from tests.service import whole
from tests.service.rig import OPERATOR, Rig
from tests.service.rolling import Rolling

from forenotice.core.operations import Kind
from forenotice.service import fleet, queries
from forenotice.service.queries import FEW
from forenotice.store.database import Store
from forenotice.store.worlds import Worlds
from forenotice.views.fleet import HostChange, NewHost

HOSTS = [f"h{number:02}" for number in range(FEW + 1)]
LAST = f"g-{FEW}"
ASKED = {"listening": "always"}


def full(**hosts: Any) -> dict[str, Any]:
    """No host is empty, and each of them has an update domain of its own of one group."""
    group = {"group": "g"}
    vms = {f"g-{n}": {"host": host, "update_domain": n, "fault_domain": n, **group} for n, host in enumerate(HOSTS)}
    return {
        "hosts": {**{host: {} for host in HOSTS}, **hosts},
        "groups": {"g": {"kind": "availability-set", "policy": ASKED}},
        "vms": vms,
    }


def waits_for_host(rig: Rig) -> bool:
    rig.schedule(Kind.LIVE_MIGRATION, HOSTS[0])
    (event,) = queries.events(rig.service, live=True)["items"]
    explained = queries.explain_event(rig.service, event["id"])
    kinds = [facts["kind"] for facts in explained["waiting_for"]]
    operation = queries.explain_operation(rig.service, event["operation"])
    assert [facts["kind"] for facts in operation["waiting_for"]] == kinds
    assert kinds[0] == "approval"
    return "target-host" in kinds


@pytest.fixture
def rig(store: Store) -> Rolling:
    return Rolling(store)


def test_nobody_can(rig: Rolling) -> None:
    assert waits_for_host(rig.settle(full(spare={"cordoned": True})))


def test_somebody_empty_can(rig: Rolling) -> None:
    rig.settle(full(spare={}))
    with rig.service.store.read() as reader:
        assert reader.hosts.emptier(3) == ["spare", *HOSTS[:2]]
    assert not waits_for_host(rig)


def test_only_one_that_is_not_among_the_few_can(rig: Rolling) -> None:
    document = full(z={})
    document["vms"]["solo"] = {"host": "z"}
    assert not waits_for_host(rig.settle(document))


def test_where_others_are_on_their_way_is_looked_at_closely(rig: Rolling) -> None:
    """A VM of another update domain is about to arrive on the only host that is free."""
    rig.settle(full(spare={}))
    rig.schedule(Kind.REDEPLOY, LAST)
    (event,) = queries.events(rig.service, live=True)["items"]
    rig.approve(LAST, "group:g", event["id"])
    rig.tick()
    rig.schedule(Kind.LIVE_MIGRATION, HOSTS[0])
    (mine,) = [each for each in queries.events(rig.service, live=True)["items"] if each["id"] != event["id"]]
    kinds = [facts["kind"] for facts in queries.explain_event(rig.service, mine["id"])["waiting_for"]]
    assert "target-host" in kinds
    fleet.add_host(rig.service, OPERATOR, NewHost(name="spare-2"))
    kinds = [facts["kind"] for facts in queries.explain_event(rig.service, mine["id"])["waiting_for"]]
    assert "target-host" not in kinds


CROSSED = {
    "hosts": {"a": {}, "b": {}, "c": {}, "d": {}},
    "groups": {
        "x": {"kind": "availability-set", "policy": ASKED | {"max_unavailable": 1}},
        "y": {"kind": "availability-set", "policy": ASKED},
        "z": {"kind": "availability-set", "policy": ASKED},
    },
    "vms": {
        f"{group}-{number}": {"host": host, "group": group, "update_domain": number, "fault_domain": number}
        for group, hosts in {"x": "ab", "y": "bc", "z": "ca"}.items()
        for number, host in enumerate(hosts)
    },
}
"""Each host has VMs of two groups, each group VMs on two hosts."""


@pytest.mark.parametrize("kind", [Kind.HOST_UPDATE, Kind.LIVE_MIGRATION])
def test_what_others_are_told_elsewhere_explains_nothing(
    rig: Rolling, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.settle(CROSSED)
    for host in "abc":
        rig.schedule(kind, host)
    started = next(each for each in queries.operations(rig.service)["items"] if each["host"] == "b")
    for event in started["events"]:
        rig.approve(event["resources"][0], event["scope"], event["id"])
    rig.tick()

    def explained() -> list[Any]:
        live = queries.operations(rig.service, live=True)["items"]
        told = [queries.explain_operation(rig.service, each["id"]) for each in live]
        return told + [queries.explain_event(rig.service, event["id"]) for each in live for event in each["events"]]

    briefly = explained()
    monkeypatch.setattr(Worlds, "to_explain", whole.load)
    assert explained() == briefly
    assert any(facts["kind"] == "update-domain" for each in briefly for facts in each["waiting_for"])


def test_moves_of_others_fill_a_host_also_where_they_are_not_looked_at(rig: Rolling) -> None:
    """Two redeploys, each in a transaction of its own, and a host that has room for one of them."""
    rig.settle(
        {
            "hosts": {"a": {"cordoned": True}, "b": {"cordoned": True}, "c": {"capacity": 3}},
            "vms": {name: {"host": host, "size": 2, "policy": ASKED} for name, host in (("one", "a"), ("two", "b"))},
        }
    )
    for name in ("one", "two"):
        rig.schedule(Kind.REDEPLOY, name)
    events = {each["resources"][0]: each["id"] for each in queries.events(rig.service, live=True)["items"]}
    for name in ("one", "two"):
        rig.approve(name, f"vm:{name}", events[name])
        rig.tick()
    found = {each["vms"][0]: each for each in queries.operations(rig.service, live=True)["items"]}
    assert (found["one"]["targets"], found["two"]["targets"]) == ({"one": "c"}, {})
    said = queries.explain_event(rig.service, events["two"])
    assert said["sentence"] == (
        "No host has enough capacity left for two (size 2): make room, raise a capacity, or add or uncordon a host."
    )
    assert said["waiting_for"] == [{"kind": "target-host", "vm": "two", "size": 2}]
    assert queries.host(rig.service, "c")["used"] == 2
    fleet.set_host(rig.service, OPERATOR, "c", HostChange(capacity=4))
    rig.tick()
    assert queries.operation(rig.service, found["two"]["id"])["targets"] == {"two": "c"}
    (listed,) = queries.hosts(rig.service, name="c")["items"]
    assert (listed["used"], listed["vms"]) == (4, 0)


def test_a_failure_says_that_it_waits_for_room(rig: Rolling) -> None:
    rig.settle({"hosts": {"a": {}, "b": {"capacity": 1}}, "vms": {"big": {"host": "a", "size": 2, "policy": ASKED}}})
    rig.schedule(Kind.HARDWARE_FAILURE, "a")
    (event,) = queries.events(rig.service, live=True)["items"]
    said = queries.explain_event(rig.service, event["id"])
    assert said["sentence"] == (
        "It has started, but no host has enough capacity left for big (size 2): make room, raise a capacity, or add or "
        "uncordon a host."
    )
    assert said["waiting_for"] == [{"kind": "target-host", "vm": "big", "size": 2}]
