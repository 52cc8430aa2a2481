"""Everything that happens reaches a receiver that fails, in order per event, though the server is killed meanwhile."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.acceptance.running import DEADLINE, Server, serving, until
from tests.delivery.receiving import Receiver, receiving

HOSTS = ("host-a", "host-b", "host-c")
VMS = ("db", "batch")
FLAGS = ("--demo", "--speed", "600", "--guest-rate", "off", "--allow-private-targets", "127.0.0.0/8")


def test_nothing_is_lost_when_the_server_is_killed_in_the_middle(tmp_path: Path) -> None:
    silent, tries = threading.Event(), Counter[str]()

    def decide(event: dict[str, Any]) -> tuple[int, dict[str, str]]:
        if not silent.is_set():
            silent.wait(DEADLINE)
            return 500, {}
        tries[event["id"]] += 1
        return (503 if int(event["id"]) % 7 == 0 and tries[event["id"]] == 1 else 204), {}

    with receiving(decide) as receiver, serving(tmp_path, *FLAGS) as server:
        made = server.post("/v1/subscriptions", {"name": "pager", "url": receiver.url, "types": ["event.*"]})
        receiver.secret = made["secret"]
        _maintain(server)
        receiver.until(lambda receiver: receiver.asked)
        server.kill()
        silent.set()
        server.start()
        _come_to_rest(server)
        wanted = [entry for entry in server.history(action="event.") if entry["seq"] > made["position"]]
        receiver.until(lambda receiver: len({event["id"] for event in receiver.taken}) == len(wanted))
        shown = until(lambda: (found := server.get("/v1/subscriptions/pager"))["pending"] == 0 and found)
        assert (shown["status"], shown["why"]) == ("active", "")
        assert made["secret"] not in server.errors
        _check(receiver, wanted)
        assert server.defects == []


def _maintain(server: Server) -> None:
    for kind, names in (("host-update", HOSTS), ("restart", VMS)):
        for name in names:
            made = server.schedule(kind, name)
            for event in made["events"]:
                server.post(f"/v1/events/{event['id']}/approve")


def _come_to_rest(server: Server) -> None:
    until(lambda: not server.get("/v1/operations?live=true")["items"], what="no operation is live")


def _check(receiver: Receiver, wanted: list[dict[str, Any]]) -> None:
    lanes: dict[str, list[int]] = {}
    for entry in wanted:
        lanes.setdefault(entry["event"], []).append(entry["seq"])
    assert receiver.lanes() == lanes
    assert len(lanes) >= 5
    # The test has tested something.
    assert any(int(event["id"]) % 7 == 0 for event in receiver.taken)
    told = {event["id"]: event["data"] for event in receiver.taken}
    assert all(told[str(entry["seq"])]["entry"] == entry for entry in wanted)
    assert {data["event"]["id"] for data in told.values()} == set(lanes)
