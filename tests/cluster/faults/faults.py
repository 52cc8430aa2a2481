"""What can befall a cluster: each fault lasts as long as its context; what it ended then runs, but may not be ready."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from tests.acceptance.running import run, until
from tests.cluster.faults.cluster import Cluster
from tests.cluster.faults.history import Restore
from tests.cluster.faults.judge import outstanding
from tests.cluster.faults.load import Load
from tests.cluster.faults.machines import Machine
from tests.cluster.faults.processes import Edge, Nats, Process, Serve

from forenotice.cluster.subjects import DOCS, UP

SETTLE_SECONDS = 30.0


@contextmanager
def killed(process: Process) -> Iterator[None]:
    process.kill()
    try:
        yield
    finally:
        process.start()


@contextmanager
def paused(process: Process) -> Iterator[None]:
    process.pause()
    try:
        yield
    finally:
        process.resume()


@contextmanager
def cut_off(*machines: Machine, others: tuple[Machine, ...] = ()) -> Iterator[None]:
    for machine in machines:
        machine.cut_off(others)
    try:
        yield
    finally:
        for machine in machines:
            machine.join_again()


@contextmanager
def full(node: Nats) -> Iterator[None]:
    """A server that could not write does without JetStream until it is started again."""
    node.disk.fill()
    try:
        yield
    finally:
        node.disk.free()
        node.terminate()
        node.start()


class Restoring(StrEnum):
    STOPPED = "while serve is stopped"
    BY_THE_BOOK = "and told of"
    IN_USE = "while serve runs"


@contextmanager
def restored(load: Load, how: Restoring) -> Iterator[None]:
    """The database is as it was before."""
    cluster = load.cluster
    kept = time.time()
    until(lambda: not outstanding(load.history, cluster.history()), SETTLE_SECONDS, "approvals have their effect")
    cluster.postgres.back_up()
    yield
    epoch = load.history.epoch
    if how is Restoring.IN_USE:
        cluster.postgres.restore()
    else:
        for serve in cluster.serves:
            serve.terminate()
        cluster.postgres.restore()
        if how is Restoring.BY_THE_BOOK:
            done = run("forenotice", "restore", "--database", cluster.postgres.local_url, env=cluster.env)
            assert done.returncode == 0, done
    load.history.restores.append(Restore(kept, time.time(), epoch))
    for serve in cluster.serves:
        if not serve.runs:
            serve.start()


def _follower(cluster: Cluster) -> Nats:
    """Of both streams."""
    leading = {cluster.leader(stream) for stream in (UP, DOCS)}
    return next(node for node in cluster.nats if node not in leading)


def _other(cluster: Cluster) -> Serve:
    """The `serve` that does not publish."""
    publisher = cluster.publisher
    return next(serve for serve in cluster.serves if serve is not publisher)


def _edge(load: Load) -> Edge:
    return load.random.choice(list(load.cluster.edges.values()))


def _on_nats(load: Load) -> tuple[Machine, ...]:
    return tuple(node.machine for node in load.cluster.nats)


@contextmanager
def _two_killed(load: Load) -> Iterator[None]:
    first, second = load.random.sample(load.cluster.nats, 2)
    with killed(first), killed(second):
        yield


@dataclass(frozen=True)
class Fault:
    name: str
    of: frozenset[str]
    """The parts of the cluster that it befalls: two faults at once have none in common."""
    begin: Callable[[Load], AbstractContextManager[None]]


def _befall(
    fault: Callable[[Process], AbstractContextManager[None]], which: Callable[[Load], Process], load: Load
) -> AbstractContextManager[None]:
    return fault(which(load))


def _faults() -> Iterator[Fault]:
    nats, postgres, serve, edge = (frozenset({part}) for part in ("NATS", "PostgreSQL", "serve", "edge"))
    processes: Sequence[tuple[str, frozenset[str], Callable[[Load], Process]]] = (
        ("NATS leader", nats, lambda load: load.cluster.leader(UP)),
        ("NATS follower", nats, lambda load: _follower(load.cluster)),
        ("PostgreSQL", postgres, lambda load: load.cluster.postgres),
        ("publishing serve", serve, lambda load: load.cluster.publisher),
        ("other serve", serve, lambda load: _other(load.cluster)),
        ("edge", edge, _edge),
    )
    for which, of, process in processes:
        yield Fault(f"{which} killed", of, partial(_befall, killed, process))
        yield Fault(f"{which} paused", of, partial(_befall, paused, process))
    yield Fault("edge cut off", edge, lambda load: cut_off(_edge(load).machine))
    yield Fault("NATS leader cut off", nats, lambda load: cut_off(load.cluster.leader(DOCS).machine))
    yield Fault("NATS follower cut off", nats, lambda load: cut_off(_follower(load.cluster).machine))
    yield Fault("two of NATS killed", nats, _two_killed)
    yield Fault(
        "centre cut off from NATS",
        serve,
        lambda load: cut_off(*(each.machine for each in load.cluster.serves), others=_on_nats(load)),
    )
    yield Fault(
        "publishing serve cut off from NATS",
        serve,
        lambda load: cut_off(load.cluster.publisher.machine, others=_on_nats(load)),
    )
    yield Fault("disk of NATS leader full", nats, lambda load: full(load.cluster.leader(UP)))
    yield Fault("disk of NATS follower full", nats, lambda load: full(_follower(load.cluster)))
    for how in Restoring:
        yield Fault(f"older database restored {how}", postgres | serve, partial(restored, how=how))


FAULTS = {fault.name: fault for fault in _faults()}
