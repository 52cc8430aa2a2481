"""Why a rollout is where it is: since when, until when, and what a person can do about it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.core.builders import DAY, HOUR, MINUTE, NOTICE, NOW, SECOND, UPDATE, Site, row

from forenotice.core import explanations
from forenotice.core.explanations import Explanation
from forenotice.core.operations import Kind
from forenotice.core.rollout_progress import GATE_AGAIN
from forenotice.core.rollouts import Options, Rollout, RolloutHostStatus
from forenotice.core.windows import parse_all


def kinds(said: Explanation) -> list[object]:
    return [fact["kind"] for fact in said.waiting_for]


def halls(*, hosts: str = "ab", **options: Any) -> tuple[Site, Rollout]:
    """A lone VM on each host."""
    site = Site()
    site.add_hosts(hosts)
    for host in hosts:
        site.add_vm(f"vm-{host}", host)
    return site, site.begin(options=Options(**options))


def test_it_has_just_been_started() -> None:
    site, rollout = halls()
    said = site.explain_rollout(rollout)
    assert (said.noun, said.id, said.sentence) == ("rollout", rollout.id, "Nothing is in the way: it goes on now.")
    assert (said.since, said.until, said.waiting_for) == (NOW, None, ())


def test_it_waits_for_approval_and_others_for_the_batch() -> None:
    site, rollout = halls()
    site.roll()
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "a is Scheduled: it waits for approval by vm-a, until 2026-03-01 12:15:00 UTC at the latest. "
        "Other hosts of wave 1 wait: the batch is 1."
    )
    assert (said.since, said.until) == (NOW, NOW + NOTICE)
    (operation, batch) = said.waiting_for
    assert {key: operation[key] for key in ("kind", "host", "status", "since", "until")} == {
        "kind": "operation",
        "host": "a",
        "status": "Scheduled",
        "since": NOW,
        "until": NOW + NOTICE,
    }
    assert batch == {"kind": "batch", "batch": 1}


def test_nobody_knows_how_long_a_driver_takes() -> None:
    site, rollout = halls(batch=2)
    site.roll()
    site.approve_all(site.on("a"))
    site.tick()
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "a is Started: it started at 2026-03-01 12:00:00 UTC, and the driver is carrying it out. "
        "b is Scheduled: it waits for approval by vm-b, until 2026-03-01 12:15:00 UTC at the latest."
    )
    assert said.until is None


def test_of_many_hosts_some_are_told_in_words() -> None:
    site, rollout = halls(hosts="abcde", batch=5)
    site.settle_now()
    said = site.explain_rollout(rollout)
    assert said.sentence.endswith("More hosts are under way: 2.")
    assert "d is" not in said.sentence
    assert kinds(said) == ["operation"] * 5
    assert said.until == NOW + NOTICE
    live = site.live_of(rollout.id)[:4]
    draft = site.look(rollouts=[rollout.id], operations=live, targets=True)
    some = explanations.explain_rollout(draft, site.rollout(rollout), live, [], NOW, more=1)
    assert some.sentence == said.sentence
    assert some.until is None


def test_who_goes_next() -> None:
    site, rollout = halls(hosts="abc", batch=2)
    site.roll()
    site.cancel(site.on("a").id)
    said = site.explain_rollout(rollout)
    assert said.sentence.endswith("at the latest. Next: c.")


def test_its_pause() -> None:
    site = row()
    rollout = site.begin(options=Options(pause=HOUR))
    site.carry_on(until=NOW + NOTICE + UPDATE, takes=UPDATE)
    ended = site.now
    said = site.explain_rollout(rollout)
    assert said.sentence == "It pauses before wave 2, until 2026-03-01 13:15:09 UTC."
    assert (said.since, said.until) == (ended, ended + HOUR)
    assert said.waiting_for == ({"kind": "pause", "since": ended, "until": ended + HOUR},)
    site.wait(HOUR)
    assert site.explain_rollout(rollout).sentence == "Nothing is in the way: it goes on now."


def test_its_gate() -> None:
    site, rollout = halls(gate="probe")
    (ask,) = site.roll()
    said = site.explain_rollout(rollout)
    assert (said.sentence, said.since) == ("Wave 1 waits for its gate probe: it is being asked.", NOW)
    assert said.waiting_for == ({"kind": "gate", "gate": "probe", "since": NOW},)
    site.wait(SECOND)
    site.hear_gate(ask, green=False, said="2 alarms")
    said = site.explain_rollout(rollout)
    assert said.sentence == ("Wave 1 waits for its gate probe: at 2026-03-01 12:00:01 UTC it was red: 2 alarms.")
    assert (said.since, said.until) == (NOW, None)
    assert said.waiting_for == ({"kind": "gate", "gate": "probe", "since": NOW, "status": "2 alarms"},)
    site.wait(GATE_AGAIN)
    site.hear_gate(ask)
    assert site.explain_rollout(rollout).sentence == "Nothing is in the way: it goes on now."


def test_it_is_paused_and_its_operations_wait_for_that() -> None:
    site, rollout = halls()
    site.roll()
    site.wait(MINUTE)
    site.pause(rollout, "paused by op: alarms.")
    site.wait(DAY)
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "It was paused by op: alarms. Since 2026-03-01 12:01:00 UTC nothing of it starts, until it is resumed. "
        "a is Scheduled."
    )
    assert (said.since, said.until) == (NOW + MINUTE, None)
    assert said.waiting_for[0] == {"kind": "paused", "why": "paused by op: alarms.", "since": NOW + MINUTE}
    operation = site.explain_operation(site.on("a"))
    assert (operation.noun, operation.until, kinds(operation)) == ("operation", None, ["rollout"])


def test_a_failure_has_paused_it() -> None:
    site, rollout = halls()
    site.roll()
    site.approve_all(site.on("a"))
    for _ in range(3):
        for task in site.tick():
            site.fail(task, "no power")
        site.wait(5 * SECOND)
    site.tick()
    site.roll()
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "It is paused: 1 of its hosts failed, the last one a: vm-a: no power. "
        "Since 2026-03-01 12:00:15 UTC nothing of it starts, until it is resumed."
    )


def test_it_is_being_cancelled_and_then_over() -> None:
    site, rollout = halls()
    site.roll()
    site.approve_all(site.on("a"))
    site.tick()
    site.wait(SECOND)
    site.cancel_rollout(rollout)
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "It was cancelled at 2026-03-01 12:00:01 UTC: operations that had started go on to their end. "
        "a is Started: it started at 2026-03-01 12:00:00 UTC, and the driver is carrying it out."
    )
    assert (said.since, said.until, kinds(said)) == (NOW + SECOND, None, ["canceling", "operation"])
    site.wait(MINUTE)
    site.carry_on()
    said = site.explain_rollout(rollout)
    assert said.sentence == f"It is over: Canceled at {site.now:%Y-%m-%d %H:%M:%S} UTC."
    assert (said.since, said.until, said.waiting_for) == (site.now, None, ())


def test_another_update_domain_is_announced_or_out() -> None:
    site = row()
    other = site.schedule(Kind.HOST_REBOOT, "b")
    rollout = site.begin(hosts="a")
    site.roll()
    said = site.explain_rollout(rollout)
    event = site.event(other)
    assert said.sentence == (
        f"a waits: another update domain is announced: it waits until event {event.id} on web (web-1) has ended."
    )
    assert (said.since, said.until) == (NOW, None)
    assert said.waiting_for == (
        {
            "kind": "update-domain",
            "scope": "group:web",
            "event": event.id,
            "operation": other.id,
            "resources": ["web-1"],
            "since": NOW,
            "host": "a",
        },
    )
    site.wait(SECOND)
    site.approve_all(other)
    site.tick()
    said = site.explain_rollout(rollout)
    assert said.sentence.startswith("a waits: another update domain is down: it waits until event")
    assert said.waiting_for[0]["since"] == NOW + SECOND


def test_a_budget_and_other_maintenance_of_the_host() -> None:
    site = Site()
    site.add_hosts("abc")
    site.add_group("web", max_unavailable="1")
    for host in "abc":
        site.add_vm(f"web-{host}", host, group="web")
    direct = site.schedule(Kind.HOST_REBOOT, "b")
    rollout = site.begin(options=Options(batch=3))
    site.roll()
    said = site.explain_rollout(rollout)
    budget = (
        "waits: max_unavailable 1 of web allows 1 of its 3 VMs down at once: "
        f"it waits until event {site.event(direct).id} has ended."
    )
    assert said.sentence == (
        f"a {budget} b waits: it waits until operation {direct.id} on its host has ended. b {budget} c {budget}"
    )
    assert [(fact["host"], fact["kind"]) for fact in said.waiting_for] == [
        ("a", "budget"),
        ("b", "host-busy"),
        ("b", "budget"),
        ("c", "budget"),
    ]


def test_a_users_action_may_use_up_a_budget() -> None:
    site = Site()
    site.add_hosts("ab")
    site.add_group("web", min_available=1)
    for host in "ab":
        site.add_vm(f"web-{host}", host, group="web")
    restart = site.start(Kind.RESTART, "web-b")
    rollout = site.begin(hosts="a")
    site.roll()
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "a waits: min_available 1 of web allows 1 of its 2 VMs down at once: "
        f"it waits until event {site.event(restart).id} has ended."
    )


def test_a_budget_that_can_no_longer_be_met() -> None:
    site = Site()
    site.add_hosts("a")
    site.add_group("web")
    for name in ("web-0", "web-1"):
        site.add_vm(name, "a", group="web")
    rollout = site.begin()
    site.roll()
    site.set_policy("group:web", max_unavailable="1")
    site.approve_all(site.on("a"))
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "a is Scheduled: the budget can never be met: max_unavailable 1 of web allows 1 of its 2 VMs down at once. "
        "Change the budget."
    )
    site.cancel(site.on("a").id)
    site.rollout_hosts[rollout.id, "a"] = replace(site.rollout_host(rollout, "a"), status=RolloutHostStatus.WAITING)
    said = site.explain_rollout(rollout)
    assert said.sentence.startswith("a waits: the budget can never be met")


def test_the_window_of_the_rollout_and_of_a_group() -> None:
    site = row()
    site.set_policy("group:web", windows=parse_all(["daily 22:30-23:00 UTC"]))
    rollout = site.begin(
        hosts="a", options=Options(windows=parse_all(["daily 22:30-04:00 UTC", "sat 01:00-02:00 UTC"]))
    )
    site.roll()
    opens = NOW.replace(hour=22, minute=30)
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "Wave 1 is planned; guests are told from 2026-03-01 22:14:00 UTC on, because of its window "
        "(daily 22:30-04:00 UTC; sat 01:00-02:00 UTC)."
    )
    assert (said.since, said.until) == (NOW, opens - 16 * MINUTE)
    assert said.waiting_for == ({"kind": "announcement", "since": NOW, "until": opens - 16 * MINUTE},)
    site.now = opens - 16 * MINUTE
    site.roll()
    site.approve_all(site.on("a"))
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "a is Scheduled: it is outside the window of web (daily 22:30-23:00 UTC): "
        "it waits until 2026-03-01 22:30:00 UTC. It is outside the window of its rollout "
        "(daily 22:30-04:00 UTC; sat 01:00-02:00 UTC): it waits until 2026-03-01 22:30:00 UTC."
    )
    assert said.until == opens
    waiting = said.waiting_for[0]["waiting_for"]
    assert waiting == [
        {"kind": "window", "until": opens, "scope": "group:web"},
        {"kind": "window", "until": opens, "rollout": rollout.id},
    ]


def test_a_host_that_windows_of_its_vms_put_off_says_when_its_guests_are_told() -> None:
    site = row()
    site.add_vm("db", "a")
    site.set_policy("group:web", windows=parse_all(["daily 22:00-23:00 UTC"]))
    site.set_policy("vm:db", windows=parse_all(["daily 22:30-04:00 UTC"]))
    rollout = site.begin(hosts="a")
    site.roll()
    said = site.explain_rollout(rollout)
    assert said.sentence == (
        "a waits: it is planned; guests are told at 2026-03-01 22:14:00 UTC, because the windows of "
        "db (daily 22:30-04:00 UTC) and web (daily 22:00-23:00 UTC) are open together from 2026-03-01 22:30:00 UTC."
    )
    assert [(fact["kind"], fact["host"], fact["scope"]) for fact in said.waiting_for] == [
        ("announcement", "a", "vm:db"),
        ("announcement", "a", "group:web"),
    ]


def test_until_heeds_a_window_that_will_have_closed() -> None:
    site = row()
    site.add_vm("db", "a")
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.set_policy("group:web", windows=parse_all(["daily 11:00-12:10 UTC"]))
    said = site.explain_operation(operation)
    assert said.sentence == (
        "It waits for approval by db and web (web-0), until 2026-03-01 12:15:00 UTC at the latest."
    )
    assert said.until == NOW - HOUR + timedelta(days=1)
    site.wait(NOTICE)
    site.set_policy("group:web", windows=parse_all(["daily 11:00-12:00 UTC"]))
    said = site.explain_operation(operation)
    assert said.until == NOW - HOUR + timedelta(days=1)


def test_windows_that_never_open_together() -> None:
    site = row()
    site.add_vm("db", "a")
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.set_policy("group:web", windows=parse_all(["daily 14:00-15:00 UTC"]))
    site.set_policy("vm:db", windows=parse_all(["daily 15:00-16:00 UTC"]))
    site.approve_all(operation)
    said = site.explain_operation(operation)
    assert said.sentence == (
        "The windows of db (daily 15:00-16:00 UTC) and web (daily 14:00-15:00 UTC) have no hours in common: "
        "change one of them."
    )
    assert said.until is None
    site.tick()
    assert site.operation(operation).held
    site.now = NOW.replace(hour=14)
    assert site.explain_operation(operation).sentence == (
        "The window of db (daily 15:00-16:00 UTC) has no hours in common with the others that it needs: "
        "change one of them."
    )


def test_of_many_hosts_that_wait_some_are_told_in_words() -> None:
    site = Site()
    hosts = "abcdefghi"
    site.add_hosts(hosts)
    site.add_group("web", max_unavailable="1")
    for host in hosts:
        site.add_vm(f"web-{host}", host, group="web")
    rollout = site.begin(options=Options(batch=9))
    site.roll()
    said = site.explain_rollout(rollout)
    assert said.sentence.count(" waits: ") == 5
    assert kinds(said) == ["operation", *["budget"] * 8]
    assert said.until is None


def test_what_waits_for_a_paused_rollout_says_so() -> None:
    site = row()
    first, second = site.begin(hosts="a"), site.begin(hosts="b")
    site.roll()
    waiting = (
        "b waits: another update domain is announced: "
        f"it waits until event {site.event(site.on('a')).id} on web (web-0) has ended."
    )
    assert site.explain_rollout(second).sentence == waiting
    site.pause(first)
    assert site.explain_rollout(second).sentence == (
        f"{waiting} That is a part of rollout {first.id}, which is paused: resume or cancel it."
    )
