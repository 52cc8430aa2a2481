"""Rollouts and their hosts; and what a clock that was ahead has left."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.store.samples import MINUTE, NOW, changes, entry, event, host, operation, scope, vm
from tests.store.test_subscriptions import PAGER, delivery
from tests.store.test_tokens import BOB

from forenotice.core.fleet import FormerScope
from forenotice.core.operations import Kind, Status
from forenotice.core.rollouts import Options, Rollout, RolloutHost, RolloutHostStatus, RolloutStatus
from forenotice.core.windows import parse_all
from forenotice.store.rollouts import RolloutFilter
from forenotice.store.tokens import Session
from forenotice.store.transaction import Transaction

WAITING, UNDER_WAY, DONE = RolloutHostStatus.WAITING, RolloutHostStatus.UNDER_WAY, RolloutHostStatus.DONE
R = Rollout(
    id="r",
    kind=Kind.HOST_UPDATE,
    hosts="*",
    options=Options(duration=2, notice=timedelta(minutes=20), windows=parse_all(["daily 02:00-04:00 UTC"])),
    status=RolloutStatus.RUNNING,
    since=NOW,
    created_at=NOW,
    opens_at=NOW,
    opened_at=NOW,
    due_at=NOW + MINUTE,
    by="admin:ada",
)
OVER = replace(R, id="s", status=RolloutStatus.COMPLETED, ended_at=NOW, due_at=None, created_at=NOW + MINUTE)


def part(name: str, wave: int, status: RolloutHostStatus, **fields: Any) -> RolloutHost:
    return RolloutHost(rollout="r", host=name, wave=wave, status=status, **fields)


HOSTS = [
    part("a", 0, DONE, update_domains=(0,)),
    part("b", 1, UNDER_WAY, operation="o-b", update_domains=(1, 2)),
    part("c", 1, UNDER_WAY, operation="o-c", update_domains=(1, 2)),
    part("d", 1, WAITING),
    part("e", 1, WAITING),
    part("f", 2, WAITING),
]


@pytest.fixture
def rolling(tx: Transaction) -> Transaction:
    ended = operation("o-b", "b", Status.COMPLETED, rollout="r", ended_at=NOW)
    tx.apply(changes(ended, operation("o-c", "c", rollout="r")))
    tx.rollouts.put([R, OVER])
    tx.rollouts.put_hosts(HOSTS)
    return tx


def test_a_rollout_and_its_hosts_come_back(rolling: Transaction) -> None:
    rollouts = rolling.rollouts
    assert (rollouts.named(["r", "x"]), rollouts.named([]), rollouts.live()) == ({"r": R}, {}, {"r": R})
    assert rollouts.page(None, 9, descending=True) == [OVER, R]
    assert rollouts.page(None, 9, RolloutFilter(live=True)) == [R]
    assert rollouts.hosts("r", "a", 2, None) == HOSTS[1:3]
    assert rollouts.hosts("r", "", 9, WAITING) == HOSTS[3:]
    assert (rollouts.next_wave("r"), rollouts.next_wave("s"), rollouts.under_way("r")) == (1, None, 2)
    assert rollouts.waiting("r", 1, "d", 9) == [HOSTS[4]]
    [(found, ended)] = rollouts.ended("r")
    assert (found, ended.id, ended.ended_at) == (HOSTS[1], "o-b", NOW)
    assert rollouts.live_operations("r") == ["o-c"]
    tally = {(each.wave, each.status, each.update_domains): each.hosts for each in rollouts.tally("r")}
    assert tally == {(0, DONE, (0,)): 1, (1, UNDER_WAY, (1, 2)): 2, (1, WAITING, ()): 2, (2, WAITING, ()): 1}
    counts = rollouts.counts(["r", "s"])
    assert ({(each.wave, each.status): each.hosts for each in counts["r"]}[1, WAITING], counts["s"]) == (2, [])
    assert rollouts.awaited(Kind.HOST_UPDATE, ["a", "d", "c"]) == ("r", "c")
    assert rollouts.awaited(Kind.HOST_REBOOT, ["d"]) is rollouts.awaited(Kind.HOST_UPDATE, ["a"]) is None
    assert rollouts.change_hosts("r", WAITING, RolloutHostStatus.SKIPPED, "it was canceled") == 3
    assert rollouts.hosts("r", "e", 1, None) == [
        replace(HOSTS[5], status=RolloutHostStatus.SKIPPED, why="it was canceled")
    ]


def test_when_a_rollout_is_due(rolling: Transaction) -> None:
    rollouts = rolling.rollouts
    assert (rollouts.due(NOW, 9), rollouts.due(NOW + MINUTE, 9), rollouts.next_due()) == ([], ["r"], NOW + MINUTE)
    assert (rollouts.wake(NOW), rollouts.wake(NOW), rollouts.due(NOW, 9)) == (1, 0, ["r"])
    rollouts.put([replace(R, opened_at=None)])
    assert rollouts.wake(NOW) == 0, "it is not in the middle of a wave"
    rollouts.make_due(NOW)
    assert rollouts.due(NOW, 9) == ["r"]


def test_planned_operations_targets_and_notices(tx: Transaction) -> None:
    claimed: dict[str, Any] = {"claimed_by": "me", "claimed_until": NOW + MINUTE}
    tx.apply(
        changes(
            *(host(name, cordoned=name == "c") for name in "abcd"),
            vm("web", "a", "group:web"),
            operation("planned", "a", Status.PLANNED),
            operation("elsewhere", "b", Status.PLANNED),
            operation("announced", "d", **claimed),
        )
    )
    assert (tx.operations.replan(["group:web"], NOW), tx.operations.due(NOW, 9)) == (1, ["planned"])
    assert tx.hosts.emptier(9) == ["b", "a"], "c is cordoned, and maintenance of d is announced"
    tx.operations.withhold(MINUTE, NOW)
    found = tx.worlds.load(operations=["announced", "planned"]).operations
    assert (found["announced"].clock_jumped, found["announced"].claimed_until) == (MINUTE, NOW + 2 * MINUTE)
    assert found["planned"].clock_jumped == timedelta(0)


def test_a_clock_that_was_ahead_is_set_back(tx: Transaction) -> None:
    ahead = NOW + 10 * MINUTE
    tx.apply(changes(scope("vm:db", last_heard=ahead), scope("vm:gone")))
    tx.apply(changes(entry("vm.removed", scope="vm:gone", at=ahead - MINUTE), without_scopes=["vm:gone"]))
    tx.apply(changes(operation("o"), event("E", "o", "vm:db", created_at=ahead)))
    tx.rollouts.put([replace(R, opens_at=ahead, opened_at=ahead)])
    tx.tokens.put(replace(BOB, created_at=ahead, last_used_at=ahead, previous_until=ahead + MINUTE))
    tx.sessions.put(Session(digest="d", token=BOB.id, created_at=ahead, expires_at=ahead))
    tx.subscriptions.put(PAGER)
    tx.subscriptions.put_deliveries([replace(delivery(1, "A"), due_at=ahead)])
    gone = FormerScope(ended_at=ahead - MINUTE, before=None, exists=False)
    assert tx.scopes.former(["vm:gone", "vm:db"]) == {"vm:gone": gone}
    tx.set_back(NOW, ahead)
    # A second becomes a microsecond, so that the order stays.
    before = NOW - timedelta(microseconds=60)
    assert tx.scopes.former(["vm:gone"])["vm:gone"].ended_at == before
    assert tx.journal.page()[0][1].at == before
    assert tx.scopes.named(["vm:db"])["vm:db"].last_heard == NOW
    assert tx.worlds.load(operations=["o"]).events["E"].created_at == NOW
    assert tx.rollouts.live()["r"].opens_at == NOW
    [token] = tx.tokens.page()
    assert (token.created_at, token.last_used_at, token.previous_until) == (NOW, NOW, NOW + MINUTE)
    assert (tx.sessions.find("d"), tx.subscriptions.pending(PAGER.id)[0].due_at) == (None, NOW)
