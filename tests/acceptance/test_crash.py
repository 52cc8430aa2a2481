"""Killed at random moments under load, the service loses nothing that it has acknowledged, and does nothing twice."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.load import ADDRESSES, FLEET, Account, Guest, Operator, Worker
from tests.acceptance.running import Server, until

KILLS = 12
LONG_KILLS = 200
FIRST_KILLS = 2
SPEED = "20"
STARTING_SECONDS = 1.2
"""About as long as a start takes, so that some kills come before it is through."""


def test_nothing_acknowledged_is_lost_when_it_is_killed(tmp_path: Path) -> None:
    _torment(tmp_path, KILLS, seed=20260105)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_when_it_is_killed_very_often(tmp_path: Path, seed: int) -> None:
    _torment(tmp_path, LONG_KILLS // 2, seed=seed)


def _torment(home: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    pause = threading.Event()
    server = Server(home, "--speed", SPEED, "--guest-rate", "off", "--token-rate", "off")
    account = Account()
    under_way = 0
    try:
        # Its very first starts, too, with the making of the database and of the first token.
        for _ in range(FIRST_KILLS):
            server.spawn()
            pause.wait(chance.uniform(0, STARTING_SECONDS))
            server.kill()
        server.start()
        server.post("/v1/fleet", FLEET)
        guests = [Guest(server, account, f"guest-{seed}-{vm}", address) for vm, address in ADDRESSES.items()]
        operators = [
            Operator(server, account, f"operator-{seed}-{n}", vms, hosts)
            for n, (vms, hosts) in enumerate(
                [
                    (["alpha-0", "alpha-1", "beta_2"], []),
                    (["solo-0", "solo-1", "solo-2", "beta_0"], []),
                    (["alpha-2", "beta_1"], ["host-0", "host-1", "host-2"]),
                ]
            )
        ]
        with _working(*guests), _working(*operators):
            done = FIRST_KILLS
            # A slow machine acknowledges less between two kills, and is killed more often for it.
            while done < kills or (account.fewest <= kills / 5 and done < 4 * kills):
                done += 1
                if chance.random() < 0.2:
                    pause.wait(chance.uniform(0, STARTING_SECONDS))
                else:
                    under_way += _started(server.ready())
                    pause.wait(chance.uniform(0.02, 0.5))
                server.kill()
                server.spawn()
                assert account.faults == []
            server.ready()
        _come_to_rest(server)
        journal = list(server.history())
        _check(server, account, guests, journal)
        assert server.terminate() == 0
    finally:
        if server.process is not None:
            server.kill()
    assert server.defects == []
    # The test has tested something.
    assert under_way > kills / 5
    assert len(account.unanswered) > kills / 2
    assert _repetitions(account, journal) >= kills // 50
    assert account.fewest > kills / 5


@contextmanager
def _working(*workers: Worker) -> Iterator[None]:
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(30)
            assert not worker.is_alive(), f"{worker.name} was never answered"


def _started(server: Server) -> int:
    return sum(operation["status"] == "Started" for operation in _live(server))


def _live(server: Server) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get("/v1/operations?live=true&limit=500")["items"]
    return found


def _come_to_rest(server: Server) -> None:
    """Cancel what nobody approved; all that was approved is carried out."""
    for operation in _live(server):
        if operation["status"] == "Scheduled" and not all(event["approved_at"] for event in operation["events"]):
            server.control("POST", f"/v1/operations/{operation['id']}/cancel", {})
    until(lambda: not _live(server), what="everything that was approved is carried out")


def _repetitions(account: Account, journal: list[dict[str, Any]]) -> int:
    """How many commands had taken effect when they were sent again, as the answer was lost."""
    return sum(
        datetime.fromisoformat(entry["at"]) < account.last_sent[key]
        for entry in journal
        for key in (entry["data"].get("reason") if entry["action"] == "operation.scheduled" else entry["vm"],)
        if key in account.last_sent and entry["action"] in ("operation.scheduled", "vm.added")
    )


def _check(server: Server, account: Account, guests: list[Guest], journal: list[dict[str, Any]]) -> None:
    assert account.faults == []
    assert [entry["seq"] for entry in journal] == sorted({entry["seq"] for entry in journal})
    assert [entry["at"] for entry in journal] == sorted(entry["at"] for entry in journal)
    actions: dict[str, list[dict[str, Any]]] = {}
    for entry in journal:
        actions.setdefault(entry["action"], []).append(entry)

    made = {entry["data"]["reason"]: entry["operation"] for entry in actions["operation.scheduled"]}
    assert len(made) == len(actions["operation.scheduled"]), "a key took effect twice"
    assert made == {key: operation["id"] for key, operation in account.scheduled.items()}
    shown = [entry["event"] for entry in actions["event.scheduled"]]
    assert sorted(shown) == sorted(
        event["id"] for operation in account.scheduled.values() for event in operation["events"]
    )

    def counted(action: str, what: str) -> Counter[str]:
        return Counter(entry[what] for entry in actions.get(action, ()))

    started, completed = counted("operation.started", "operation"), counted("operation.completed", "operation")
    cancelled, failed = counted("operation.canceled", "operation"), counted("operation.failed", "operation")
    assert not failed
    assert max((started | completed | cancelled | counted("driver.finished", "operation")).values()) == 1
    assert started == completed == counted("driver.finished", "operation")
    assert set(completed) | set(cancelled) == set(made.values())
    assert not set(completed) & set(cancelled)
    assert account.cancelled <= set(cancelled)

    approved = counted("event.approved", "event")
    assert max(approved.values()) == 1
    # An approval of what had been cancelled by then is 200 and without effect.
    over = {entry["event"]: datetime.fromisoformat(entry["at"]) for entry in actions["event.canceled"]}
    lost = [event for event, at in account.approved.items() if not approved[event] and over.get(event, at) >= at]
    assert lost == []
    assert set(completed) <= {entry["operation"] for entry in actions["event.approved"]}

    added, removed = counted("vm.added", "vm"), counted("vm.removed", "vm")
    assert added == Counter(account.added) + Counter(list(FLEET["vms"]))
    assert removed == Counter(account.removed)
    there = {vm["name"] for vm in server.get("/v1/vms?limit=500")["items"]}
    assert there == (account.added | set(FLEET["vms"])) - account.removed

    for guest in guests:
        guest.look(server.poll(guest.address).body)
    assert account.faults == []
