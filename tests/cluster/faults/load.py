"""Guests at the edges of their hosts and an operator, who never rest; what they see and are told is kept."""

import json
import math
import random
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException

from tests.acceptance.running import Said
from tests.cluster.faults.cluster import ADDRESSES, AMPLE, FLEET, HELD, HOSTS, PROBES, Cluster
from tests.cluster.faults.history import Acknowledged, Document, History
from tests.cluster.faults.machines import Connection
from tests.cluster.faults.processes import GUESTS, TARGET

POLL_SECONDS = 0.25
WAIT_SECONDS = 2
"""Of long polls."""
OPERATOR_SECONDS = 0.4
APPROVED = 0.6
"""The share of events that a guest approves, and"""
HESITATION = 8
"""the seconds until then, at most: some approvals fall into any fault."""
TRIES = 8
RESTLESS = [vm for vm in ADDRESSES if vm not in (*PROBES.values(), *HELD.values())]
"""VMs that the operator restarts and moves, and whose guests approve that."""
PATIENT = {vm for vm in ADDRESSES if vm.endswith(("-0", "-1"))}
"""VMs whose guests use long polls."""


class Worker(threading.Thread):
    def __init__(self, name: str, stopping: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.stopping = stopping
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.work()
        except BaseException as error:
            self.fault = error
        finally:
            self.close()

    def work(self) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


class Places(Worker):
    """Follows where VMs are, as far as the database can be asked."""

    def __init__(self, cluster: Cluster, stopping: threading.Event) -> None:
        super().__init__("places", stopping)
        self._cluster = cluster
        self.hosts: Mapping[str, str] = {vm: FLEET["vms"][vm]["host"] for vm in ADDRESSES}

    def work(self) -> None:
        said = self._cluster.command("GET", "/v1/vms?limit=500")
        if said is not None and said.status == 200:
            self.hosts = {vm["name"]: vm["host"] for vm in said.json["items"]}
        self.stopping.wait(0.2)


class Guest(Worker):
    def __init__(self, vm: str, load: "Load") -> None:
        super().__init__(vm, load.stopping)
        self._load = load
        self._random = random.Random(f"{load.seed} {vm}")
        self._considered: dict[tuple[str, str], float] = {}
        """Events by the tag of the document that had them, and when to approve them."""
        self._host = ""
        self._last: Document | None = None
        self._connection: Connection | None = None

    def work(self) -> None:
        host = self._load.places.hosts[self.name]
        if self._connection is None or host != self._host:
            self.close()
            self._host, self._last = host, None
            machine = self._load.cluster.edges[host].machine
            self._connection = Connection(machine, GUESTS, ADDRESSES[self.name], WAIT_SECONDS + 5)
        headers = {"Metadata": "true"}
        if self._last is not None and self.name in PATIENT:
            headers |= {
                "If-None-Match": f'"{self._last.incarnation}-{self._last.tag}"',
                "Prefer": f"wait={WAIT_SECONDS}",
            }
        sent = time.time()
        try:
            said = self._connection.ask("GET", TARGET, headers=headers)
        except (OSError, HTTPException):
            self.stopping.wait(POLL_SECONDS)
            return
        received = time.time()
        if said.status == 200:
            self._look(said.body, said.headers["forenotice-epoch"], sent, received)
        elif said.status == 304 and self._last is not None:
            # It was true when it was said; what was true when it was asked is not known.
            self._load.history.add(self.name, host, self._last, received, received)
        else:
            assert said.status in (404, 503), said
            self._last = None
        self.stopping.wait(POLL_SECONDS * self._random.uniform(0.5, 1.5))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _look(self, body: bytes, tag: str, sent: float, received: float) -> None:
        content = json.loads(body)
        events = {event["EventId"]: event for event in content["Events"]}
        self._last = document = Document(tag, content["DocumentIncarnation"], body, frozenset(events))
        self._load.history.add(self.name, self._host, document, sent, received)
        waiting = [event for event, about in events.items() if about["EventStatus"] == "Scheduled"]
        for event in waiting:
            if (tag, event) not in self._considered:
                self._considered[tag, event] = self._when(received)
        due = [event for event in waiting if self._considered[tag, event] <= received]
        if due:
            self._considered |= {(tag, event): math.inf for event in due}
            self._load.approve(self.name, self._host, due)

    def _when(self, now: float) -> float:
        if self.name not in RESTLESS or self._random.random() >= APPROVED:
            return math.inf
        return now + max(0, self._random.uniform(-HESITATION, HESITATION))


class Operator(Worker):
    """Updates hosts, restarts and moves VMs, cancels; what is refused is refused."""

    def __init__(self, load: "Load") -> None:
        super().__init__("operator", load.stopping)
        self._cluster = load.cluster
        self._random = random.Random(f"{load.seed} operator")
        self._open: list[str] = []
        self.accepted = 0

    def work(self) -> None:
        chance = self._random
        act = chance.choices(["restart", "redeploy", "host-update", "cancel"], [4, 3, 2, 2])[0]
        if act == "cancel":
            if self._open:
                operation = self._open.pop(chance.randrange(len(self._open)))
                self._send(f"/v1/operations/{operation}/cancel", {})
        else:
            names = {"host-update": list(HOSTS), "redeploy": [vm for vm in RESTLESS if vm.startswith("solo")]}
            body: dict[str, object] = {"kind": act, "names": [chance.choice(names.get(act, RESTLESS))]}
            if chance.random() < 0.5:
                body["notice_minutes"] = AMPLE
            made = self._send("/v1/operations", body)
            self._open += [operation["id"] for operation in made.get("operations", ())]
            self._open = self._open[-10:]
        self.stopping.wait(OPERATOR_SECONDS * chance.uniform(0.5, 1.5))

    def _send(self, path: str, body: object) -> dict[str, list[dict[str, str]]]:
        said = self._cluster.command("POST", path, body, first=self._random.randrange(2))
        if said is None or said.status not in (200, 201):
            assert said is None or said.status in (404, 409), said
            return {}
        self.accepted += 1
        found: dict[str, list[dict[str, str]]] = said.json
        return found


class Load:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.history = History()
        self.places = Places(cluster, self.stopping)
        self.operator = Operator(self)
        self.guests = [Guest(vm, self) for vm in ADDRESSES]
        self._approvals = ThreadPoolExecutor(len(self.guests))

    def approve(self, vm: str, host: str, events: list[str]) -> None:
        """Without waiting for it: polls go on."""
        self._approvals.submit(self._approve, vm, host, events)

    def _approve(self, vm: str, host: str, events: list[str]) -> None:
        """As agents do: again, until it has been answered."""
        for _ in range(TRIES):
            said = self.send_approval(vm, host, *events)
            if (said is not None and said.status != 503) or self.stopping.wait(0.5):
                return

    def send_approval(self, vm: str, host: str, *events: str) -> Said | None:
        """None: it was not answered."""
        self.history.sent.update(events)
        said = self.cluster.edges[host].approve(ADDRESSES[vm], *events)
        if said is not None and said.status == 200:
            at = time.time()
            self.history.acknowledged += [Acknowledged(at, vm, host, event) for event in events]
        return said

    def check(self) -> None:
        for worker in (self.places, self.operator, *self.guests):
            if worker.fault is not None:
                raise AssertionError(f"{worker.name} has ended") from worker.fault

    @contextmanager
    def going_on(self) -> "Iterator[Load]":
        workers = (self.places, self.operator, *self.guests)
        for worker in workers:
            worker.start()
        try:
            yield self
        finally:
            self.stopping.set()
            for worker in workers:
                worker.join(30)
            self._approvals.shutdown()
