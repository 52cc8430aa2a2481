"""Operators and guests who never rest, repeat what was not answered, and keep account of every answer they got."""

import http.client
import json
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.acceptance.running import Said, Server

FAR_AHEAD = 10_000
"""Minutes of notice: what nobody approves does not start during a test."""

RETRY_SECONDS = 0.1

FLEET: dict[str, Any] = {
    "hosts": {f"host-{number}": {} for number in range(6)},
    "groups": {
        "alpha": {"kind": "availability-set", "policy": {"listening": "always"}},
        "beta": {"kind": "placement-group", "policy": {"listening": "always"}},
    },
    "vms": {
        **{
            f"alpha-{n}": {"host": f"host-{n}", "group": "alpha", "update_domain": n, "fault_domain": n}
            for n in range(3)
        },
        **{
            f"beta_{n}": {"host": f"host-{n}", "group": "beta", "update_domain": n, "fault_domain": n} for n in range(3)
        },
        **{f"solo-{n}": {"host": f"host-{3 + n % 2}", "policy": {"listening": "always"}} for n in range(3)},
    },
}
ADDRESSES = {"alpha-0": "127.34.0.1", "beta_1": "127.34.0.2"} | {f"solo-{n}": f"127.34.0.1{n}" for n in range(3)}
"""One VM of each scope speaks for it."""
for _name, _address in ADDRESSES.items():
    FLEET["vms"][_name]["addresses"] = [_address]


