"""Operations and events on the command line."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from tests.cli.conftest import Run
from tests.control.running import Control

from forenotice.cli import commands
from forenotice.core.driver_calls import NotYet
from forenotice.service.tick import tick


def test_an_event_from_its_announcement_to_its_approval(fresh: Run) -> None:
    announced, named, hint = fresh("vm", "restart", "web-0", "--reason", "new kernel").out.splitlines()
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.fullmatch(rf"Reboot of web-0 is Scheduled, not before: in 1[45] min( \d+ s)? \({moment}\)", announced)
    event = named.split()[1]
    assert hint.strip() == f"why it waits: forenotice event explain {event}"
    assert event in fresh("event", "list").out
    [view] = fresh("event", "list", "--json").json
    assert (view["id"], view["type"], view["source"]) == (event, "Reboot", "User")
    explained = fresh("event", "explain", event)
    assert "web (web-0)" in explained.out
    explained.shows("That leaves 1[45] min.*")
    assert fresh("event", "explain", event, "--json").json["waiting_for"][0]["kind"] == "approval"
    fresh("event", "show", event).shows("approved +no", "duration +unknown")
    assert fresh("event", "show", event, "--json").json == view
    assert fresh("event", "approve", event).out == "Approved: Reboot of web-0 may start now.\n"
    assert fresh("event", "approve", event, "--json").json["approved_by"] == "operator:admin"
    assert "by operator:admin" in fresh("event", "list", "--group", "web").out
    assert "event.approved" in fresh("history", "--event", event).out


def test_operations(fresh: Run) -> None:
    assert fresh("operation", "list").out.startswith("There are no matching live operations; --all shows")
    [made] = fresh("host", "update", "host-a", "--notice", "2h", "--reason", "new kernel", "--json").json["operations"]
    [event] = made["events"]
    assert (event["type"], event["duration_seconds"]) == ("Freeze", 9)
    fresh("event", "show", event["id"]).shows("duration +9 s")
    fresh("operation", "list", "--kind", "host-update", "--host", "host-a").shows(
        rf"{made['id']} +host-update +host-a +web-0 +Scheduled +in (2 h|1 h 59 min) +operator:admin"
    )
    assert fresh("operation", "show", made["id"], "--json").json == made
    shown = fresh("operation", "show", made["id"])
    shown.shows(rf"events +{event['id']} \(Scheduled\)", "reason +new kernel", "status +Scheduled")
    assert "failed attempts" not in shown.out
    assert fresh("vm", "set", "db", "--host", "host-a").err.endswith(
        f"choose another host, wait for its end, or cancel operation {made['id']}\n"
    )
    explained = fresh("operation", "explain", made["id"]).out
    assert re.match(r"It waits for approval by web \(web-0\), until .*\nThat leaves (2 h|1 h 59 min)\.\n$", explained)
    assert fresh("operation", "explain", made["id"], "--json").json["waiting_for"][0]["kind"] == "approval"
    [short] = fresh("host", "update", "host-b", "--duration", "2s", "--json").json["operations"]
    assert (short["duration_seconds"], {each["duration_seconds"] for each in short["events"]}) == (2, {2})
    fresh("operation", "show", short["id"]).shows("duration +2 s")
    assert "must be at most 600" in fresh("host", "update", "host-b", "--duration", "11m").err
    assert fresh("operation", "cancel", short["id"]).code == 0
    canceled = f"Freeze of web-0 is Canceled.\n  event {event['id']}\n"
    assert fresh("operation", "cancel", made["id"]).out == canceled
    assert fresh("event", "cancel", event["id"]).code == 1
    assert fresh("event", "list").out == "There are no live events; --all shows those that have ended.\n"
    assert "Canceled" in fresh("event", "list", "--all", "--vm", "web-0").out
    assert fresh("operation", "list", "--rollout", "none", "--all").out == "There are no matching operations.\n"
    assert fresh("operation", "list", "--status", "canceled", "--json").json[0]["id"] == made["id"]
    [made] = fresh("vm", "restart", "web-0", "--json").json["operations"]
    assert fresh("event", "cancel", made["events"][0]["id"]).out.startswith("Reboot of web-0 is Canceled.\n")


def test_what_starts_at_once(fresh: Run) -> None:
    started = fresh("host", "fail", "host-b").out
    assert "Redeploy of db is Started." in started
    assert "forenotice event explain" in started
    first, hint = fresh("vm", "delete", "web-0", "--yes").out.splitlines()
    assert first == "Deletion of web-0 is Started; it announces no event."
    assert hint.startswith("  what it does: forenotice operation explain ")
    assert fresh(*hint.split()[-3:]).out.startswith("It started at ")


def test_an_approval_tells_what_is_still_awaited(fresh: Run) -> None:
    fresh("vm", "policy", "db", "--listening", "always")
    fresh("vm", "set", "db", "--host", "host-a")
    [operation] = fresh("host", "update", "host-a", "--json").json["operations"]
    first, second = (event["id"] for event in operation["events"])
    fresh("event", "approve", first).shows(r"Approved: Freeze of [\w-]+\. It waits for approval by .+")
    assert fresh("event", "approve", second).out.endswith("may start now.\n")
    fresh("event", "cancel", first)
    assert "Approved" not in fresh("event", "approve", first).out


def hosts(run: Run, *arguments: str) -> list[str]:
    return [each["host"] for each in run("host", *arguments, "--json").json["operations"]]


def test_hosts_by_a_selector(fresh: Run) -> None:
    for name in ("host-a", "host-b"):
        fresh("host", "set", name, "--label", "rack=r1")
    fresh("host", "add", "empty", "--label", "rack=r1")
    fresh("host", "add", "spare")
    for arguments, sentence in (
        (("migrate", "label:rack=r9"), "no host with VMs is selected by 'label:rack=r9'"),
        (("migrate", "label:rack=r1,none"), "there is no host 'none'"),
        (("migrate", "label:rack"), "'label:rack' is not a label: give one such as label:rack=r1"),
        (("migrate", "empty"), "host empty has no VMs"),
        # A host that is named beside a pattern is not passed over.
        (("fail", "empty", "host-*"), "host empty has no VMs"),
        (("fail", "host-*", "spare"), "host spare has no VMs"),
        (("fail", "none", "host-*"), "there is no host 'none'"),
    ):
        refused = fresh("host", *arguments)
        assert (refused.code, sentence in refused.err) == (1, True), (arguments, refused)
    assert hosts(fresh, "update", "label:rack=r1,!host-b") == ["host-a"], "without the one that has no VMs"
    assert hosts(fresh, "reboot", "label:rack=r1", "--notice", "2h") == ["host-a", "host-b"]


def test_exactly_the_hosts_that_are_selected_are_confirmed(fresh: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []
    monkeypatch.setattr(commands, "confirm", lambda question, **__: questions.append(question))
    assert hosts(fresh, "fail", "host-?") == ["host-a", "host-b"]
    fresh("host", "fail", "host-a", "host-b", "!host-a*")
    question = "Report {} as failed and redeploy {} VMs now, without notice?"
    assert questions == [question.format("host-a, host-b", "their"), question.format("host-b", "its")]


def test_the_same_key_takes_effect_once(fresh: Run) -> None:
    assert len(fresh("vm", "redeploy", "web-0", "db", "--json").json["operations"]) == 2
    first = fresh("vm", "restart", "db", "--idempotency-key", "k1", "--json").json
    assert fresh("vm", "restart", "db", "--idempotency-key", "k1", "--json").json == first
    assert "was used for another request" in fresh("vm", "restart", "web-0", "--idempotency-key", "k1").err
    assert "Idempotency-Key must be" in fresh("vm", "restart", "web-0", "--idempotency-key", "a b").err


def test_what_a_window_delays_is_planned(fresh: Run) -> None:
    opens = (datetime.now(UTC) + timedelta(hours=6)).hour
    window = f"daily {opens:02}:00-{opens + 1:02}:00 UTC"
    fresh("vm", "policy", "db", "--window", window)
    planned, told, hint = fresh("host", "update", "host-b").out.splitlines()
    assert planned.startswith("Host-update of host-b (db) is Planned, not before: in ")
    assert told.startswith("  guests will be told: in ")
    operation = hint.split()[-1]
    assert hint.strip() == f"why it waits: forenotice operation explain {operation}"
    explained = fresh("operation", "explain", operation).out
    assert "It is planned; guests are told at " in explained
    assert f"because the window of db ({window}) opens at " in explained
    assert fresh("event", "list", "--all", "--json").json == []
    [listed] = fresh("operation", "list", "--status", "planned", "--json").json
    assert (listed["id"], listed["status"], listed["events"]) == (operation, "Planned", [])
    fresh("operation", "list").shows(r".* Planned +in \d+ h.*")
    fresh("operation", "show", operation).shows("announced +in .*")
    for noun in (("host", "show", "host-b"), ("vm", "show", "db")):
        fresh(*noun).shows("planned +host-update, guests will be told: in .*")
    assert "planned" not in fresh("host", "show", "host-a").out
    fresh("history", "--operation", operation).shows(r".*operation\.planned .*guests are told at \d{4}-.*")
    asked = ("--hosts", "host-a", "--kind", "update", "--window", window)
    [host] = fresh("rollout", "plan", *asked, "--json").json["planned_hosts"]
    announced, starts = (datetime.fromisoformat(host[name]) for name in ("announced_at", "not_before"))
    assert (starts.hour, starts - announced) == (opens, timedelta(minutes=16))
    assert "is Canceled" in fresh("operation", "cancel", operation).out


def test_windows_without_hours_in_common(cli: Run, module_control: Control) -> None:
    opens = (datetime.now(UTC) + timedelta(hours=6)).hour
    hours = [f"{(opens + more) % 24:02}:00" for more in range(3)]
    cli("host", "add", "night")
    for name in ("early", "late"):
        cli("vm", "add", name, "--host", "night")
    cli("vm", "policy", "early", "--window", f"daily {hours[0]}-{hours[1]} UTC")
    [operation] = cli("host", "update", "night", "--json").json["operations"]
    cli("vm", "policy", "late", "--window", f"daily {hours[1]}-{hours[2]} UTC")
    tick(module_control.service)
    shown = cli("operation", "show", operation["id"])
    shown.shows("announced +not known yet")
    assert "not before" not in shown.out
    cli("host", "show", "night").shows("planned +host-update, guests will be told: not known yet")
    cli("operation", "list").shows(".* Planned +operator:admin")
    assert "have no hours in common" in cli("operation", "explain", operation["id"]).out


def test_what_the_driver_waits_for(cli: Run, module_control: Control) -> None:
    for host in ("broken", "spare"):
        cli("host", "add", host)
    cli("vm", "add", "stranded", "--host", "broken")
    [operation] = cli("host", "fail", "broken", "--yes", "--json").json["operations"]
    [task] = [each for each in tick(module_control.service).tasks if each.operation == operation["id"]]
    waits = NotYet(again_at=task.started_at + timedelta(hours=1), waiting={"stranded": "fence host broken"})
    tick(module_control.service, [(task, waits)])
    cli("operation", "show", operation["id"]).shows("waiting +stranded: fence host broken")
    for noun, key in (("operation", operation["id"]), ("event", operation["events"][0]["id"])):
        assert "The driver waits: fence host broken (stranded)." in cli(noun, "explain", key).out
    assert "The driver waits: fence host broken (stranded)." in cli("history", "--operation", operation["id"]).out
