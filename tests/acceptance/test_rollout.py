"""A rollout over a whole fleet, with guests that approve or do not, and a server that is killed twice in the middle."""

import http.client
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.checker import check
from tests.acceptance.running import DEADLINE, Server, serving, until

SPEED = 600
"""A quarter of an hour is a second and a half; Started is shown for two seconds all the same."""
HOSTS = [f"r{rack}-{number}" for rack in range(5) for number in range(6)]
VMS = 300
BATCH = 6
POLL_SECONDS = 0.25
WAITS = {"late": 1.0, "never": float("inf")}
"""Seconds from an event's appearance to its approval, of those who do not approve at once."""
UNATTENDED = {"deaf", *(f"solo-{number}" for number in range(30))}
"""Nobody speaks for them."""
RED = 2
"""Times that the gate is red before it is green."""


def fleet() -> dict[str, Any]:
    """Groups of three to five update domains, some of which number the same hosts from the other end."""
    five = [(host, place % 5) for place, host in enumerate(HOSTS[:15])]
    three = [(host, place % 3) for place, host in enumerate(HOSTS[15:])]
    # Name, policy, VMs on each host, hosts with their update domains.
    groups: list[tuple[str, dict[str, Any], int, list[tuple[str, int]]]] = [
        ("web", {"max_unavailable": "20%"}, 3, five),
        ("api", {"min_available": 36}, 3, [(host, 4 - domain) for host, domain in five]),
        ("cache", {"max_unavailable": 3}, 1, [(host, domain) for host, domain in five if domain < 4]),
        ("queue", {}, 4, three),
        ("mail", {"max_unavailable": "40%"}, 3, [(host, 2 - domain) for host, domain in three]),
        # Five of its hosts are of one update domain, and it can spare three.
        ("store", {"max_unavailable": 3}, 1, [*three[0::3], *three[1:7:3], *three[2:8:3]]),
        ("late", {}, 2, three[:5]),
        ("never", {}, 1, five[4::5]),
        ("deaf", {"listening": "never"}, 1, five + three),
    ]
    vms: dict[str, dict[str, Any]] = {}
    for name, _, count, places in groups:
        for host, domain in places:
            for _ in range(count):
                facts = {"group": name, "update_domain": domain, "fault_domain": domain}
                vms[f"{name}_{len(vms)}"] = {"host": host, **facts}
    for number in range(VMS - len(vms)):
        vms[f"solo-{number}"] = {"host": HOSTS[number * 7 % len(HOSTS)]}
    for number, vm in enumerate(vms.values()):
        vm["addresses"] = [f"127.35.{number // 250}.{number % 250 + 1}"]
    kinds = itertools.cycle(["availability-set", "placement-group", "cloud-service"])
    return {
        "hosts": {host: {} for host in HOSTS},
        "groups": {name: {"kind": next(kinds), "policy": policy} for name, policy, *_ in groups},
        "vms": vms,
    }


class Guests(threading.Thread):
    """Agents by script: each scope is asked for its document, and one of an event's VMs approves it."""

    def __init__(self, server: Server, vms: dict[str, dict[str, Any]], speakers: list[str]) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self.polled = threading.Event()
        """Everybody has asked once."""
        self.faults: list[str] = []
        self._server = server
        self._address = {name: vm["addresses"][0] for name, vm in vms.items()}
        self._speakers = speakers
        self._seen: dict[str, float] = {}
        self._approved: set[str] = set()

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                for speaker in self._speakers:
                    self._speak(speaker)
                self.polled.set()
            except (OSError, http.client.HTTPException):
                pass  # It is away, and what was not answered is asked again.
            except Exception as error:
                self.faults.append(repr(error))
            self.stopping.wait(POLL_SECONDS)

    def _speak(self, speaker: str) -> None:
        wait = WAITS.get(speaker.partition("_")[0], 0)
        for event in self._server.poll(self._address[speaker], seconds=10).json["Events"]:
            seen = self._seen.setdefault(event["EventId"], time.monotonic())
            is_open = event["EventStatus"] == "Scheduled" and event["EventId"] not in self._approved
            if is_open and time.monotonic() - seen >= wait:
                self._approve(event)

    def _approve(self, event: dict[str, Any]) -> None:
        said = self._server.approve(event["EventId"], source=self._address[event["Resources"][0]], seconds=10)
        if said.status == 200:
            self._approved.add(event["EventId"])
        else:
            self.faults.append(f"{event}: {said}")


