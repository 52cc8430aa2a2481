"""Explanations are right, however little is looked at: few hosts of those that could take somebody, and of operations
elsewhere only what the same groups are told."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.metadata.running import running
from tests.service.rig import Rig, load_whole_fleet
from tests.service.rolling import Rolling

from forenotice.core import errors, selectors
from forenotice.core.operations import Kind
from forenotice.metadata.options import Options
from forenotice.service import queries
from forenotice.service.queries import FEW
from forenotice.service.service import read_published
from forenotice.store.database import Store
from forenotice.store.worlds import Worlds
from forenotice.wire import versions
from forenotice.wire.versions import Version

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


@pytest.fixture
def empty(store: Store) -> Rolling:
    return Rolling(store)


ELSEWHERE = full(z={}) | {"vms": full()["vms"] | {"solo": {"host": "z"}}}


@pytest.mark.parametrize(
    ("document", "waits"),
    [
        pytest.param(full(spare={"cordoned": True}), True, id="no host can"),
        pytest.param(full(spare={}), False, id="an empty one can"),
        pytest.param(ELSEWHERE, False, id="only one that is not among the few can"),
    ],
)
def test_a_migration_waits_for_a_host_only_while_none_can(empty: Rolling, document: Any, waits: bool) -> None:
    empty.settle(document)
    empty.schedule(Kind.LIVE_MIGRATION, HOSTS[0])
    (event,) = empty.live_events()
    kinds = [facts["kind"] for facts in empty.explain(event.id).waiting_for]
    operation = queries.explain_operation(empty.service, event.operation)
    assert [facts["kind"] for facts in operation.waiting_for] == kinds
    assert kinds[0] == "approval"
    assert ("target-host" in kinds) is waits


def test_the_few_are_the_emptiest(empty: Rolling) -> None:
    empty.settle(full(spare={}))
    with empty.service.store.read() as reader:
        assert reader.hosts.emptier(3) == ["spare", *HOSTS[:2]]


def test_where_others_are_on_their_way_is_looked_at_closely(empty: Rolling) -> None:
    """A VM of another update domain is about to arrive on the only host that is free."""
    empty.settle(full(spare={}))
    empty.schedule(Kind.REDEPLOY, LAST)
    (event,) = empty.live_events()
    empty.approve(LAST, "group:g", event.id)
    empty.tick()
    empty.schedule(Kind.LIVE_MIGRATION, HOSTS[0])
    (mine,) = [each for each in empty.live_events() if each.id != event.id]
    kinds = [facts["kind"] for facts in empty.explain(mine.id).waiting_for]
    assert "target-host" in kinds
    empty.add_host("spare-2")
    kinds = [facts["kind"] for facts in empty.explain(mine.id).waiting_for]
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
    empty: Rolling, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.settle(CROSSED)
    for host in "abc":
        empty.schedule(kind, host)
    started = next(each for each in queries.operations(empty.service).items if each.host == "b")
    for event in started.events:
        empty.approve(event.resources[0], event.scope, event.id)
    empty.tick()

    def explained() -> list[Any]:
        live = queries.operations(empty.service, live=True).items
        told = [queries.explain_operation(empty.service, each.id) for each in live]
        return told + [empty.explain(event.id) for each in live for event in each.events]

    briefly = explained()
    monkeypatch.setattr(Worlds, "to_explain", load_whole_fleet)
    assert explained() == briefly
    assert any(facts["kind"] == "update-domain" for each in briefly for facts in each.waiting_for)


def test_moves_of_others_fill_a_host_also_where_they_are_not_looked_at(empty: Rolling) -> None:
    """Two redeploys, each in a transaction of its own, and a host that has room for one of them."""
    empty.settle(
        {
            "hosts": {"a": {"cordoned": True}, "b": {"cordoned": True}, "c": {"capacity": 3}},
            "vms": {name: {"host": host, "size": 2, "policy": ASKED} for name, host in (("one", "a"), ("two", "b"))},
        }
    )
    for name in ("one", "two"):
        empty.schedule(Kind.REDEPLOY, name)
    events = {each.resources[0]: each.id for each in empty.live_events()}
    for name in ("one", "two"):
        empty.approve(name, f"vm:{name}", events[name])
        empty.tick()
    found = {each.vms[0]: each for each in queries.operations(empty.service, live=True).items}
    assert (found["one"].targets, found["two"].targets) == ({"one": "c"}, {})
    said = empty.explain(events["two"])
    assert said.sentence == (
        "No host has enough capacity left for two (size 2): make room, raise a capacity, or add or uncordon a host."
    )
    assert said.waiting_for == [{"kind": "target-host", "vm": "two", "size": 2}]
    assert queries.host(empty.service, "c").used == 2
    empty.set_host("c", capacity=4)
    empty.tick()
    assert queries.operation(empty.service, found["two"].id).targets == {"two": "c"}
    (listed,) = queries.hosts(empty.service, name="c").items
    assert (listed.used, listed.vms) == (4, 0)


def test_a_failure_says_that_it_waits_for_room(empty: Rolling) -> None:
    empty.settle({"hosts": {"a": {}, "b": {"capacity": 1}}, "vms": {"big": {"host": "a", "size": 2, "policy": ASKED}}})
    empty.schedule(Kind.HARDWARE_FAILURE, "a")
    (event,) = empty.live_events()
    said = empty.explain(event.id)
    assert said.sentence == (
        "It has started, but no host has enough capacity left for big (size 2): make room, raise a capacity, or add or "
        "uncordon a host."
    )
    assert said.waiting_for == [{"kind": "target-host", "vm": "big", "size": 2}]


ADDRESSES = {"web-0": "127.1.0.10", "web-2": "127.1.0.12", "pool_4": "127.1.0.24", "db": "127.1.0.30"}


@pytest.fixture
def busy(rig: Rig) -> Rig:
    """Events of several types and ages, one of them Started."""
    rig.schedule(Kind.RESTART, "web-0")
    rig.clock.advance(seconds=7)
    (update,) = rig.schedule(Kind.HOST_UPDATE, "host-c")
    rig.schedule(Kind.DELETION, "pool_0")
    rig.approve_all(update)
    rig.tick()
    return rig


@pytest.mark.parametrize("known", [versions.AS_PUBLISHED, versions.AS_SEEN], ids=["published", "seen"])
def test_it_is_what_the_endpoint_answers_in_every_version(busy: Rig, known: Mapping[str, Version]) -> None:
    busy.service.versions = known
    with busy.service.store.read() as reader:
        members = read_published(reader, None)
    shown = set()
    with running(fleet=members, options=Options(versions=known)) as server:
        for name, address in ADDRESSES.items():
            for version in queries.VERSIONS:
                answer = server.ask(f"/metadata/scheduledevents?api-version={version}", source=address)
                assert answer.status == 200
                assert queries.document(busy.service, name, version) == answer.body
                shown.add(answer.body)
    assert len(shown) > len(queries.VERSIONS)
    assert queries.VERSIONS[0] == versions.NEWEST.name
    assert set(queries.VERSIONS) == {version.name for version in versions.ALL}


def test_a_document_that_cannot_be_shown_says_why(rig: Rig) -> None:
    with pytest.raises(errors.RefusedError, match="no api-version '2020-07-02': choose one of 2020-07-01, 2019-08-01"):
        queries.document(rig.service, "web-0", "2020-07-02")
    seen = selectors.of_scopes("web")
    assert queries.document(rig.service, "web-1", seen=seen)
    # Another scope's is as if there were no such VM.
    for name in ("web-9", "db"):
        with pytest.raises(errors.NotFoundError, match=f"no VM '{name}'"):
            queries.document(rig.service, name, seen=seen)


def test_events_of_one_command_are_listed_as_the_document_has_them(rig: Rig) -> None:
    names = [f"pool_{number}" for number in (12, 10, 11, 2, 3)]
    for name in names[:3]:
        rig.add_vm(name, "host-d", group="pool", update_domain=3)
    rig.schedule(Kind.RESTART, *names)
    wanted = ["pool_2", "pool_3", "pool_10", "pool_11", "pool_12"]
    shown = msgspec.json.decode(queries.document(rig.service, "pool_0"))["Events"]
    assert [name for event in shown for name in event["Resources"]] == wanted
    for descending in (False, True):
        listed = queries.events(rig.service, group="pool", descending=descending).items
        assert [name for event in listed for name in event.resources] == wanted
    first = queries.events(rig.service, limit=3)
    rest = queries.events(rig.service, after=str(first.next), limit=3)
    assert {event.id for event in (*first.items, *rest.items)} == {event["EventId"] for event in shown}
