"""Whatever befalls a cluster: no 200 is forgotten, what has ended stays so, nothing begins early, and edges catch up.

Real processes in network namespaces, guests and an operator who never rest. `FAULTS=500 SEED=7 make soak` has more.
"""

import json
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.cluster.faults import judge
from tests.cluster.faults.cluster import ADDRESSES, FLEET, HELD, PATIENCE, PROBES, SPEED, cluster
from tests.cluster.faults.convergence import announce, converge, disagreements, restart
from tests.cluster.faults.faults import FAULTS, Fault, cut_off
from tests.cluster.faults.load import Load
from tests.namespaces import require_namespaces

SETTLE_SECONDS = 30.0
COUNT = int(os.environ.get("FAULTS", "100"))
EPISODE = 25
"""Faults that one cluster bears."""
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 2**32)

# An election in NATS takes four seconds or more, the lease of the `serve` that publishes lasts six.
ROUNDS: Sequence[tuple[float, Sequence[str]]] = (
    (2, ["NATS leader killed"]),
    (1, ["NATS follower killed", "edge killed"]),
    (1, ["PostgreSQL killed"]),
    (1, ["publishing serve killed"]),
    (5, ["NATS leader paused"]),
    (2, ["PostgreSQL paused", "edge paused"]),
    (7, ["publishing serve paused", "NATS follower paused"]),
    (3, ["NATS leader cut off"]),
    (2, ["centre cut off from NATS"]),
    (2, ["disk of NATS leader full"]),
    (2, ["older database restored while serve is stopped"]),
)
"""Seconds that they last, and which."""


@contextmanager
def _loaded(seed: int, kept: Path) -> Iterator[Load]:
    """`kept`: where all logs and the last journal are left."""
    require_namespaces("nft", "setpriv")
    # Not pytest's own folder: the path of a socket must be short, and PostgreSQL's user must get there.
    with tempfile.TemporaryDirectory(prefix="nb-") as folder:
        root = Path(folder)
        root.chmod(0o711)
        try:
            with cluster(root) as whole, Load(whole, seed).going_on() as load:
                yield load
        finally:
            for file in (*root.glob("*/log"), *root.glob("journal.json")):
                shutil.copy(file, kept / "-".join(file.relative_to(root).parts))


def test_faults_of_every_kind(tmp_path: Path) -> None:
    """One test, so that one worker has the one cluster; the last fault that it prints is the one that was too much."""
    with _loaded(20261118, tmp_path) as load:
        for seconds, names in ROUNDS:
            _bear(load, [FAULTS[name] for name in names], seconds)
        _cut_off_an_edge(load)
        _require_effort(load)


def _cut_off_an_edge(load: Load) -> None:
    """What it has not shown waits for it."""
    print("edge cut off", end="", flush=True)
    whole, vm = load.cluster, PROBES["host-2"]
    held = announce(load)["host-2"]
    with cut_off(whole.edges["host-2"].machine):
        load.approve(HELD["host-2"], "host-2", [held])
        event = until(lambda: restart(whole, vm), what="a restart is accepted")
        until(lambda: _waits_for_edge(load, event), what="its NotBefore has passed, and the edge is waited for")
        assert disagreements(whole, [vm])
    _judge(load, healed=time.monotonic())
    until(lambda: whole.get(f"/v1/events/{event}")["status"] != "Scheduled", what="now it has started")


def _waits_for_edge(load: Load, event: str) -> bool:
    blockers = load.cluster.get(f"/v1/events/{event}/explanation")["waiting_for"]
    return any((each["kind"], each.get("host")) == ("edge", "host-2") for each in blockers)


def _require_effort(load: Load) -> None:
    """Guests and the operator have done what they are there for."""
    journal = list(load.cluster.history())
    actions = [entry["action"] for entry in journal]
    approved = {entry["operation"] for entry in journal if entry["action"] == "event.approved"}
    started = {entry["operation"] for entry in journal if entry["action"] == "operation.started"}
    assert len(load.history.acknowledged) > 30
    assert actions.count("vm.moved") > 3
    assert actions.count("event.canceled") > 3
    assert len(started - approved) > 3, "some start by expiry"
    assert {vm for vm, seen in load.history.seen.items() if len(seen) > 3} == set(ADDRESSES)


@pytest.mark.soak
@pytest.mark.parametrize("episode", range(-(-COUNT // EPISODE)))
def test_faults_by_the_hundred(episode: int, tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} {episode}")
    done = 0
    with _loaded(chance.randrange(2**32), tmp_path) as load:
        while done < min(EPISODE, COUNT - episode * EPISODE):
            faults = [chance.choice(list(FAULTS.values()))]
            if chance.random() < 0.3:
                faults += [fault for fault in [chance.choice(list(FAULTS.values()))] if not fault.of & faults[0].of]
            # A backup is made while all is well.
            faults.sort(key=lambda fault: len(fault.of), reverse=True)
            seconds = chance.choice([0.2, 1, 3, 8, 14]) * chance.uniform(0.5, 1.5)
            print(f"SEED={SEED}, episode {episode}: ", end="", flush=True)
            _bear(load, faults, seconds)
            done += len(faults)


def _bear(load: Load, faults: Sequence[Fault], seconds: float) -> None:
    print(f"{' and '.join(fault.name for fault in faults)} for {seconds:.1f} s", end="", flush=True)
    (at_once, event), *during = announce(load).items()
    with ExitStack() as stack:
        load.approve(HELD[at_once], at_once, [event])
        for fault in faults:
            stack.enter_context(fault.begin(load))
        for host, event in during:
            load.approve(HELD[host], host, [event])
        threading.Event().wait(seconds)
    load.cluster.wait_until_ready()
    _judge(load, healed=time.monotonic())


def _judge(load: Load, healed: float) -> None:
    print(f", well again after {converge(load, healed):.1f} s", flush=True)
    load.check()
    history = load.history.copy()

    def settled() -> list[dict[str, Any]]:
        journal = list(load.cluster.history())
        return [] if judge.outstanding(history, journal) else journal

    # What a process has taken and not acknowledged comes again to another.
    journal = until(settled, SETTLE_SECONDS, lambda: f"effect of {judge.outstanding(history, load.cluster.history())}")
    (load.cluster.root / "journal.json").write_text(json.dumps(journal))
    found = judge.violations(history, journal, FLEET, speed=SPEED, patience=PATIENCE)
    assert found == []
    assert [defect for each in (*load.cluster.serves, *load.cluster.edges.values()) for defect in each.defects] == []
