"""Hosts, VMs, groups and the fleet as a whole, over HTTP."""

from typing import Any

import msgspec
import pytest
from tests.control.conftest import settled
from tests.control.running import Control, Said

from forenotice.views.fleet import Applied, Compared


@pytest.fixture(scope="module")
def untouched(unchanged: Control) -> Control:
    """A fleet for tests that leave it alone."""
    return settled(unchanged)


def names(control: Control, path: str) -> list[str]:
    return [each["name"] for each in control.get(path)["items"]]


def test_a_host_from_its_first_day_to_its_last(control: Control) -> None:
    made = control.ask("POST", "/v1/hosts", {"name": "host-a"})
    empty = {"name": "host-a", "cordoned": False, "labels": {}, "capacity": None, "address": None, "used": 0, "vms": 0}
    empty |= {"inventory": None, "silent_since": None, "silent_because": None, "drift": 0}
    assert (made.status, made.json) == (201, empty)
    assert control.ask("PATCH", "/v1/hosts/host-a", {"cordoned": True}).json == {**empty, "cordoned": True}
    assert control.ask("DELETE", "/v1/hosts/host-a").json == {"removed": "host-a"}
    gone = control.ask("GET", "/v1/hosts/host-a")
    assert (gone.status, gone.code, "'host-a'" in gone.message) == (404, "not_found", True)


def test_labels_address_and_capacity_of_a_host(fleet: Control) -> None:
    address = "qemu+ssh://small/system"
    body = {"name": "small", "labels": {"rack": "r1", "disk": "old"}, "address": address, "capacity": 2}
    made = fleet.post("/v1/hosts", body)
    assert {name: made[name] for name in body} == body
    changed = fleet.ask("PATCH", "/v1/hosts/small", {"labels": {"rack": "r2", "disk": None, "none": None}}).json
    assert (changed["labels"], changed["cordoned"], changed["address"]) == ({"rack": "r2"}, False, address)
    assert names(fleet, "/v1/hosts?name=label:rack%3Dr2") == ["small"]
    assert "only hosts have" in fleet.ask("GET", "/v1/vms?name=label:rack%3Dr2").message
    assert fleet.get("/v1/fleet")["hosts"]["small"] == {"labels": {"rack": "r2"}, "address": address, "capacity": 2}
    vm = fleet.post("/v1/vms", {"name": "half", "host": "small", "size": 0.5, "facts": {"size": "m2"}})
    assert (vm["size"], vm["facts"]["size"]) == (0.5, "m2")
    refused = fleet.ask("POST", "/v1/vms", {"name": "two", "host": "small", "size": 2})
    facts = {"host": "small", "vm": "two", "capacity": 2, "used": 2.5}
    assert (refused.status, refused.json["error"]["facts"]) == (409, facts)
    assert fleet.ask("PATCH", "/v1/vms/half", {"size": None}).json["size"] is None
    lower = fleet.ask("PATCH", "/v1/hosts/small", {"capacity": 0.25}).json
    assert (lower["capacity"], lower["used"]) == (0.25, 1)
    assert fleet.get("/v1/hosts?name=small")["items"] == [fleet.get("/v1/hosts/small")] == [lower]
    for field, wrong in (
        ("labels", ({"rack": "r 2"},)),
        ("address", ("", "two words", "x" * 257, 7)),
        ("capacity", (-1, 1e16, "8")),
    ):
        for value in wrong:
            assert fleet.ask("PATCH", "/v1/hosts/small", {field: value}).status == 400
    assert fleet.ask("PATCH", "/v1/hosts/small", {"inventory": "libvirt"}).json["inventory"] == "libvirt"
    assert fleet.get("/v1/fleet")["hosts"]["small"]["inventory"] == "libvirt"
    assert "needs the host's connection URI" in fleet.ask("PATCH", "/v1/hosts/small", {"address": None}).message
    assert fleet.ask("PATCH", "/v1/hosts/small", {"inventory": "none"}).status == 400
    assert fleet.get("/v1/fleet/drift") == {"items": [], "more": False}
    assert fleet.ask("PATCH", "/v1/hosts/small", {"inventory": None}).json["inventory"] is None
    cleared = fleet.ask("PATCH", "/v1/hosts/small", {"address": None, "capacity": None}).json
    assert (cleared["address"], cleared["capacity"]) == (None, None)


