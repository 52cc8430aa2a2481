"""`forenotice host|vm|group|fleet`, against a control plane that really runs."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.control.running import Control
from tests.service.inventories import Hosts, domain

from forenotice.service.inventory import InventoryLoop

SAME = "The fleet is as the file says.\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.toml"


def test_hosts(fleet: Run) -> None:
    shown = fleet("host", "add", "spare", "--cordoned").out.split()
    assert shown == ["name", "spare", "VMs", "0", "state", "cordoned"]
    fleet("host", "list").shows("host +state +VMs +used +labels +drift", "host-a +open +1", "spare +cordoned +0")
    for verb, cordoned in ((("uncordon",), False), (("cordon",), True), (("set", "--no-cordoned"), False)):
        assert fleet("host", *verb, "spare", "--json").json["cordoned"] is cordoned
    assert fleet("host", "show", "spare", "--json").json["vms"] == 0
    assert fleet("host", "add", "h", "--address", "10.0.0.1", "--json").json["address"] == "10.0.0.1"
    fleet("host", "show", "h").shows(r"address +10\.0\.0\.1")
    assert fleet("host", "set", "h", "--address", "10.0.0.2", "--json").json["address"] == "10.0.0.2"
    assert fleet("host", "set", "h", "--no-address", "--json").json["address"] is None
    watched = ("--inventory", "libvirt", "--address", "qemu+ssh://h/system")
    assert fleet("host", "set", "h", *watched, "--json").json["inventory"] == "libvirt"
    fleet("host", "show", "h").shows("inventory +libvirt")
    drift = fleet("fleet", "drift")
    assert (drift.code, drift.out) == (0, "No watched host differs from the fleet.\n")
    assert fleet("host", "set", "h", "--no-inventory", "--json").json["inventory"] is None
    assert fleet("host", "remove", "spare").out == "Host spare is removed.\n"
    assert fleet("host", "remove", "host-a", "--json").code == 1
    assert len(fleet("host", "list", "--json").json) == 3


def test_labels_of_hosts(fleet: Run, file: Path) -> None:
    made = fleet("host", "add", "spare", "--label", "rack=r1", "--label", "disk=old", "--cordoned", "--json").json
    assert made["labels"] == {"rack": "r1", "disk": "old"}
    changed = fleet("host", "set", "spare", "--label", "rack=r2", "--no-label", "disk", "--json").json
    assert (changed["labels"], changed["cordoned"]) == ({"rack": "r2"}, True)
    fleet("host", "show", "spare").shows("labels +rack=r2")
    assert "rack=r2" in fleet("host", "list", "--name", "label:rack=r*").out
    fleet("fleet", "export", str(file))
    assert tomllib.loads(file.read_text())["hosts"]["spare"] == {"cordoned": True, "labels": {"rack": "r2"}}
    assert fleet("fleet", "apply", str(file)).out == SAME
    file.write_text('[hosts.spare]\nlabels = { rack = "r3" }\n')
    assert "labels: rack=r2 → rack=r3" in fleet("fleet", "apply", str(file)).out
    assert fleet("host", "show", "spare", "--json").json["cordoned"] is True


def test_capacity_and_size(fleet: Run, file: Path) -> None:
    assert fleet("host", "add", "small", "--capacity", "3", "--json").json["capacity"] == 3
    fleet("vm", "add", "half", "--host", "small", "--size", "0.5", "--fact", "size=m2").shows(
        r"size +0\.5", "vmSize +m2"
    )
    fleet("host", "show", "small").shows(r"used +0\.5 of 3")
    fleet("host", "list").shows(r"small +open +1 +0\.5 of 3")
    refused = fleet("vm", "set", "db", "--host", "small", "--size", "4")
    assert "host small has not enough room for db: it has a capacity of 3, of which 4.5 would be used" in refused.err
    assert fleet("vm", "set", "half", "--no-size", "--json").json["size"] is None
    fleet("vm", "set", "half", "--size", "2")
    fleet("fleet", "export", str(file))
    exported = tomllib.loads(file.read_text())
    assert (exported["hosts"]["small"]["capacity"], exported["vms"]["half"]["size"]) == (3, 2)
    assert fleet("fleet", "apply", str(file)).out == SAME
    file.write_text('[hosts.small]\ncapacity = 1\n[vms.half]\nhost = "small"\nsize = 2.5\n')
    applied = fleet("fleet", "apply", str(file)).out
    assert "capacity: 3 → 1" in applied
    assert "size: 2 → 2.5" in applied
    assert fleet("host", "set", "small", "--no-capacity", "--json").json["capacity"] is None
    for asked in (("host", "set", "small", "--capacity", "inf"), ("vm", "set", "half", "--size", "1e400")):
        assert f"Invalid value for '{asked[3]}': " in fleet(*asked).err


def test_vms(fleet: Run) -> None:
    made = fleet(
        *("vm", "add", "batch", "--host", "host-a", "--spot", "--fault-domain", "2", "--vm-id"),
        *("6AE1D5E0-0000-4000-8000-000000000001", "--fact", "zone=1", "--fact", "os_type=Linux", "--tag", "a=b=c"),
        *("--fact", "offer=debian-12", "--fact", "computer_name=batch-1"),
    )
    made.shows("os type +Linux")
    vm = fleet("vm", "show", "batch", "--json").json
    assert (vm["spot"], vm["fault_domain"], vm["facts"]["zone"], vm["facts"]["tags"]) == (True, 2, "1", {"a": "b=c"})
    assert (vm["facts"]["offer"], vm["facts"]["computer_name"], vm["facts"]["sku"]) == ("debian-12", "batch-1", "")
    how = ("--host", "host-b", "--no-spot", "--address", "10.1.1.1", "--no-tags", "--json")
    changed = fleet("vm", "set", "batch", *how).json
    assert (changed["host"], changed["spot"], changed["addresses"]) == ("host-b", False, ["10.1.1.1"])
    assert changed["facts"]["tags"] == {}
    assert fleet("vm", "set", "batch", "--no-addresses", "--tag", "x=y", "--json").json["addresses"] == []
    assert fleet("vm", "set", "web-0", "--no-group", "--json").json["group"] is None
    assert [vm["name"] for vm in fleet("vm", "list", "--host", "host-b", "--json").json] == ["batch", "db"]
    assert "10.0.0.9" in fleet("vm", "list").out
    assert fleet("vm", "list", "--group", "web").out.startswith("There are no VMs")
    assert fleet("vm", "remove", "batch").out == "VM batch is removed from the records.\n"
    assert fleet("vm", "remove", "db", "--json").json == {"removed": "db"}


def test_a_name_that_was_used_before_is_warned_of(fleet: Run, file: Path) -> None:
    file.write_text('[vms.db]\nhost = "host-b"\n')
    for key, command in (
        ("vm:db", ("vm", "add", "db", "--host", "host-b")),
        ("group:shop", ("group", "add", "shop")),
        ("vm:db", ("fleet", "apply", str(file))),
    ):
        noun, name = key.split(":")
        if noun == "group":
            fleet("group", "add", name)
        fleet(noun, "remove", name)
        assert fleet(*command, failing=0).err.startswith(f"forenotice: warning: {key} was used before, until ")


def test_groups_and_policies(fleet: Run) -> None:
    made = fleet("group", "add", "pool", "--kind", "placement-group", "--terminate-notice", "5")
    made.shows("terminate notice +5 min")
    assert fleet("group", "set", "pool", "--max-user-operations", "3", "--json").json["policy"] == {
        "listening": "auto",
        "auto_approve_restart": False,
        "auto_approve_redeploy": False,
        "terminate_notice_minutes": 5,
        "max_user_operations": 3,
        "max_unavailable": None,
        "min_available": None,
        "windows": [],
        "shutdown_timeout_seconds": 60,
    }
    policy = fleet("group", "policy", "pool", "--terminate-notice", "off", "--auto-approve-restart", "--json").json
    assert (policy["terminate_notice_minutes"], policy["auto_approve_restart"]) == (None, True)
    policy = fleet("group", "policy", "pool", "--no-auto-approve-restart", "--auto-approve-redeploy", "--json").json
    assert (policy["auto_approve_restart"], policy["auto_approve_redeploy"]) == (False, True)
    fleet("group", "policy", "pool").shows("terminate notice +off", "shutdown timeout +60 s")
    fleet("group", "policy", "pool", "--shutdown-timeout", "5m").shows("shutdown timeout +300 s")
    assert "whole seconds" in fleet("group", "policy", "pool", "--shutdown-timeout", "1.5").err
    assert "seconds such as 9" in fleet("group", "policy", "pool", "--shutdown-timeout", "long").err
    assert fleet("group", "show", "pool", "--json").json["kind"] == "placement-group"
    assert [line.split()[0] for line in fleet("group", "list").out.splitlines()] == ["group", "pool", "web"]
    assert fleet("vm", "policy", "db", "--listening", "never", "--json").json["listening"] == "never"
    fleet("vm", "policy", "db").shows("listening +never")
    fleet("vm", "show", "db").shows("listening now +no", "listening +never")
    assert "forenotice group policy web" in fleet("vm", "policy", "web-0").err
    assert fleet("group", "remove", "pool").out == "Group pool is removed.\n"
    assert fleet("group", "remove", "web", "--json").code == 1


def test_budgets_and_windows(fleet: Run, file: Path) -> None:
    night, day = "mon-fri 22:00-04:00 Europe/Berlin", "sat,sun 00:00-24:00 UTC"
    given = ("--max-unavailable", "25%", "--min-available", "2", "--window", night, "--window", day)
    shown = fleet("group", "policy", "web", *given)
    shown.shows("max unavailable +25%", "min available +2", f"windows +{night}, {day}")
    assert fleet("group", "set", "web", "--max-unavailable", "1", "--json").json["policy"]["max_unavailable"] == 1
    assert fleet("vm", "policy", "db", "--window", night, "--json").json["windows"] == [night]
    fleet("fleet", "export", str(file))
    policy = tomllib.loads(file.read_text())["groups"]["web"]["policy"]
    assert (policy["max_unavailable"], policy["min_available"], policy["windows"]) == (1, 2, [night, day])
    cleared = ("--max-unavailable", "off", "--min-available", "off", "--no-windows")
    fleet("group", "policy", "web", *cleared).shows("max unavailable +off", "windows +at any time")
    file.write_text(file.read_text().replace("max_unavailable = 1", 'max_unavailable = "50%"'))
    applied = fleet("fleet", "apply", str(file)).out
    assert "max_unavailable: none → 50%; min_available: none → 2; windows: none → mon-fri" in applied
    assert fleet("fleet", "apply", str(file)).out == SAME


def test_a_fleet_is_exported_and_applied(fleet: Run, file: Path) -> None:
    fleet("vm", "set", "db", "--tag", 'owner="Ä" \\ B', "--fact", "zone=1")
    printed = fleet("fleet", "export").out
    assert tomllib.loads(printed)["vms"]["db"]["facts"]["tags"] == {"owner": '"Ä" \\ B'}
    assert fleet("fleet", "export", str(file)).out == f"The fleet is in {file}.\n"
    assert file.read_text() == printed
    assert fleet("fleet", "apply", str(file), "--prune").out == SAME
    as_json = file.with_suffix(".json")
    assert fleet("fleet", "export", str(as_json), "--json").json == {"file": str(as_json)}
    assert json.loads(as_json.read_text()) == fleet("fleet", "export", "--json").json
    nothing = {"changes": [], "kept": [], "applied": True, "warnings": []}
    assert fleet("fleet", "apply", str(as_json), "--json").json == nothing


def test_a_fleet_is_applied_or_only_shown(fleet: Run, tmp_path: Path) -> None:
    file = tmp_path / "fleet.txt"
    applying = ("fleet", "apply", str(file), "--format", "toml")
    file.write_text("[hosts.host-a]\n[hosts.host-z]\ncordoned = true\n")
    shown = fleet(*applying, "--dry-run").out
    assert "host-z" in shown
    assert "1 change, not applied." in shown
    assert fleet("host", "show", "host-z").code == 1
    assert "Applied 1 change." in fleet(*applying).out
    assert fleet("host", "show", "host-z", "--json").json["cordoned"] is True
    file.write_text('[vms.db]\nhost = "host-a"\nfacts = { zone = "1" }\n')
    fleet(*applying).shows(
        r"change +vm +db +addresses: 10\.0\.0\.9 → none; facts: none → zone=1",
        r"keep +vm +db +host: host-b \(the file says host-a\)",
    )
    file.write_text("[hosts.host-a]\n[hosts.host-z]\ncordoned = true\n")
    pruned = fleet(*applying, "--prune", "--json").json
    assert ("remove", "db") in {(change["action"], change["name"]) for change in pruned["changes"]}


def test_a_vm_stays_where_the_service_moved_it(fleet: Run, file: Path) -> None:
    fleet("fleet", "export", str(file))
    fleet("vm", "set", "db", "--host", "host-a")
    for _ in range(2):
        _, kept, where = fleet("fleet", "apply", str(file)).out.splitlines()
        assert kept.split(maxsplit=3) == ["keep", "vm", "db", "host: host-a (the file says host-b)"]
        assert where.startswith("On another host than the file says: 1 VM. ")
    assert fleet("vm", "show", "db", "--json").json["host"] == "host-a"
    shown = fleet("fleet", "apply", str(file), "--move", "--dry-run").out
    assert "host: host-a → host-b\n1 change, not applied.\n" in shown
    assert "Applied 1 change." in fleet("fleet", "apply", str(file), "--move").out
    assert fleet("vm", "show", "db", "--json").json["host"] == "host-b"


def test_a_file_is_compared_with_the_fleet(fleet: Run, file: Path) -> None:
    fleet("fleet", "export", str(file))
    same = fleet("fleet", "diff", str(file))
    assert (same.code, same.out) == (0, SAME)
    fleet("vm", "set", "db", "--host", "host-a")
    fleet("host", "add", "spare")
    file.write_text(file.read_text() + "[hosts.host-z]\n")
    ran = fleet("fleet", "diff", str(file), failing=1)
    assert ran.err == ""
    assert [re.split(" {2,}", line) for line in ran.out.splitlines()] == [
        ["what", "name", "difference"],
        ["host", "host-z", "only in the file"],
        ["vm", "db", "host: host-a (the file says host-b)"],
        ["host", "spare", "only in the service"],
        ["3 differences."],
    ]
    differences = fleet("fleet", "diff", str(file), "--json", failing=1).json["differences"]
    assert [each["action"] for each in differences] == ["add", "change", "remove"]
    assert fleet("host", "show", "host-z").code == 1
    file.write_text("[hosts")
    for arguments, sentence in (
        ((str(file),), "is not TOML"),
        (("none.toml",), "none.toml cannot be read"),
        (("fleet.yaml",), "give --format"),
        ((str(file), "--token", "t", "--control-url", "http://127.0.0.1:9"), "127.0.0.1:9"),
    ):
        ran = fleet("fleet", "diff", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n"), sentence in ran.err) == (2, "", 1, True)


def test_filtered_lists(fleet: Run) -> None:
    def names(*arguments: str) -> list[str]:
        return [each["name"] for each in fleet(*arguments, "--json").json]

    fleet("host", "cordon", "host-b")
    assert names("host", "list", "--name", "host-*,!host-a") == names("host", "list", "--cordoned") == ["host-b"]
    assert names("vm", "list", "--name", "web-*") == ["web-0"]
    assert names("vm", "list", "--spot") == []
    assert names("group", "list", "--name", "w*") == ["web"]
    assert fleet("host", "list", "--name", "label:rack=r9").out == "There are no matching hosts.\n"


def test_drift(fleet: Run, module_control: Control) -> None:
    hosts = Hosts(domains={"host-a": [domain("bad name", 1)]}, silent={"host-b": "no route to host"})
    loop = InventoryLoop(module_control.service, hosts.open)
    for name in ("host-a", "host-b"):
        fleet("host", "set", name, "--inventory", "libvirt", "--address", "test:///default")
    loop.step()
    found = fleet("fleet", "drift", failing=1)
    found.shows(
        r"host-a +bad name +refused +\S.* +it cannot be added: 'bad name' is not a VM name.*",
        r"host-a +web-0 +missing +\S.* +host host-a no longer has it.*",
    )
    assert [each["kind"] for each in fleet("fleet", "drift", "--json", failing=1).json["items"]] == [
        "refused",
        "missing",
    ]
    assert fleet("fleet", "drift", "--host", "host-b").code == 0
    fleet("host", "list").shows(r"host-a +open +1 +2", r"host-b +open, does not answer +1")
    fleet("host", "show", "host-a").shows(r"drift +bad name is refused: .*; web-0 is missing: .*")
    fleet("host", "show", "host-b").shows(r"silent since +\S.*", "silent because +no route to host")
    assert [each["kind"] for each in fleet("vm", "show", "web-0", "--json").json["drift"]] == ["missing"]
    fleet("vm", "show", "web-0").shows("drift +web-0 is missing: host host-a no longer has it.*")
    fleet("vm", "list").shows("web-0 .* missing")
    fleet("history", "--vm", "web-0").shows(".*VM web-0 is missing: host-a no longer has it.*")
    hosts.silent.clear()
    for name in ("host-a", "host-b"):
        hosts.domains[name] = [domain("web-0", 7)]
        hosts.changed(name)
    loop.step()
    fleet("vm", "show", "web-0").shows(r"drift +web-0 is duplicate: web-0 runs on host-a and host-b [^;]*")
    fleet("vm", "list").shows("web-0 [^,]* duplicate")
    fleet("host", "set", "host-b", "--no-inventory")
    loop.step()
