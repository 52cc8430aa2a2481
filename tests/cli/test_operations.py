"""Scheduling, events and history on the command line."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from tests.cli.conftest import Run
from tests.control.running import Control

from forenotice.cli import commands
from forenotice.service.tick import tick


def test_a_restart_says_what_comes_and_where_to_look(fresh: Run) -> None:
    said = fresh("vm", "restart", "web-0", "--reason", "new kernel").out.splitlines()
    assert re.fullmatch(
        r"Reboot of web-0 is Scheduled, not before: in 1[45] min( \d+ s)? \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)",
        said[0],
    )
    event = said[1].split()[1]
    assert said[2].strip() == f"why it waits: forenotice event explain {event}"

    listed = fresh("event", "list").out
    assert event in listed
    assert "Scheduled" in listed
    [view] = fresh("event", "list", "--json").json
    assert (view["id"], view["type"], view["source"]) == (event, "Reboot", "User")
    explained = fresh("event", "explain", event).out
    assert "web (web-0)" in explained
    assert re.search(r"^That leaves 1[45] min", explained, re.MULTILINE)
    assert fresh("event", "explain", event, "--json").json["waiting_for"][0]["kind"] == "approval"
    shown = fresh("event", "show", event).out
    assert re.search(r"^approved +no$", shown, re.MULTILINE)
    assert re.search(r"^duration +unknown$", shown, re.MULTILINE)
    assert fresh("event", "show", event, "--json").json == view

    approved = fresh("event", "approve", event).out
    assert approved == "Approved: Reboot of web-0 may start now.\n"
    assert fresh("event", "approve", event, "--json").json["approved_by"] == "operator:admin"
    assert "by operator:admin" in fresh("event", "list", "--group", "web").out

    history = fresh("history", "--event", event).out
    assert "event.approved" in history
    assert "operator:admin" in history
    assert fresh("history", "--limit", "1", "--json").json[0]["seq"] == max(
        entry["seq"] for entry in fresh("history", "--json").json
    )


def test_cancel(fresh: Run) -> None:
    [operation] = fresh("host", "update", "host-a", "--notice", "2h", "--json").json["operations"]
    [event] = operation["events"]
    assert (event["type"], event["duration_seconds"]) == ("Freeze", 9)
    assert "9 s" in fresh("event", "show", event["id"]).out
    assert "is Canceled." in fresh("event", "cancel", event["id"]).out
    assert fresh("event", "cancel", event["id"]).code == 1
    assert fresh("event", "list").out == "There are no live events; --all shows those that have ended.\n"
    assert "Canceled" in fresh("event", "list", "--all", "--vm", "web-0").out


def test_operations(fresh: Run) -> None:
    assert fresh("operation", "list").out.startswith("There are no matching live operations; --all shows")
    [made] = fresh("host", "update", "host-a", "--notice", "2h", "--reason", "new kernel", "--json").json["operations"]
    [event] = made["events"]
    listed = fresh("operation", "list", "--kind", "host-update", "--host", "host-a").out.splitlines()
    assert re.fullmatch(
        rf"{made['id']} +host-update +host-a +web-0 +Scheduled +in (2 h|1 h 59 min) +operator:admin", listed[1]
    )
    assert fresh("operation", "show", made["id"], "--json").json == made
    shown = fresh("operation", "show", made["id"]).out
    for line in (f"events +{event['id']} \\(Scheduled\\)", "reason +new kernel", "status +Scheduled"):
        assert re.search(rf"^{line}$", shown, re.MULTILINE), line
    assert "failed tries" not in shown
    assert fresh("vm", "set", "db", "--host", "host-a").err.endswith(
        f"choose another host, wait for its end, or cancel operation {made['id']}\n"
    )
    explained = fresh("operation", "explain", made["id"]).out
    assert re.match(r"It waits for approval by web \(web-0\), until .*\nThat leaves (2 h|1 h 59 min)\.\n$", explained)
    assert fresh("operation", "explain", made["id"], "--json").json["waiting_for"][0]["kind"] == "approval"
    assert fresh("operation", "cancel", made["id"]).out == f"Freeze of web-0 is Canceled.\n  event {event['id']}\n"
    assert fresh("operation", "list", "--rollout", "none", "--all").out == "There are no matching operations.\n"
    assert fresh("operation", "list", "--status", "canceled", "--json").json[0]["id"] == made["id"]
    assert fresh("operation", "show", "none").err.endswith(
        "there is no operation 'none': see `forenotice operation list --all`\n"
    )


def test_what_starts_at_once_says_so(fresh: Run) -> None:
    said = fresh("host", "fail", "host-b").out
    assert "Redeploy of db is Started." in said
    assert "forenotice event explain" in said
    deleted = fresh("vm", "delete", "web-0", "--yes").out.splitlines()
    assert deleted[0] == "Deletion of web-0 is Started; it announces no event."
    (said,) = deleted[1:]
    assert said.startswith("  what it does: forenotice operation explain ")
    assert fresh(*said.split()[-3:]).out.startswith("It started at ")


def test_an_approval_says_what_is_waited_for_still(fresh: Run) -> None:
    fresh("vm", "policy", "db", "--listening", "always")
    fresh("vm", "set", "db", "--host", "host-a")
    [operation] = fresh("host", "update", "host-a", "--json").json["operations"]
    first, second = (event["id"] for event in operation["events"])
    assert re.fullmatch(
        r"Approved: Freeze of [\w-]+\. It waits for approval by .+\n", fresh("event", "approve", first).out
    )
    assert fresh("event", "approve", second).out.endswith("may start now.\n")
    fresh("event", "cancel", first)
    assert "Approved" not in fresh("event", "approve", first).out


def test_several_at_once_all_or_nothing(fresh: Run) -> None:
    assert len(fresh("vm", "restart", "web-0", "db", "--json").json["operations"]) == 2
    assert "there is no VM 'none'" in fresh("vm", "redeploy", "db", "none").err


def test_hosts_by_a_selector(fresh: Run) -> None:
    for name in ("host-a", "host-b"):
        fresh("host", "set", name, "--label", "rack=r1")
    fresh("host", "add", "spare", "--label", "rack=r1")
    made = fresh("host", "update", "label:rack=r1,!host-b", "--json").json["operations"]
    assert [each["host"] for each in made] == ["host-a"], "without the one that has no VMs"
    made = fresh("host", "reboot", "label:rack=r1", "--notice", "2h", "--json").json["operations"]
    assert [each["host"] for each in made] == ["host-a", "host-b"]
    for selector, said in (
        ("label:rack=r9", "no host with VMs is selected by 'label:rack=r9'"),
        ("label:rack=r1,none", "there is no host 'none'"),
        ("label:rack", "'label:rack' is not a label: give one such as label:rack=r1"),
        ("spare", "host spare has no VMs"),
    ):
        refused = fresh("host", "migrate", selector)
        assert refused.code == 1
        assert said in refused.err


def test_whoever_gives_up_hosts_by_a_selector_is_asked_about_each(fresh: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(commands, "confirm", lambda question, **__: asked.append(question))
    made = fresh("host", "fail", "host-?", "--json").json["operations"]
    assert asked == ["Report host-a, host-b as failed and redeploy their VMs now, without notice?"]
    assert [each["host"] for each in made] == ["host-a", "host-b"]


def test_whoever_is_named_beside_a_pattern_is_not_passed_over(fresh: Run) -> None:
    fresh("host", "add", "empty")
    assert "host empty has no VMs" in fresh("host", "fail", "empty", "host-*").err
    assert "there is no host 'none'" in fresh("host", "fail", "none", "host-*").err
    [made] = fresh("host", "fail", "host-a", "host-b", "!host-a*", "--json").json["operations"]
    assert made["host"] == "host-b"


def test_the_same_key_takes_effect_once(fresh: Run) -> None:
    first = fresh("vm", "restart", "db", "--idempotency-key", "k1", "--json").json
    assert fresh("vm", "restart", "db", "--idempotency-key", "k1", "--json").json == first
    assert "was used for another request" in fresh("vm", "restart", "web-0", "--idempotency-key", "k1").err
    assert "Idempotency-Key must be" in fresh("vm", "restart", "web-0", "--idempotency-key", "a b").err


def test_history_filters(fresh: Run) -> None:
    assert [entry["vm"] for entry in fresh("history", "--action", "vm.added", "--vm", "db", "--json").json] == ["db"]
    assert fresh("history", "--group", "web", "--action", "group.added", "--json").json[0]["scope"] == "group:web"
    assert fresh("history", "--until", "2020-01-01").out == "No matching entries.\n"
    assert fresh("history", "--since", "2020-01-01T00:00:00+02:00", "--host", "host-a", "--json").json != []
    assert fresh("history", "--by", "nobody", "--json").json == []


def test_what_a_window_puts_off_is_planned(fresh: Run) -> None:
    opens = (datetime.now(UTC) + timedelta(hours=6)).hour
    window = f"daily {opens:02}:00-{(opens + 1) % 24:02}:00 UTC"
    fresh("vm", "policy", "db", "--window", window)
    said = fresh("host", "update", "host-b").out.splitlines()
    assert said[0].startswith("Host-update of host-b (db) is Planned, not before: in ")
    assert said[1].startswith("  guests will be told: in ")
    operation = said[2].split()[-1]
    assert said[2].strip() == f"why it waits: forenotice operation explain {operation}"
    explained = fresh("operation", "explain", operation).out
    assert "It is planned; guests are told at " in explained
    assert f"because the window of db ({window}) opens at " in explained
    assert fresh("event", "list", "--all", "--json").json == []
    [listed] = fresh("operation", "list", "--status", "planned", "--json").json
    assert (listed["id"], listed["status"], listed["events"]) == (operation, "Planned", [])
    assert re.search(r" Planned +in \d+ h", fresh("operation", "list").out)
    assert re.search(r"^announced +in ", fresh("operation", "show", operation).out, re.MULTILINE)
    for shown in (fresh("host", "show", "host-b").out, fresh("vm", "show", "db").out):
        assert re.search(r"^planned +host-update, guests will be told: in ", shown, re.MULTILINE)
    assert "planned" not in fresh("host", "show", "host-a").out
    assert re.search(r"operation\.planned .*guests are told at \d{4}-", fresh("history", "--operation", operation).out)
    asked = ("--hosts", "host-a", "--kind", "update", "--window", window)
    [host] = fresh("rollout", "plan", *asked, "--json").json["planned_hosts"]
    told, starts = (datetime.fromisoformat(host[name]) for name in ("announced_at", "not_before"))
    assert (starts.hour, starts - told) == (opens, timedelta(minutes=16))
    assert "is Canceled" in fresh("operation", "cancel", operation).out


def test_nobody_knows_when_guests_are_told_of_windows_without_hours_in_common(
    cli: Run, module_control: Control
) -> None:
    opens = (datetime.now(UTC) + timedelta(hours=6)).hour
    hours = [f"{(opens + more) % 24:02}:00" for more in range(3)]
    cli("host", "add", "night")
    for name in ("early", "late"):
        cli("vm", "add", name, "--host", "night")
    cli("vm", "policy", "early", "--window", f"daily {hours[0]}-{hours[1]} UTC")
    [operation] = cli("host", "update", "night", "--json").json["operations"]
    cli("vm", "policy", "late", "--window", f"daily {hours[1]}-{hours[2]} UTC")
    tick(module_control.service)
    shown = cli("operation", "show", operation["id"]).out
    assert re.search(r"^announced +not known yet$", shown, re.MULTILINE)
    assert not re.search(r"^not before", shown, re.MULTILINE)
    assert re.search(
        r"^planned +host-update, guests will be told: not known yet$", cli("host", "show", "night").out, re.M
    )
    assert re.search(r" Planned +operator:admin", cli("operation", "list").out)
    assert "have no hours in common" in cli("operation", "explain", operation["id"]).out