def test_a_vm_and_its_changes(fleet: Control) -> None:
    facts = {"zone": "2", "tags": {"team": "data"}}
    body = {"addresses": ["10.0.0.9", "fd00::9"], "spot": True, "facts": facts}
    assert fleet.ask("PATCH", "/v1/vms/db", body).status == 200
    fleet.ask("PATCH", "/v1/vms/db", {"facts": {"location": "here"}})
    vm = fleet.get("/v1/vms/db")
    assert (vm["addresses"], vm["spot"], vm["host"]) == (["10.0.0.9", "fd00::9"], True, "host-b")
    assert vm["facts"] | facts | {"location": "here"} == vm["facts"]
    assert fleet.ask("PATCH", "/v1/vms/web-1", {"group": None}).json["group"] is None
    assert fleet.ask("DELETE", "/v1/vms/db").json == {"removed": "db"}


def test_policies(fleet: Control) -> None:
    changed = fleet.ask("PATCH", "/v1/groups/web/policy", {"terminate_notice_minutes": 5, "auto_approve_restart": True})
    assert changed.json == {
        "listening": "always",
        "auto_approve_restart": True,
        "auto_approve_redeploy": False,
        "terminate_notice_minutes": 5.0,
        "max_user_operations": None,
        "max_unavailable": None,
        "min_available": None,
        "windows": [],
        "shutdown_timeout_seconds": 60,
    }
    shown = fleet.ask("PATCH", "/v1/groups/web", {"policy": {"max_user_operations": 2}})
    assert shown.json["policy"]["max_user_operations"] == 2
    assert shown.json["policy"]["auto_approve_restart"] is True
    assert fleet.ask("PATCH", "/v1/vms/db/policy", {"auto_approve_restart": True}).json["auto_approve_restart"] is True
    refused = fleet.ask("PATCH", "/v1/vms/web-0/policy", {"auto_approve_restart": True})
    assert (refused.status, refused.code) == (409, "conflict")
    assert refused.json["error"]["facts"] == {"vm": "web-0", "group": "web"}
    assert fleet.ask("PATCH", "/v1/vms/none/policy", {}).status == 404


def test_budgets_and_windows(fleet: Control) -> None:
    def change(what: str, **policy: object) -> Said:
        return fleet.ask("PATCH", f"/v1/{what}/policy", policy)

    budget = change(
        "groups/web", max_unavailable="25%", min_available=1, windows=["Mon 22:00-00:00 Europe/Berlin"]
    ).json
    assert (budget["max_unavailable"], budget["min_available"]) == ("25%", 1)
    assert budget["windows"] == ["mon 22:00-24:00 Europe/Berlin"]
    assert change("groups/web", max_unavailable=2).json == budget | {"max_unavailable": 2}
    cleared = change("groups/web", max_unavailable=None, min_available=None, windows=[]).json
    assert (cleared["max_unavailable"], cleared["min_available"], cleared["windows"]) == (None, None, [])
    assert change("vms/db", shutdown_timeout_seconds=0).json["shutdown_timeout_seconds"] == 0
    assert change("vms/db", windows=["daily 01:00-02:00 UTC"]).json["windows"] == ["daily 01:00-02:00 UTC"]
    for what, policy, said in (
        ("groups/web", {"max_unavailable": "0%"}, "max_unavailable in the body must be a number, or a part"),
        ("groups/web", {"max_unavailable": 0}, "max_unavailable in the body must be at least 1"),
        ("groups/web", {"max_unavailable": 1.5}, "must be an integer or a string or null, not a number"),
        ("groups/web", {"max_unavailable": True}, "must be an integer or a string or null, not true or false"),
        ("groups/web", {"min_available": -1}, "at least 0"),
        ("groups/web", {"windows": ["at night"]}, "'at night' is not a window: give days, hours and a zone"),
        ("groups/web", {"windows": ["daily 01:00-02:00 UTC"] * 21}, "at most 20 items"),
        ("groups/web", {"terminate_notice_minutes": 99}, "terminate notice must be from 5 to 15"),
        ("groups/web", {"auto_approve": True}, "is not known any more: give auto_approve_restart and auto_approve_r"),
        ("vms/db", {"max_unavailable": 1}, "only a group has a budget"),
        ("vms/db", {"shutdown_timeout_seconds": 3601}, "must be at most 3600"),
        ("vms/db", {"shutdown_timeout_seconds": 1.5}, "must be an integer"),
    ):
        refused = change(what, **policy)
        assert (refused.status, refused.code) == (400, "refused")
        assert said in refused.message


