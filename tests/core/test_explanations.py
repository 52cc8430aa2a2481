"""Why an event waits: for whom, for what, until when."""

from dataclasses import replace
from datetime import timedelta

from tests.core.builders import DAY, HOUR, MINUTE, NOW, SECOND, Site, row

from forenotice.core import explanations
from forenotice.core.driver_calls import PendingCalls
from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.operations import Kind, Status


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
        "The deletion of pool (pool_0), announced earlier, is not approved yet: "
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


def test_what_failed_for_one_reason_is_told_once() -> None:
    site = row()
    site.add_vm("db", "a")
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.approve_all(operation)
    (task,) = site.tick()
    site.fail(task, "no power")
    said = site.explain(site.events(operation)[0]).sentence
    assert said.startswith(f"The driver failed for {' and '.join(task.vms)} (no power); ")


def test_what_is_being_carried_out() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.approve_all(operation)
    (task,) = site.tick()
    said = site.explain(site.event(operation))
    assert said.sentence == "It started at 2026-03-01 12:00:00 UTC, and the driver is carrying it out."
    site.fail(task, "no power")
    said = site.explain(site.event(operation))
    pause = "The driver failed for web-0 (no power); try 2 of 3 is at 2026-03-01 12:00:02 UTC."
    assert said.sentence == pause
    assert said.waiting_for == (
        {"kind": "driver", "vms": ["web-0"], "attempt": 2, "since": NOW, "failures": {"web-0": "no power"}},
    )
    site.wait(timedelta(seconds=2))
    site.tick()
    assert site.explain(site.event(operation)).sentence.endswith("; it is asked again, try 2 of 3.")


def test_a_later_try_that_nobody_has_failed_is_being_carried_out() -> None:
    site = row()
    operation = site.start(Kind.RESTART, "web-0")
    site.state.operations[operation.id] = replace(site.state.operations[operation.id], attempt=1, failures={})
    said = site.explain(site.event(operation)).sentence
    assert said == "It started at 2026-03-01 12:00:00 UTC, and the driver is carrying it out, try 2 of 3."


def test_what_has_been_carried_out() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.approve_all(operation)
    (task,) = site.tick()
    site.succeed(task)
    said = site.explain(site.event(operation))
    assert (said.sentence, said.waiting_for) == ("It has been carried out and ends in a moment.", ())


def test_what_has_failed_for_the_last_time() -> None:
    site = row()
    operation = site.schedule(Kind.RESTART, "web-0")
    site.approve_all(operation)
    for _ in range(3):
        (task,) = site.tick()
        site.fail(task)
        said = site.explain(site.event(operation))
        site.wait(4 * SECOND)
    assert site.operation(operation).status is Status.STARTED
    assert (said.sentence, said.waiting_for) == ("It has failed and ends in a moment.", ())


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
