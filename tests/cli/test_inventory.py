"""`forenotice host|vm|group|fleet`, against a control plane that really runs."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from forenotice.cli.main import main


def test_hosts(fresh: Run) -> None:
    assert fresh("host", "add", "spare", "--cordoned").out.split() == ["name", "spare", "VMs", "0", "state", "cordoned"]
    listed = fresh("host", "list").out.splitlines()
    assert listed[0].split() == ["host", "state", "VMs", "used", "labels"]
    assert [line.split() for line in listed[1:]] == [
        ["host-a", "open", "1"],
        ["host-b", "open", "1"],
        ["spare", "cordoned", "0"],
    ]
    assert fresh("host", "uncordon", "spare", "--json").json["cordoned"] is False
    assert fresh("host", "cordon", "spare", "--json").json["cordoned"] is True
    assert fresh("host", "set", "spare", "--no-cordoned", "--json").json["cordoned"] is False
    assert fresh("host", "show", "spare", "--json").json["vms"] == 0
    assert fresh("host", "remove", "spare").out == "Host spare is removed.\n"
    assert fresh("host", "remove", "host-a", "--json").code == 1
    assert len(fresh("host", "list", "--json").json) == 2


def test_labels_of_hosts(fresh: Run, tmp_path: Path) -> None:
    made = fresh("host", "add", "spare", "--label", "rack=r1", "--label", "disk=old", "--cordoned", "--json").json
    assert made["labels"] == {"rack": "r1", "disk": "old"}
    changed = fresh("host", "set", "spare", "--label", "rack=r2", "--no-label", "disk", "--json").json
    assert (changed["labels"], changed["cordoned"]) == ({"rack": "r2"}, True)
    assert re.search(r"^labels +rack=r2$", fresh("host", "show", "spare").out, re.MULTILINE)
    assert "rack=r2" in fresh("host", "list", "--name", "label:rack=r*").out
    assert [host["name"] for host in fresh("host", "list", "--name", "!label:rack=r2", "--json").json] == [
        "host-a",
        "host-b",
    ]
    file = tmp_path / "fleet.toml"
    fresh("fleet", "export", str(file))
    assert tomllib.loads(file.read_text())["hosts"]["spare"] == {"cordoned": True, "labels": {"rack": "r2"}}
    assert fresh("fleet", "apply", str(file)).out == "The fleet is as the file says.\n"
    file.write_text('[hosts.spare]\nlabels = { rack = "r3" }\n')
    assert "labels: rack=r2 → rack=r3" in fresh("fleet", "apply", str(file)).out
    assert fresh("host", "show", "spare", "--json").json["cordoned"] is True


def test_the_address_of_a_host(fresh: Run) -> None:
    assert fresh("host", "add", "h", "--address", "10.0.0.1", "--json").json["address"] == "10.0.0.1"
    assert "10.0.0.1" in fresh("host", "show", "h").out
    assert fresh("host", "set", "h", "--address", "10.0.0.2", "--json").json["address"] == "10.0.0.2"
    assert fresh("host", "set", "h", "--no-address", "--address", "10.0.0.1").code == 2
    assert fresh("host", "set", "h", "--no-address", "--json").json["address"] is None


def test_capacity_and_size(fresh: Run, tmp_path: Path) -> None:
    assert fresh("host", "add", "small", "--capacity", "3", "--json").json["capacity"] == 3
    made = fresh("vm", "add", "half", "--host", "small", "--size", "0.5", "--fact", "size=m2").out
    assert re.search(r"^size +0\.5$", made, re.MULTILINE)
    assert re.search(r"^vmSize +m2$", made, re.MULTILINE)
    assert re.search(r"^used +0\.5 of 3$", fresh("host", "show", "small").out, re.MULTILINE)
    assert re.search(r"small +open +1 +0\.5 of 3", fresh("host", "list").out)
    refused = fresh("vm", "set", "db", "--host", "small", "--size", "4")
    assert "host small has not enough room for db: it has a capacity of 3, of which 4.5 would be used" in refused.err
    assert fresh("vm", "set", "half", "--no-size", "--json").json["size"] is None
    file = tmp_path / "fleet.toml"
    fresh("vm", "set", "half", "--size", "2")
    fresh("fleet", "export", str(file))
    exported = tomllib.loads(file.read_text())
    assert (exported["hosts"]["small"]["capacity"], exported["vms"]["half"]["size"]) == (3, 2)
    assert fresh("fleet", "apply", str(file)).out == "The fleet is as the file says.\n"
    file.write_text('[hosts.small]\ncapacity = 1\n[vms.half]\nhost = "small"\nsize = 2.5\n')
    applied = fresh("fleet", "apply", str(file)).out
    assert "capacity: 3 → 1" in applied
    assert "size: 2 → 2.5" in applied
    file.write_text('[vms.half]\nhost = "small"\nsize = "m2"\n')
    assert "vms.half: size is how much of its host's capacity the VM takes, a number such as 4; what guests see as" in (
        fresh("fleet", "apply", str(file)).err
    )
    assert fresh("host", "set", "small", "--no-capacity", "--json").json["capacity"] is None
    assert fresh("host", "set", "small", "--no-capacity", "--capacity", "1").code == 2
    for asked in (("host", "set", "small", "--capacity", "inf"), ("vm", "set", "half", "--size", "1e400")):
        assert f"Invalid value for '{asked[3]}': " in fresh(*asked).err


def test_vms(fresh: Run) -> None:
    made = fresh(
        *("vm", "add", "batch", "--host", "host-a", "--spot", "--fault-domain", "2", "--vm-id"),
        *("6AE1D5E0-0000-4000-8000-000000000001", "--fact", "zone=1", "--fact", "os_type=Linux", "--tag", "a=b=c"),
        *("--fact", "offer=debian-12", "--fact", "computer_name=batch-1"),
    )
    assert made.code == 0
    assert "os type" in made.out
    vm = fresh("vm", "show", "batch", "--json").json
    assert (vm["spot"], vm["fault_domain"], vm["facts"]["zone"], vm["facts"]["tags"]) == (True, 2, "1", {"a": "b=c"})
    assert (vm["facts"]["offer"], vm["facts"]["computer_name"], vm["facts"]["sku"]) == ("debian-12", "batch-1", "")
    changed = fresh(
        *("vm", "set", "batch", "--host", "host-b", "--no-spot", "--address", "10.1.1.1", "--no-tags", "--json")
    ).json
    assert (changed["host"], changed["spot"], changed["addresses"]) == ("host-b", False, ["10.1.1.1"])
    assert changed["facts"]["tags"] == {}
    assert fresh("vm", "set", "batch", "--no-addresses", "--tag", "x=y", "--json").json["addresses"] == []
    assert fresh("vm", "set", "web-0", "--no-group", "--json").json["group"] is None
    assert [vm["name"] for vm in fresh("vm", "list", "--host", "host-b", "--json").json] == ["batch", "db"]
    assert "10.0.0.9" in fresh("vm", "list").out
    assert fresh("vm", "list", "--group", "web").out.startswith("There are no VMs")
    assert "last heard" not in fresh("vm", "show", "db").out
    assert fresh("vm", "remove", "batch").out == "VM batch is removed from the records.\n"
    assert fresh("vm", "remove", "db", "--json").json == {"removed": "db"}


def test_a_name_that_was_anothers_is_warned_of(fresh: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fleet.toml").write_text('[vms.db]\nhost = "host-b"\n[groups.shop]\nkind = "availability-set"\n')
    fresh("group", "add", "shop", "--kind", "availability-set")
    for key, command in (
        ("vm:db", ("vm", "add", "db", "--host", "host-b")),
        ("group:shop", ("group", "add", "shop", "--kind", "availability-set")),
        ("vm:db", ("fleet", "apply", str(tmp_path / "fleet.toml"))),
    ):
        noun, name = key.split(":")
        fresh(noun, "remove", name)
        capsys.readouterr()
        assert main(command) == 0
        assert capsys.readouterr().err.startswith(f"forenotice: warning: {key} was used before, until ")


def test_groups_and_policies(fresh: Run) -> None:
    pool = fresh("group", "add", "pool", "--kind", "placement-group", "--terminate-notice", "5").out
    assert re.search(r"terminate notice +5 min", pool)
    assert fresh("group", "set", "pool", "--max-user-operations", "3", "--json").json["policy"] == {
        "listening": "auto",
        "auto_approve_restart": False,
        "auto_approve_redeploy": False,
        "terminate_notice_minutes": 5,
        "max_user_operations": 3,
        "max_unavailable": None,
        "min_available": None,
        "windows": [],
    }
    policy = fresh("group", "policy", "pool", "--terminate-notice", "off", "--auto-approve-restart", "--json").json
    assert (policy["terminate_notice_minutes"], policy["auto_approve_restart"]) == (None, True)
    policy = fresh("group", "policy", "pool", "--no-auto-approve-restart", "--auto-approve-redeploy", "--json").json
    assert (policy["auto_approve_restart"], policy["auto_approve_redeploy"]) == (False, True)
    assert fresh("group", "policy", "pool").out.splitlines()[-1].split() == ["terminate", "notice", "off"]
    assert fresh("group", "show", "pool", "--json").json["kind"] == "placement-group"
    assert [line.split()[0] for line in fresh("group", "list").out.splitlines()] == ["group", "pool", "web"]
    assert [group["name"] for group in fresh("group", "list", "--json").json] == ["pool", "web"]
    assert fresh("vm", "policy", "db", "--listening", "never", "--json").json["listening"] == "never"
    assert re.search(r"^listening +never$", fresh("vm", "policy", "db").out, re.MULTILINE)
    shown = fresh("vm", "show", "db").out
    assert re.search(r"^listening now +no$", shown, re.MULTILINE)
    assert re.search(r"^listening +never$", shown, re.MULTILINE)
    assert "forenotice group policy web" in fresh("vm", "policy", "web-0").err
    assert fresh("group", "remove", "pool").out == "Group pool is removed.\n"
    assert fresh("group", "remove", "web", "--json").code == 1


def test_budgets_and_windows(fresh: Run, tmp_path: Path) -> None:
    night, day = "mon-fri 22:00-04:00 Europe/Berlin", "sat,sun 00:00-24:00 UTC"
    given = ("--max-unavailable", "25%", "--min-available", "2", "--window", night, "--window", day)
    shown = fresh("group", "policy", "web", *given).out
    assert re.search(r"^max unavailable +25%$", shown, re.MULTILINE)
    assert re.search(r"^min available +2$", shown, re.MULTILINE)
    assert re.search(rf"^windows +{night}, {day}$", shown, re.MULTILINE)
    assert fresh("group", "set", "web", "--max-unavailable", "1", "--json").json["policy"]["max_unavailable"] == 1
    assert fresh("vm", "policy", "db", "--window", night, "--json").json["windows"] == [night]
    file = tmp_path / "fleet.toml"
    fresh("fleet", "export", str(file))
    policy = tomllib.loads(file.read_text())["groups"]["web"]["policy"]
    assert (policy["max_unavailable"], policy["min_available"], policy["windows"]) == (1, 2, [night, day])
    cleared = ("--max-unavailable", "off", "--min-available", "off", "--no-windows")
    shown = fresh("group", "policy", "web", *cleared).out
    assert re.search(r"^max unavailable +off$", shown, re.MULTILINE)
    assert re.search(r"^windows +at any time$", shown, re.MULTILINE)
    text = file.read_text().replace("max_unavailable = 1", 'max_unavailable = "50%"')
    file.write_text(text)
    applied = fresh("fleet", "apply", str(file)).out
    assert "max_unavailable: none → 50%; min_available: none → 2; windows: none → mon-fri" in applied
    assert fresh("fleet", "apply", str(file)).out == "The fleet is as the file says.\n"
    file.write_text(text.replace('"50%"', '"half"'))
    assert "policy.max_unavailable in groups.web" in fresh("fleet", "apply", str(file)).err


def test_a_fleet_goes_out_and_comes_back(fresh: Run, tmp_path: Path) -> None:
    fresh("vm", "set", "db", "--tag", 'owner="Ä" \\ B', "--fact", "zone=1")
    printed = fresh("fleet", "export").out
    assert tomllib.loads(printed)["vms"]["db"]["facts"]["tags"] == {"owner": '"Ä" \\ B'}
    file = tmp_path / "fleet.toml"
    assert fresh("fleet", "export", str(file)).out == f"The fleet is in {file}.\n"
    assert file.read_text() == printed
    assert fresh("fleet", "apply", str(file), "--prune").out == "The fleet is as the file says.\n"
    as_json = tmp_path / "fleet.json"
    assert fresh("fleet", "export", str(as_json), "--json").json == {"file": str(as_json)}
    assert json.loads(as_json.read_text()) == fresh("fleet", "export", "--json").json
    assert fresh("fleet", "apply", str(as_json), "--json").json == {
        "changes": [],
        "kept": [],
        "applied": True,
        "warnings": [],
    }


def test_a_fleet_is_applied_or_only_shown(fresh: Run, tmp_path: Path) -> None:
    file = tmp_path / "fleet.txt"
    file.write_text("[hosts.host-a]\n[hosts.host-z]\ncordoned = true\n")
    shown = fresh("fleet", "apply", str(file), "--format", "toml", "--dry-run").out
    assert "host-z" in shown
    assert "1 change, not applied." in shown
    assert fresh("host", "show", "host-z").code == 1
    assert "Applied 1 change." in fresh("fleet", "apply", str(file), "--format", "toml").out
    assert fresh("host", "show", "host-z", "--json").json["cordoned"] is True
    file.write_text('[vms.db]\nhost = "host-a"\nfacts = { zone = "1" }\n')
    changed = fresh("fleet", "apply", str(file), "--format", "toml").out
    assert re.search(r"change +vm +db +addresses: 10\.0\.0\.9 → none; facts: none → zone=1$", changed, re.MULTILINE)
    assert re.search(r"keep +vm +db +host: host-b \(the file says host-a\)$", changed, re.MULTILINE)
    file.write_text("[hosts.host-a]\n[hosts.host-z]\ncordoned = true\n")
    pruned = fresh("fleet", "apply", str(file), "--format", "toml", "--prune", "--json").json
    assert ("remove", "db") in {(change["action"], change["name"]) for change in pruned["changes"]}


def test_a_vm_stays_where_the_service_moved_it(fresh: Run, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    fresh("fleet", "export", str(file))
    fresh("vm", "set", "db", "--host", "host-a")
    for _ in range(2):
        applied = fresh("fleet", "apply", str(file)).out.splitlines()
        assert applied[1].split(maxsplit=3) == ["keep", "vm", "db", "host: host-a (the file says host-b)"]
        assert applied[2].startswith("On another host than the file says: 1 VM. ")
        assert len(applied) == 3
    assert fresh("vm", "show", "db", "--json").json["host"] == "host-a"
    shown = fresh("fleet", "apply", str(file), "--move", "--dry-run").out
    assert "host: host-a → host-b\n1 change, not applied.\n" in shown
    assert "Applied 1 change." in fresh("fleet", "apply", str(file), "--move").out
    assert fresh("vm", "show", "db", "--json").json["host"] == "host-b"


def test_a_file_is_compared_with_the_fleet(fresh: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.toml"
    fresh("fleet", "export", str(file))
    same = fresh("fleet", "diff", str(file))
    assert (same.code, same.out) == (0, "The fleet is as the file says.\n")
    fresh("vm", "set", "db", "--host", "host-a")
    fresh("host", "add", "spare")
    file.write_text(file.read_text() + "[hosts.host-z]\n")
    assert main(("fleet", "diff", str(file))) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert [re.split(" {2,}", line) for line in said.out.splitlines()] == [
        ["what", "name", "difference"],
        ["host", "host-z", "only in the file"],
        ["vm", "db", "host: host-a (the file says host-b)"],
        ["host", "spare", "only in the service"],
        ["3 differences."],
    ]
    assert main(("fleet", "diff", str(file), "--json")) == 1
    differences = json.loads(capsys.readouterr().out)["differences"]
    assert [each["action"] for each in differences] == ["add", "change", "remove"]
    assert fresh("host", "show", "host-z").code == 1


def test_what_cannot_be_compared_is_neither_alike_nor_different(fresh: Run, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("[hosts")
    for arguments, said in (
        ((str(file),), "is not TOML"),
        (("none.toml",), "none.toml cannot be read"),
        (("fleet.yaml",), "give --format"),
        ((str(file), "--token", "t", "--control-url", "http://127.0.0.1:9"), "127.0.0.1:9"),
    ):
        ran = fresh("fleet", "diff", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert said in ran.err


def test_lists_of_those_that_fit(fresh: Run) -> None:
    def names(*arguments: str) -> list[str]:
        return [each["name"] for each in fresh(*arguments, "--json").json]

    fresh("host", "cordon", "host-b")
    assert names("host", "list", "--name", "host-*,!host-a") == names("host", "list", "--cordoned") == ["host-b"]
    assert names("vm", "list", "--name", "web-*") == ["web-0"]
    assert names("vm", "list", "--spot") == []
    assert names("group", "list", "--name", "w*") == ["web"]
    assert fresh("host", "list", "--name", "label:rack=r9").out == "There are no matching hosts.\n"
    assert "is not a name or pattern" in fresh("host", "list", "--name", "a b").err