def test_a_group_goes_when_it_is_empty(fleet: Control) -> None:
    assert fleet.ask("DELETE", "/v1/groups/web").status == 409
    fleet.ask("DELETE", "/v1/vms/web-0")
    fleet.ask("DELETE", "/v1/vms/web-1")
    assert fleet.ask("DELETE", "/v1/groups/web").json == {"removed": "web"}


def test_lists_are_filtered_and_come_page_by_page(untouched: Control) -> None:
    for noun in ("hosts", "vms"):
        whole = untouched.get(f"/v1/{noun}")
        assert (whole["next"], len(whole["items"]) >= 3) == (None, True)
        assert untouched.listed(f"/v1/{noun}", 1) == whole["items"]
    assert names(untouched, "/v1/vms?host=host-b") == ["db", "web-1"]
    assert names(untouched, "/v1/vms?group=web") == ["web-0", "web-1"]
    assert names(untouched, "/v1/groups") == ["web"]


def test_what_is_asked_twice_under_a_key_is_answered_alike_whatever_happened_since(fleet: Control) -> None:
    def ask(path: str, body: object) -> tuple[int, object]:
        said = fleet.ask("PATCH", path, body, headers={"Idempotency-Key": path})
        return said.status, said.json

    fleet.post("/v1/groups", {"name": "new", "kind": "cloud-service"})
    group, vm = (
        ("/v1/groups/new", {"policy": {"auto_approve_restart": True}}),
        ("/v1/vms/batch/policy", {"auto_approve_restart": True}),
    )
    before = ask(*group), ask(*vm)
    assert [status for status, _ in before] == [200, 200]
    fleet.ask("DELETE", "/v1/groups/new")
    fleet.ask("DELETE", "/v1/vms/batch")
    assert (ask(*group), ask(*vm)) == before


def post_json(fleet: Control, path: str, document: object) -> Any:
    said = fleet.ask("POST", path, document, headers={"Content-Type": "application/json"})
    assert said.status == 200, said.body
    return said.json


def test_what_is_exported_can_be_applied(fleet: Control) -> None:
    exported = fleet.get("/v1/fleet")
    nothing = {"changes": [], "kept": [], "applied": True, "warnings": []}
    assert post_json(fleet, "/v1/fleet?prune=true", exported) == nothing
    assert post_json(fleet, "/v1/fleet/diff", exported) == {"differences": []}


def test_a_vm_that_runs_elsewhere_is_told_and_stays_there(fleet: Control) -> None:
    elsewhere = fleet.get("/v1/fleet")
    elsewhere["vms"]["db"] |= {"host": "host-a", "spot": True}
    moved = {"noun": "vm", "name": "db", "fields": {"host": {"from": "host-b", "to": "host-a"}}}
    applied = post_json(fleet, "/v1/fleet", elsewhere)
    msgspec.convert(applied, type=Applied)
    assert applied["kept"] == [{"action": "keep", **moved}]
    assert [list(each["fields"]) for each in applied["changes"]] == [["spot"]]
    compared = post_json(fleet, "/v1/fleet/diff", elsewhere)
    msgspec.convert(compared, type=Compared)
    assert compared == {"differences": [{"action": "change", **moved}]}
    assert post_json(fleet, "/v1/fleet?move=true", elsewhere)["changes"] == compared["differences"]
    assert fleet.get("/v1/vms/db")["host"] == "host-a"


TOML = b'[hosts.host-a]\n[vms.web-0]\nhost = "host-a"\naddresses = ["10.0.0.7"]\n[vms.new]\nhost = "host-a"\n'


def test_a_file_is_applied_whole_or_only_shown(fleet: Control) -> None:
    toml = {"Content-Type": "application/toml; charset=utf-8"}
    shown = fleet.ask("POST", "/v1/fleet?dry_run=true", TOML, headers=toml)
    assert shown.status == 200, shown.body
    msgspec.convert(shown.json, type=Applied)
    assert shown.json["applied"] is False
    assert ("add", "new") in {(change["action"], change["name"]) for change in shown.json["changes"]}
    assert fleet.ask("GET", "/v1/vms/new").status == 404
    assert fleet.ask("POST", "/v1/fleet", TOML, headers=toml).json["applied"] is True
    assert fleet.get("/v1/vms/new")["host"] == "host-a"
    assert fleet.get("/v1/vms/db")["host"] == "host-b"
    pruned = fleet.ask("POST", "/v1/fleet?prune=true", TOML, headers=toml).json
    assert ("remove", "db") in {(change["action"], change["name"]) for change in pruned["changes"]}
    assert [host["name"] for host in fleet.get("/v1/hosts")["items"]] == ["host-a"]