@dataclass
class Account:
    """Who was told what. Lists are only ever appended to, each by its own thread or under the interpreter's lock."""

    scheduled: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By key: the operation that the answer told of."""
    refused: set[str] = field(default_factory=set)
    """Keys of commands that were refused."""
    cancelled: set[str] = field(default_factory=set)
    approved: dict[str, datetime] = field(default_factory=dict)
    """By event: when the answer came."""
    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    last_sent: dict[str, datetime] = field(default_factory=dict)
    """By key: when it was last tried."""
    unanswered: list[str] = field(default_factory=list)
    """What was sent and got no answer, as often as that happened."""
    faults: list[str] = field(default_factory=list)

    @property
    def fewest(self) -> int:
        """How many of that kind of acknowledged change of which there are fewest."""
        return min(len(self.scheduled), len(self.approved), len(self.cancelled), len(self.removed))


class Worker(threading.Thread):
    def __init__(self, server: Server, account: Account, seed: str) -> None:
        super().__init__(name=seed, daemon=True)
        self.server = server
        self.account = account
        self.random = random.Random(seed)
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.work()
        except Exception as error:
            self.account.faults.append(f"{self.name}: {error!r}")

    def work(self) -> None:
        raise NotImplementedError

    def insist(self, what: str, send: Callable[[], Said]) -> Said:
        """Repeat the same until it is answered."""
        while True:
            try:
                said = send()
                if said.status != 503:
                    return said
            except ConnectionRefusedError:
                pass
            except (OSError, http.client.HTTPException):
                self.account.unanswered.append(what)
            self.stopping.wait(RETRY_SECONDS)


class Operator(Worker):
    """Schedules, cancels, approves, adds and removes, all under keys of its own."""

    def __init__(self, server: Server, account: Account, seed: str, vms: list[str], hosts: list[str]) -> None:
        super().__init__(server, account, seed)
        self._targets = [("restart", vm) for vm in vms] + [("host-update", host) for host in hosts]
        self._targets += [("redeploy", vm) for vm in vms if vm.startswith("solo")]
        self._open: list[dict[str, Any]] = []
        self._extra: list[str] = []
        self._number = 0

    def work(self) -> None:
        self._number += 1
        key = f"{self.name}-{self._number}"
        choices = [self._schedule, self._schedule, self._add]
        choices += [self._cancel, self._approve] if self._open else []
        choices += [self._remove] if len(self._extra) > 3 else []
        self.random.choice(choices)(key)
        self.stopping.wait(0.005)

    def command(self, method: str, path: str, body: object, key: str) -> Said:
        def send() -> Said:
            self.account.last_sent[key] = datetime.now(UTC)
            return self.server.control(method, path, body, key=key, source="127.0.0.2", seconds=10)

        said = self.insist(f"{method} {path} {key}", send)
        if said.status not in (200, 201, 409):
            self.account.faults.append(f"{method} {path} under {key}: {said}")
        return said

    def _schedule(self, key: str) -> None:
        kind, name = self.random.choice(self._targets)
        body = {"kind": kind, "names": [name], "notice_minutes": FAR_AHEAD, "reason": key}
        said = self.command("POST", "/v1/operations", body, key)
        if said.status == 201:
            (operation,) = said.json["operations"]
            self.account.scheduled[key] = operation
            self._open.append(operation)
        else:
            self.account.refused.add(key)

    def _cancel(self, key: str) -> None:
        # The newest: guests have approved most of the others.
        operation = self._open.pop()
        said = self.command("POST", f"/v1/operations/{operation['id']}/cancel", {}, key)
        if said.status == 200:
            self.account.cancelled.add(operation["id"])

    def _approve(self, key: str) -> None:
        operation = self._open.pop(self.random.randrange(len(self._open)))
        for number, event in enumerate(operation["events"]):
            said = self.command("POST", f"/v1/events/{event['id']}/approve", {}, f"{key}.{number}")
            if said.status == 200:
                self.account.approved[event["id"]] = datetime.now(UTC)

    def _add(self, key: str) -> None:
        said = self.command("POST", "/v1/vms", {"name": key, "host": "host-5"}, key)
        assert said.status == 201, said
        self.account.added.add(key)
        self._extra.append(key)

    def _remove(self, key: str) -> None:
        name = self._extra.pop(0)
        said = self.command("DELETE", f"/v1/vms/{name}", None, key)
        assert said.status == 200, said
        self.account.removed.add(name)


class Guest(Worker):
    """Polls without rest, approves most of what it sees, and holds what it sees against what it saw before."""

    def __init__(self, server: Server, account: Account, seed: str, address: str) -> None:
        super().__init__(server, account, seed)
        self.address = address
        self.incarnation = 0
        self._body = b""
        self._live: dict[str, dict[str, Any]] = {}
        self._gone: set[str] = set()
        self._considered: set[str] = set()

    def work(self) -> None:
        try:
            said = self.server.poll(self.address, seconds=10)
        except (OSError, http.client.HTTPException):
            self.stopping.wait(RETRY_SECONDS)
            return
        if said.status != 200:
            self.account.faults.append(f"{self.name}: {said}")
            return
        self.look(said.body)
        for event_id, event in self._live.items():
            if event["EventStatus"] == "Scheduled" and event_id not in self._considered:
                self._considered.add(event_id)
                if self.random.random() < 0.7:
                    self._approve(event_id)
                    return
        self.stopping.wait(0.02)

    def look(self, body: bytes) -> None:
        document = json.loads(body)
        incarnation, events = document["DocumentIncarnation"], {each["EventId"]: each for each in document["Events"]}
        if incarnation < self.incarnation:
            self._complain(f"incarnation fell from {self.incarnation} to {incarnation}")
        if incarnation == self.incarnation and body != self._body:
            self._complain(f"incarnation {incarnation} was {self._body!r} and is {body!r}")
        if reappeared := self._gone & events.keys():
            self._complain(f"{reappeared} reappeared")
        for event_id, event in events.items():
            before = self._live.get(event_id, event)
            forward = [(before["EventStatus"], event["EventStatus"])] != [("Started", "Scheduled")]
            if not forward or any(before[name] != event[name] for name in event if name not in CHANGING):
                self._complain(f"{before} became {event}")
        self._gone |= self._live.keys() - events.keys()
        self.incarnation, self._body, self._live = incarnation, body, events

    def _approve(self, event_id: str) -> None:
        said = self.insist(
            f"approval of {event_id}", lambda: self.server.approve(event_id, source=self.address, seconds=10)
        )
        if said.status == 200:
            self.account.approved[event_id] = datetime.now(UTC)
        else:
            self._complain(f"approval of {event_id}: {said}")

    def _complain(self, message: str) -> None:
        self.account.faults.append(f"{self.name}: {message}")


CHANGING = frozenset({"EventStatus", "NotBefore"})
"""What may look different while an event lives."""
