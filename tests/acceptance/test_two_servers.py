"""Two `forenotice serve` on one PostgreSQL: one sees what the other does, and together they do everything once."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import Server, environment, run, serving, until

FLEET: dict[str, Any] = {
    "hosts": {f"host-{n}": {} for n in range(8)},
    "vms": {
        f"vm-{n}": {"host": f"host-{n}", "addresses": [f"127.34.2.{n + 1}"], "policy": {"listening": "always"}}
        for n in range(8)
    },
}
SHARED = range(1, 8)
"""The VMs that are restarted all at once."""


def address(number: int) -> str:
    return f"127.34.2.{number + 1}"


@pytest.fixture
def pair(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    env = environment(tmp_path)
    where = ("--database", postgres_url)
    refused = run("forenotice", "serve", *where, env=env)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert "has no tables yet" in refused.stderr
    advice = re.search(r"run `(forenotice migrate .*)`", refused.stderr)
    assert advice is not None
    assert run("bash", "-c", advice[1], env=env).stdout == "The database is up to date.\n"
    made = run("forenotice", "token", "create", "ada", "--offline", *where, env=env)
    flags = ("--speed", "10", "--guest-rate", "off", "--token-rate", "off", *where)
    with serving(tmp_path, *flags) as one, serving(tmp_path, *flags) as two:
        for server in (one, two):
            server.token = made.stdout.strip()
            assert not server.token_file.exists()
        one.post("/v1/fleet", FLEET)
        yield one, two


def test_they_share_everything(pair: tuple[Server, Server]) -> None:
    one, two = pair
    until(lambda: two.poll(address(0)).status == 200, what="a guest of one is known to the other")
    tag = two.poll(address(0)).headers["etag"]

    restart = one.schedule("restart", "vm-0")
    begun = time.monotonic()
    waited = two.poll(address(0), If_None_Match=tag, Prefer="wait=20")
    assert time.monotonic() - begun < 10
    (told,) = waited.json["Events"]
    assert told["EventId"] == restart["events"][0]["id"]
    until(lambda: one.poll(address(0)).body == waited.body, what="both tell the same")

    # What one has scheduled, guests of the other approve.
    assert two.approve(told["EventId"], source=address(0)).status == 200
    for server in pair:
        until(partial(_shows, server, "Started", 0), what="both show Started")

    # Many at once, approved at either: every one of them is carried out once.
    for number in SHARED:
        (event,) = pair[number % 2].schedule("restart", f"vm-{number}")["events"]
        assert pair[(number + 1) % 2].approve(event["id"], source=address(number)).status == 200
    for server in pair:
        until(partial(_is_idle, server), what="all is done")
        until(partial(_shows, server, "", *range(8)), what="all is told")
    _require_each_once(one, len(SHARED) + 1)

    # Whoever is killed in the middle of an operation, the other one finishes it.
    for number, (doomed, survivor) in enumerate((pair, pair[::-1]), 1):
        (event,) = doomed.schedule("redeploy", "vm-7")["events"]
        assert doomed.approve(event["id"], source=address(7)).status == 200
        for server in pair:
            until(partial(_shows, server, "Started", 7), what="it has started")
        doomed.kill()
        until(partial(_shows, survivor, "", 7), what="the other one finishes it")
        _require_each_once(survivor, len(SHARED) + 1 + number)
        doomed.start()
        assert doomed.document(address(7)) == survivor.document(address(7))
    for server in pair:
        assert server.defects == []


def _shows(server: Server, status: str, *numbers: int) -> bool:
    """Whether the events of these VMs all have this status; none of them has any when it is empty."""
    events = [event for number in numbers for event in server.document(address(number))["Events"]]
    return {event["EventStatus"] for event in events} == ({status} if status else set())


def _is_idle(server: Server) -> bool:
    return not server.get("/v1/operations?live=true")["items"]


def _require_each_once(server: Server, operations: int) -> None:
    journal = Counter((entry["action"], entry["operation"]) for entry in server.history() if entry["operation"])
    assert set(journal.values()) == {1}
    for action in ("scheduled", "started", "completed"):
        assert sum(kind == f"operation.{action}" for kind, _ in journal) == operations
    assert sum(kind == "driver.finished" for kind, _ in journal) == operations