FACTS = b'{"vms": {"new": {"host": "host-a", "facts": {%s}}}}'
TAGS = b", ".join(b'"t%d": ""' % number for number in range(65))
ADDRESSES = b'{"vms": {"new": {"host": "host-a", "addresses": [%s]}}}' % b", ".join([b'"10.0.0.7"'] * 65)


def test_a_failed_host_stays_cordoned(fleet: Control) -> None:
    fleet.post("/v1/operations", {"kind": "hardware-failure", "names": ["host-b"]})
    assert fleet.post_fleet(b"[hosts.host-b]\n")["changes"] == []
    assert fleet.get("/v1/hosts/host-b")["cordoned"] is True
    assert len(fleet.post_fleet(b"[hosts.host-b]\ncordoned = false\n")["changes"]) == 1


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (TOML, "text/plain", "'text/plain' is not the type of a fleet"),
        (b"{]", "application/json", "not JSON"),
        (b"[hosts", "application/toml", "not TOML"),
        (b"\xff", "application/toml", "UTF-8"),
        (b"\xff", "application/json", "not JSON"),
        (b"a = " + b"[" * 100_000, "application/toml", "nested too deeply"),
        (b"a = " + b"9" * 5_000, "application/toml", "too many digits"),
        (b"[" * 100_000, "application/json", "not JSON"),
        (b'{"vms": {"new": {"host": "nope"}}}', "application/json", "vms.new: there is no host 'nope'"),
        (b'{"vms": {"new": {"host": 5}}}', "application/json", "host in vms.new must be a string"),
        (b'{"vms": {"new": {"group": "web"}}}', "application/json", "host in vms.new is missing"),
        (b'{"vms": {"new": 5}}', "application/json", "vms.new must be an object"),
        (b'{"vms": []}', "application/json", "vms in the file must be an object"),
        (b"[]", "application/json", "the file must be an object"),
        (b'{"vms": {"new": {"host": "host-a", "vm_id": ""}}}', "application/json", "vms.new: '' is not a vmId"),
        (FACTS % b'"zone": "a\\u0007"', "application/json", "facts.zone in vms.new must not hold control characters"),
        (FACTS % b'"tags": {%s}' % TAGS, "application/json", "facts.tags in vms.new must have at most 64"),
        (ADDRESSES, "application/json", "addresses in vms.new must have at most 64"),
        (b'{"hosts": {"a/b": {}}}', "application/json", "not a host name"),
        (b'{"hats": {}}', "application/json", "hats in the file is not known"),
    ],
)
def test_a_bad_file_changes_nothing(untouched: Control, body: bytes, kind: str, said: str) -> None:
    before = untouched.get("/v1/fleet")
    answer = untouched.ask("POST", "/v1/fleet?prune=true", body, headers={"Content-Type": kind})
    assert (answer.status, answer.code) == ((404, "not_found") if "there is no" in said else (400, "refused"))
    assert said in answer.message
    assert untouched.get("/v1/fleet") == before


def test_a_conflict_tells_what_there_is(fleet: Control) -> None:
    subscription = {"name": "pager", "url": "https://hooks.example.com/"}
    made = fleet.post("/v1/subscriptions", subscription)
    group, vm = {"name": "web", "kind": "cloud-service"}, {"name": "db", "host": "host-a"}
    eviction = {"kind": "eviction", "names": ["db"]}
    refused: list[tuple[str, str, object, dict[str, object]]] = [
        ("DELETE", "/v1/hosts/host-a", None, {"host": "host-a", "vms": 2, "such_as": ["web-0", "batch"]}),
        ("DELETE", "/v1/groups/web", None, {"group": "web", "vms": 2, "such_as": ["web-0", "web-1"]}),
        ("POST", "/v1/hosts", {"name": "host-a"}, {"host": "host-a", "cordoned": False}),
        ("POST", "/v1/groups", group, {"group": "web", "kind": "availability-set"}),
        ("POST", "/v1/vms", vm, {"vm": "db", "host": "host-b", "group": None}),
        ("POST", "/v1/operations", eviction, {"vm": "db", "spot": False}),
        ("POST", "/v1/subscriptions", subscription, {"name": "pager", "id": made["id"], "status": "active"}),
    ]
    for method, path, body, facts in refused:
        said = fleet.ask(method, path, body)
        assert (said.status, said.code, said.json["error"]["facts"]) == (409, "conflict", facts), path
