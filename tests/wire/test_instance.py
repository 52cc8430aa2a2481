"""What a VM is told of itself."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forenotice.core import errors
from forenotice.core.fleet import Facts, Scope, ScopeKind, Vm
from forenotice.wire import instance

POOL = Scope(key="group:pool", kind=ScopeKind.PLACEMENT_GROUP, tag="t")
WEB = Scope(key="group:web", kind=ScopeKind.AVAILABILITY_SET, tag="t")
DB = Scope(key="vm:db", kind=ScopeKind.STANDALONE, tag="t")
FACTS = Facts(
    location="north",
    resource_group="rg",
    subscription="11111111-2222-3333-4444-555555555555",
    size="D2",
    os_type="Linux",
    zone="1",
    eviction_policy="Delete",
    az_environment="Own",
    offer="debian-12",
    sku="12-gen2",
    computer_name="pool000004",
    tags={"team": "a b", "tier": "web:1"},
)
MEMBER = Vm(
    name="pool_east_4",
    vm_id="aaaa",
    host="host-a",
    scope="group:pool",
    update_domain=2,
    fault_domain=1,
    spot=True,
    addresses=("10.0.0.4", "fd00::4", "10.0.0.5"),
    facts=FACTS,
)
BARE = Vm(name="db", vm_id="bbbb", host="host-b", scope="vm:db")


def whole(vm: Vm, scope: Scope) -> bytes:
    return instance.leaf(vm, scope, (), as_text=False)


def test_a_member_of_a_scale_set_sees_all() -> None:
    assert json.loads(whole(MEMBER, POOL)) == {
        "compute": {
            "azEnvironment": "Own",
            "offer": "debian-12",
            "sku": "12-gen2",
            "osProfile": {"computerName": "pool000004"},
            "storageProfile": {
                "imageReference": {"offer": "debian-12", "sku": "12-gen2"},
                "osDisk": {"osType": "Linux"},
            },
            "name": "pool_east_4",
            "vmId": "aaaa",
            "location": "north",
            "resourceGroupName": "rg",
            "subscriptionId": "11111111-2222-3333-4444-555555555555",
            "vmSize": "D2",
            "osType": "Linux",
            "platformUpdateDomain": "2",
            "platformFaultDomain": "1",
            "placementGroupId": "pool",
            "vmScaleSetName": "pool_east",
            "zone": "1",
            "priority": "Spot",
            "evictionPolicy": "Delete",
            "tags": "team:a b;tier:web:1",
            "tagsList": [{"name": "team", "value": "a b"}, {"name": "tier", "value": "web:1"}],
            "resourceId": "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/rg/providers/"
            "Microsoft.Compute/virtualMachineScaleSets/pool_east/virtualMachines/4",
        },
        "network": {
            "interface": [
                {
                    "ipv4": {
                        "ipAddress": [
                            {"privateIpAddress": "10.0.0.4", "publicIpAddress": ""},
                            {"privateIpAddress": "10.0.0.5", "publicIpAddress": ""},
                        ],
                        "subnet": [],
                    },
                    "ipv6": {"ipAddress": [{"privateIpAddress": "fd00::4"}]},
                    "macAddress": "",
                }
            ]
        },
    }


def test_a_vm_without_facts_has_every_key_all_the_same() -> None:
    compute = json.loads(whole(BARE, DB))["compute"]
    assert list(compute) == list(json.loads(whole(MEMBER, POOL))["compute"])
    assert {key: value for key, value in compute.items() if value} == {
        "name": "db",
        "osProfile": {"computerName": "db"},
        "vmId": "bbbb",
        "platformUpdateDomain": "0",
        "platformFaultDomain": "0",
        "priority": "Regular",
        "storageProfile": {"imageReference": {"offer": "", "sku": ""}, "osDisk": {"osType": ""}},
    }


def test_keys_stand_in_alphabetical_order_at_every_level() -> None:
    def ordered(pairs: list[tuple[str, object]]) -> object:
        names = [name for name, _ in pairs]
        assert names == sorted(names)
        return dict(pairs)

    for vm, scope in ((MEMBER, POOL), (BARE, DB)):
        json.loads(whole(vm, scope), object_pairs_hook=ordered)


def test_a_vm_of_another_group_is_in_no_scale_set() -> None:
    compute = json.loads(whole(replace(MEMBER, name="web_0", scope="group:web"), WEB))["compute"]
    assert compute["vmScaleSetName"] == ""
    assert compute["placementGroupId"] == ""
    assert compute["resourceId"].endswith("/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/web_0")


def test_a_scale_set_member_without_an_underscore_names_no_set() -> None:
    compute = json.loads(whole(replace(MEMBER, name="odd"), POOL))["compute"]
    assert (compute["vmScaleSetName"], compute["placementGroupId"]) == ("", "pool")
    assert compute["resourceId"].endswith("/virtualMachines/odd")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("compute", "name"), b"pool_east_4"),
        (("Compute", "NAME"), b"pool_east_4"),
        (("compute", "name", ""), b"pool_east_4"),
        (("compute", "tagslist", "1", "value"), b"web:1"),
        (("network", "interface", "0", "ipv4", "ipAddress", "1", "privateIpAddress"), b"10.0.0.5"),
        (("network", "interface", "0", "macAddress"), b""),
    ],
)
def test_a_leaf_is_text(path: tuple[str, ...], text: bytes) -> None:
    assert instance.leaf(MEMBER, POOL, path, as_text=True) == text
    with pytest.raises(errors.RefusedError, match="format=text"):
        instance.leaf(MEMBER, POOL, path, as_text=False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (("compute", "tagsList", "0"), b'{"name":"team","value":"a b"}'),
        (("network", "interface", "0", "ipv6"), b'{"ipAddress":[{"privateIpAddress":"fd00::4"}]}'),
        (("network", "interface", "0", "ipv4", "subnet"), b"[]"),
    ],
)
def test_a_node_is_json(path: tuple[str, ...], body: bytes) -> None:
    assert instance.leaf(MEMBER, POOL, path, as_text=False) == body
    with pytest.raises(errors.RefusedError, match="not a single value"):
        instance.leaf(MEMBER, POOL, path, as_text=True)


def test_an_empty_segment_is_the_whole() -> None:
    assert instance.leaf(MEMBER, POOL, ("",), as_text=False) == whole(MEMBER, POOL)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (("disk",), "there is no 'disk' here: the keys are compute, network"),
        (("compute", "host"), "there is no 'host' here"),
        (("compute", "name", "x"), "none, it is a leaf"),
        (("network", "interface", "1"), "there is no '1' here: the keys are 0"),
        (("network", "interface", "-1"), "there is no '-1' here"),
        (("network", "interface", "9" * 5000), "there is no '9{80}' here"),
    ],
)
@pytest.mark.parametrize("as_text", [True, False])
def test_what_is_not_there_is_not_found(path: tuple[str, ...], sentence: str, as_text: bool) -> None:
    with pytest.raises(errors.NotFoundError, match=sentence):
        instance.leaf(MEMBER, POOL, path, as_text)


def leaves(node: object) -> Iterator[object]:
    if isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from leaves(child)
    else:
        yield node


@given(st.booleans(), st.integers(0, 999), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_every_primitive_is_a_string(spot: bool, domain: int, tags: dict[str, str]) -> None:
    vm = replace(MEMBER, spot=spot, update_domain=domain, facts=replace(FACTS, tags=tags))
    assert all(isinstance(each, str) for each in leaves(json.loads(whole(vm, POOL))))


def test_versions_from_the_first_on_are_accepted_and_no_others() -> None:
    assert all(map(instance.accepts_version, ["2017-04-02", "2017-08-01", "2020-07-01", "2021-12-13", "2099-01-01"]))
    others = ["latest", "2017-04-01", "2017-03-01", "2020-02-30", "20200701", "2020-W27-3", "2020-7-1", "２020-07-01"]
    assert not any(map(instance.accepts_version, [*others, "", "2020-07-01\n"]))


def test_the_versions_are_listed() -> None:
    assert instance.versions_body() == (
        b'{"apiVersions":["2017-08-01","2017-11-01","2019-01-01","2019-04-01","2019-08-01","2020-07-01"]}'
    )