@contextmanager
def attended(server: Server, vms: dict[str, dict[str, Any]]) -> Iterator[list[Guests]]:
    """One VM of each scope asks for its document."""
    speakers = {vm.get("group", name): name for name, vm in vms.items()}
    heard = [name for scope, name in speakers.items() if scope not in UNATTENDED]
    workers = [Guests(server, vms, heard[number::3]) for number in range(3)]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            assert worker.polled.wait(DEADLINE)
        yield workers
    finally:
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(30)


def test_a_rollout_over_a_fleet_keeps_every_promise(tmp_path: Path) -> None:
    document = fleet()
    assert (len(document["hosts"]), len(document["vms"])) == (30, 300)
    looked = tmp_path / "looked"
    gate = tmp_path / "gate"
    gate.write_text(f"#!/bin/sh\necho >> {looked}\ntest $(wc -l < {looked}) -gt {RED}\n")
    gate.chmod(0o700)
    flags = ("--speed", str(SPEED), "--guest-rate", "off", "--token-rate", "off", "--gate", f"health={gate}")
    with serving(tmp_path, *flags) as server:
        server.post("/v1/fleet", document)
        asked = {"kind": "update", "hosts": "*", "batch": BATCH, "pause_minutes": 1, "gate": "health"}
        with attended(server, document["vms"]) as guests:
            plan = server.post("/v1/rollouts/plan", asked)
            rollout = server.post("/v1/rollouts", {**asked, "reason": "firmware"})["id"]
            _see_through(server, rollout, len(plan["waves"]))
        journal = list(server.history())
        hosts = server.get(f"/v1/rollouts/{rollout}/hosts?limit=500")["items"]
        assert server.defects == []
    assert check(journal, document, speed=SPEED) == []
    assert {stop["host"]: stop["status"] for stop in hosts} == dict.fromkeys(HOSTS, "Done")
    assert [fault for worker in guests for fault in worker.faults] == []
    _has_tested_something(journal, looked)


def _see_through(server: Server, rollout: str, waves: int) -> None:
    """To its end, with two deaths and somebody else's maintenance on the way."""

    pause = threading.Event()

    def shown() -> Any:
        pause.wait(POLL_SECONDS)
        return server.get(f"/v1/rollouts/{rollout}")

    def started_in(wave: int) -> bool:
        if shown()["wave"] < wave:
            return False
        live = server.get("/v1/operations?live=true&limit=500")["items"]
        return any(each["status"] == "Started" for each in live)

    for wave in (2, waves - 1):
        until(lambda wave=wave: started_in(wave), what=lambda: str(shown()))  # type: ignore[misc]
        server.kill()
        server.start()
        if wave == 2:
            # One of the last wave, so that it stands in the way of the next.
            hosts = server.get(f"/v1/rollouts/{rollout}/hosts?status=Waiting&limit=500")["items"]
            last = max(hosts, key=lambda stop: stop["wave"])["host"]
            assert server.cli("host", "reboot", last, "--reason", "a fan").returncode == 0
    until(lambda: shown()["status"] == "Completed", what=lambda: str(shown()))


def _has_tested_something(journal: list[dict[str, Any]], looked: Path) -> None:
    def of(action: str) -> list[dict[str, Any]]:
        return [entry for entry in journal if entry["action"] == action]

    announced = {entry["event"]: entry for entry in of("event.scheduled")}
    approved = {entry["event"] for entry in of("event.approved")}
    assert len(approved) > 80
    by_silence = {event for event, entry in announced.items() if entry["data"]["approved_by"] == "silence"}
    assert {announced[event]["scope"].partition(":")[2] for event in by_silence} == UNATTENDED
    by_expiry = set(announced) - approved - by_silence
    assert {announced[event]["scope"] for event in by_expiry} >= {"group:never"}
    assert len(of("rollout.gate_red")) == 1
    assert len(looked.read_text().splitlines()) >= RED + len(of("rollout.wave_began"))
    assert len(of("operation.completed")) == len(HOSTS) + 1
