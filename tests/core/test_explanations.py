"""Why an event waits: for whom, for what, until when."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.core.builders import DAY, HOUR, MINUTE, NOTICE, NOW, SECOND, UPDATE, Site, row

from forenotice.core import explanations
from forenotice.core.driver_calls import Finished, NotYet, PendingCalls
from forenotice.core.explanations import Explanation
from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.operations import Kind, Status
from forenotice.core.rollout_progress import GATE_AGAIN
from forenotice.core.rollouts import Options, Rollout, RolloutHostStatus
from forenotice.core.timing import Retries
from forenotice.core.windows import parse_all


def test_for_whom_and_until_when() -> None:
    site = row()
    site.add_vm("web-3", "a", group="web")
    site.add_vm("db", "a")
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    first, second = site.events(operation)
    for event in (first, second):
        said = site.explain(event)
        assert (said.noun, said.id, said.since) == ("event", event.id, NOW)
        assert said.sentence == (
            "It waits for approval by db and web (web-0 and web-3), until 2026-03-01 12:15:00 UTC at the latest."
        )
        assert said.until == NOW + 15 * MINUTE
    assert said.waiting_for == (
        {
            "kind": "approval",
            "since": NOW,
            "until": operation.not_before,
            "scope": "vm:db",
            "event": first.id,
            "resources": ["db"],
        },
        {
            "kind": "approval",
            "since": NOW,
            "until": operation.not_before,
            "scope": "group:web",
            "event": second.id,
            "resources": ["web-0", "web-3"],
        },
    )


def test_nothing_is_in_the_way() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.approve_all(operation)
    said = site.explain(site.event(operation))
    assert (said.sentence, said.until, said.waiting_for) == ("Nothing is in the way: it starts now.", site.now, ())


def test_silence_leaves_degraded_hardware_its_notice() -> None:
    site = row(listening=Listening.NEVER)
    said = site.explain(site.event(site.schedule(Kind.DEGRADED_HARDWARE, "a")))
    assert said.sentence == (
        "No guest is listening, so it keeps its full notice, until 2026-03-08 12:00:00 UTC, "
        "unless somebody approves it."
    )
    assert said.until == NOW + 7 * DAY
    assert said.waiting_for == ({"kind": "notice", "until": NOW + 7 * DAY},)


def test_the_earliest_start() -> None:
    """Approvals may come at once, also of what nobody there listens to, and what is in the way may end."""
    site = row()
    restart = site.schedule(Kind.RESTART, "web-0")
    earliest = explanations.start_at_the_earliest
    assert earliest(site.look(operations=[restart.id]), restart, NOW) == NOW
    started = replace(restart, status=Status.STARTED, started_at=NOW + MINUTE)
    assert earliest(site.look(operations=[restart.id]), started, NOW) == NOW + MINUTE
    silent = row(listening=Listening.NEVER)
    degraded = silent.schedule(Kind.DEGRADED_HARDWARE, "a")
    assert earliest(silent.look(operations=[degraded.id], targets=True), degraded, NOW) == NOW


def test_just_after_start_up() -> None:
    site = row()
    event = site.event(site.schedule(Kind.HOST_UPDATE, "a"))
    site.wait(15 * MINUTE)
    site.expiry_from = site.now + 30 * SECOND
    said = site.explain(event)
    assert said.sentence == (
        "NotBefore has passed, but guests may not have seen it since the service started or the clock jumped: "
        "it waits until 2026-03-01 12:15:30 UTC."
    )
    assert said.until == site.expiry_from


def test_an_edge_that_has_not_shown_it() -> None:
    site = row()
    site.shown["a"] = None
    event = site.event(site.schedule(Kind.HOST_UPDATE, "a"))
    site.wait(16 * MINUTE)
    said = site.explain(event)
    assert said.sentence == (
        "NotBefore has passed, but the edge of host a has not shown the event to its guests: the operation waits until "
        "it has, or until 2026-03-01 12:30:00 UTC."
    )
    assert said.until == NOW + 30 * MINUTE
    assert said.waiting_for == ({"kind": "edge", "until": NOW + 30 * MINUTE, "host": "a"},)


def test_an_edge_that_has_not_shown_it_yet() -> None:
    """NotBefore is not the latest moment then."""
    site = row()
    site.shown["a"] = None
    event = site.event(site.schedule(Kind.RESTART, "web-0"))
    assert site.explain(event).sentence == (
        "It waits for approval by web (web-0), until 2026-03-01 12:15:00 UTC; if the edge of its host has not shown "
        "the event to guests by then, until the edge has, or until 2026-03-01 12:30:00 UTC."
    )
    site.shown["a"] = site.now
    assert site.explain(event).sentence.endswith("until 2026-03-01 12:15:00 UTC at the latest.")


def test_a_clock_that_jumped_ahead() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.state.operations[operation.id] = replace(operation, clock_jumped=HOUR)
    site.wait(HOUR)
    said = site.explain(site.event(operation))
    assert said.sentences == (
        "The clock jumped ahead since it was announced: its notice really ends at 2026-03-01 13:15:00 UTC.",
        "It waits for approval by web (web-0), until 2026-03-01 13:15:00 UTC at the latest.",
    )
    assert said.until == NOW + HOUR + 15 * MINUTE
    behind = explanations.with_clock_behind(said, 2 * MINUTE)
    assert behind.sentences[:-1] == said.sentences
    assert behind.sentences[-1].startswith("The clock is 120 s behind the journal; the service goes on")


def test_another_update_domain_is_out_and_a_vm_is_busy() -> None:
    site = row()
    out, mine = site.schedule(Kind.HOST_UPDATE, "a"), site.schedule(Kind.HOST_UPDATE, "b")
    restart = site.schedule(Kind.RESTART, "web-1")
    for operation in (out, restart):
        site.approve_all(operation)
    site.tick()
    said = site.explain(site.event(mine))
    assert said.sentences == (
        f"Another update domain is down: it waits until event {site.event(out).id} on web (web-0) has ended.",
        f"Operation {restart.id} acts on web-1: it waits until that has ended.",
        "It waits for approval by web (web-1), until 2026-03-01 12:15:00 UTC.",
    )
    assert said.sentence == " ".join(said.sentences)
    assert said.until is None
    assert [fact["kind"] for fact in said.waiting_for] == ["approval", "update-domain", "vm-busy"]
    assert said.waiting_for[2] == {"kind": "vm-busy", "since": NOW, "operation": restart.id, "vm": "web-1"}


def test_an_earlier_deletion() -> None:
    site = Site()
    site.add_host("a")
    site.add_group("pool", ScopeKind.PLACEMENT_GROUP, terminate_notice=5 * MINUTE)
    site.add_vm("pool_0", "a", group="pool")
    site.add_vm("pool_1", "a", group="pool")
    site.schedule(Kind.DELETION, "pool_0")
    mine = site.schedule(Kind.DELETION, "pool_1")
    site.approve_all(mine)
    said = site.explain(site.event(mine))
    assert said.sentence == (
        "The deletion of pool (pool_0), whose NotBefore is not later, is not approved yet: "
        "it waits for that until 2026-03-01 12:05:00 UTC."
    )
    assert said.until == NOW + 5 * MINUTE


def test_no_host_can_take_it() -> None:
    site = row(hosts="abc")
    event = site.event(site.schedule(Kind.LIVE_MIGRATION, "a"))
    site.wait(DAY)
    said = site.explain(event)
    assert said.sentence == "No host can take web-0: add or uncordon one that keeps its group's domains apart."
    assert (said.until, said.waiting_for) == (None, ({"kind": "target-host", "vm": "web-0"},))


def test_what_somebody_must_act_on_is_said_first() -> None:
    site = row(hosts="abc")
    site.add_vm("web-3", "a", group="web")
    site.start(Kind.RESTART, "web-1")
    mine = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.set_policy("group:web", max_unavailable="1")
    said = site.explain(site.event(mine))
    assert said.sentences[:2] == (
        "The budget can never be met: max_unavailable 1 of web allows 1 of its 4 VMs down at once. Change the budget.",
        "No host can take web-0 and web-3: add or uncordon one that keeps their groups' domains apart.",
    )
    assert said.sentences[-1].startswith("It waits for approval by web (web-0 and web-3), until ")
    assert "at the latest" not in said.sentence


def test_what_the_driver_does() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.approve_all(operation)
    (task,) = site.tick()
    started = "It started at 2026-03-01 12:00:00 UTC, and the driver is carrying it out"
    assert site.explain(site.event(operation)).sentence == f"{started}."
    site.fail(task, "no power")
    said = site.explain(site.event(operation))
    assert said.sentence == "The driver failed for web-0 (no power); try 2 of 3 is at 2026-03-01 12:00:02 UTC."
    assert said.waiting_for == (
        {"kind": "driver", "vms": ["web-0"], "attempt": 2, "since": NOW, "failures": {"web-0": "no power"}},
    )
    site.wait(2 * SECOND)
    (task,) = site.tick()
    assert site.explain(site.event(operation)).sentence.endswith("; it is asked again, try 2 of 3.")
    site.report(operation.id, NotYet(again_at=site.now, waiting={"web-0": "no fence"}))
    said = site.explain(site.event(operation))
    assert said.sentence.endswith("; it is asked again, try 2 of 3. The driver waits: no fence (web-0).")
    assert said.waiting_for[0]["waiting"] == {"web-0": "no fence"}
    site.state.operations[operation.id] = replace(site.operation(operation), failures={})
    said = site.explain(site.event(operation))
    assert said.sentences == ("It started at 2026-03-01 12:00:00 UTC. The driver waits: no fence (web-0).",)
    (task,) = site.tick()
    site.report(operation.id, NotYet(again_at=site.now))
    (task,) = site.tick()
    # The VM that failed is served by now.
    site.state.operations[operation.id] = replace(site.operation(operation), failures={})
    assert site.explain(site.event(operation)).sentence == f"{started}, try 2 of 3."
    site.fail(task)
    site.wait(4 * SECOND)
    (task,) = site.tick()
    site.fail(task)
    said = site.explain(site.event(operation))
    assert site.operation(operation).status is Status.STARTED
    assert (said.sentence, said.waiting_for) == ("It has failed and ends in a moment.", ())
    other = site.start(Kind.RESTART, "web-1")
    site.report(other.id, Finished(done=("web-1",), failures={}))
    said = site.explain(site.event(other))
    assert (said.sentence, said.waiting_for) == ("It has been carried out and ends in a moment.", ())


def test_no_host_has_room_for_it() -> None:
    site = row(hosts="abc")
    site.set_capacity("b", 2)
    site.set_capacity("c", 3)
    site.cordon("a")
    site.add_vm("big", "a", size=4)
    event = next(event for event in site.events(site.schedule(Kind.LIVE_MIGRATION, "a")) if event.resources == ("big",))
    site.wait(DAY)
    said = site.explain(event)
    assert said.sentence == (
        "No host can take web-0: add or uncordon one that keeps its group's domains apart; no host has enough capacity "
        "left for big (size 4): make room, raise a capacity, or add or uncordon a host."
    )
    assert said.waiting_for == ({"kind": "target-host", "vm": "big", "size": 4}, {"kind": "target-host", "vm": "web-0"})


def test_a_failure_that_nobody_has_room_for() -> None:
    site = Site()
    site.add_host("a")
    site.add_host("b", capacity=2)
    site.add_vm("db", "a")
    site.add_vm("big", "a", size=1.5)
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    assert site.operation(operation).targets == {"big": "b"}
    said = site.explain(next(event for event in site.events(operation) if event.resources == ("db",)))
    assert said.sentence.startswith(
        "It has started, but no host has enough capacity left for db (size 1): make room, raise a capacity, or add or "
        "uncordon a host. "
    )
    assert said.waiting_for[0] == {"kind": "target-host", "vm": "db", "size": 1}


def test_what_is_over() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.wait(timedelta(seconds=90))
    site.cancel(operation.id)
    said = site.explain(site.event(operation))
    assert (said.sentence, said.until) == ("It is over: Canceled at 2026-03-01 12:01:30 UTC.", None)


def test_what_has_failed_says_why() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.approve_all(operation)
    for _ in range(Retries().tries):
        (task,) = site.tick()
        site.fail(task, "it has no domain")
        site.wait(5 * SECOND)
    site.tick()
    said = site.explain_operation(operation)
    assert said.sentence == (
        f"It is over: Failed at {site.now:%Y-%m-%d %H:%M:%S} UTC. Without success: web-0 (it has no domain)."
    )


def test_calls_to_the_driver_that_wait_for_their_wave() -> None:
    site = Site()
    site.add_host("a")
    site.add_vm("db", "a")
    operation = site.schedule(Kind.HARDWARE_FAILURE, "a")
    site.tick()
    standing = PendingCalls(waiting=2, under_way=7, at_once=8, at_once_per_host=None)
    homeless = site.explain(site.event(operation))
    assert explanations.with_pending_calls(homeless, standing) == homeless
    site.add_host("c")
    site.tick()
    found = explanations.with_pending_calls(site.explain(site.event(operation)), standing)
    assert found.sentence.endswith("2 calls to the driver must wait: 7 of at most 8 are under way.")
    (waiting,) = found.waiting_for
    assert (waiting["kind"], waiting["calls_waiting"], waiting["calls_under_way"], waiting["at_once"]) == (
        "driver",
        2,
        7,
        8,
    )
    one = replace(standing, waiting=1, at_once_per_host=2)
    assert explanations.with_pending_calls(site.explain(site.event(operation)), one).sentence.endswith(
        "1 call to the driver must wait: 7 of at most 8 are under way, and at most 2 for each host."
    )


def test_when_a_try_of_the_driver_is_over_at_the_latest() -> None:
    site = Site()
    site.add_host("a")
    site.add_vm("db", "a")
    operation = site.start(Kind.RESTART, "db")
    under_way = site.explain(site.event(operation))
    until = NOW + timedelta(minutes=5)
    standing = PendingCalls(waiting=0, under_way=1, at_once=8, at_once_per_host=None)
    assert explanations.with_pending_calls(under_way, standing) == under_way
    found = explanations.with_pending_calls(under_way, replace(standing, until=until))
    assert found.sentence.endswith(" This try is over by 2026-03-01 12:05:00 UTC at the latest.")
    assert (found.until, found.waiting_for[0]["until"]) == (until, until)
    # Nobody knows when there is a host for another VM of the same operation.
    homeless = replace(under_way, waiting_for=({"kind": "target-host", "vm": "web"}, *under_way.waiting_for))
    assert explanations.with_pending_calls(homeless, replace(standing, until=until)).until is None


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
