"""Whether all is well again: edges show what is new, pass approvals on, and show guests the same as `serve`."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from tests.acceptance.running import until
from tests.cluster.faults.cluster import ADDRESSES, AMPLE, HELD, HOSTS, PROBES, START_SECONDS, Cluster
from tests.cluster.faults.history import epoch_of
from tests.cluster.faults.load import Load
from tests.cluster.faults.processes import Edge, Serve

SECONDS = 10.0

T = TypeVar("T")


def converge(load: Load, since: float) -> float:
    """The seconds that it took since that moment of the monotonic clock; it fails if they are too many."""
    deadline = since + SECONDS
    with ThreadPoolExecutor() as pool:
        problems = [problem for problem in pool.map(lambda host: _probe(load, host, deadline), HOSTS) if problem]
    assert problems == []
    # New events come all the time: each guest is asked until it has agreed once.
    after = load.history.restores[-1].epoch if load.history.restores else -1
    differing = disagreements(load.cluster, ADDRESSES, after)
    while differing:
        assert time.monotonic() < deadline, differing
        differing = disagreements(load.cluster, differing, after)
    return time.monotonic() - since


def _probe(load: Load, host: str, deadline: float) -> str:
    """What is wrong with the edge of a host."""
    cluster, vm = load.cluster, PROBES[host]

    def approved() -> bool:
        said = load.send_approval(vm, host, event)
        return said is not None and said.status == 200

    def taken() -> bool:
        said = cluster.command("GET", f"/v1/events/{event}")
        return said is not None and said.status == 200 and said.json["approved_at"] is not None

    try:
        event = _wait(partial(restart, cluster, vm, notice_minutes=AMPLE), deadline, f"a restart of {vm} is accepted")
        _wait(partial(_is_shown, cluster, host, vm, event), deadline, f"{event} of {vm} is shown by the edge of {host}")
        _wait(approved, deadline, f"{event} of {vm} is approved at the edge of {host}")
        _wait(taken, deadline, f"{event} of {vm}, approved at the edge of {host}, is approved")
    except AssertionError as error:
        return str(error)
    return ""


def announce(load: Load) -> Mapping[str, str]:
    """By host: an event that its edge shows, and that only an approval starts."""
    cluster, deadline = load.cluster, time.monotonic() + START_SECONDS
    events = {
        host: _wait(partial(restart, cluster, vm, notice_minutes=AMPLE), deadline, f"a restart of {vm} is accepted")
        for host, vm in HELD.items()
    }
    for host, event in events.items():
        _wait(partial(_is_shown, cluster, host, HELD[host], event), deadline, f"{event} is shown by the edge of {host}")
    return events


def _is_shown(cluster: Cluster, host: str, vm: str, event: str) -> bool:
    said = cluster.edges[host].poll(ADDRESSES[vm])
    return said is not None and event.encode() in said.body


def restart(cluster: Cluster, vm: str, **more: object) -> str:
    """The event's id; empty if it was refused because of another one, which is canceled if it still can be."""
    said = cluster.command("POST", "/v1/operations", {"kind": "restart", "names": [vm], **more})
    if said is not None and said.status == 201:
        return str(said.json["operations"][0]["events"][0]["id"])
    if said is not None and said.status == 409:
        cluster.command("POST", f"/v1/operations/{said.json['error']['facts']['operation']}/cancel", {})
    return ""


def disagreements(cluster: Cluster, vms: Iterable[str], after: int = -1) -> dict[str, str]:
    """By VM: what its guest sees at the edge, if a `serve` does not show it the same, or not in an epoch after that."""
    found = {}
    for vm in vms:
        host = cluster.get(f"/v1/vms/{vm}")["host"]
        before = _shown(vm, cluster.serves)
        (shown,) = _shown(vm, [cluster.edges[host]])
        then = _shown(vm, cluster.serves)
        if shown is None or shown[0] <= after or not all(shown in pair for pair in zip(before, then, strict=True)):
            found[vm] = f"{shown} at the edge of {host}, and {before} then {then} at `serve`"
    return found


def _shown(vm: str, whom: Sequence[Serve | Edge]) -> list[tuple[int, bytes] | None]:
    """The epoch and the document."""
    said = [each.poll(ADDRESSES[vm]) for each in whom]
    return [
        None if each is None or each.status != 200 else (epoch_of(each.headers["forenotice-epoch"]), each.body)
        for each in said
    ]


def _wait(question: Callable[[], T], deadline: float, what: str | Callable[[], str]) -> T:
    return until(question, max(0.0, deadline - time.monotonic()), what)
