"""The history over HTTP: filters, exports, pruning."""

import csv
import http.client
import io
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, cast
from urllib.parse import quote

import msgspec
import pytest
from tests.control.running import Control, running
from tests.control.test_roles import EXPECTED

from forenotice.cluster.messages import Beat
from forenotice.control import export
from forenotice.core import errors
from forenotice.service import history
from forenotice.store.transaction import Reader
from forenotice.views.base import EXAMPLES
from forenotice.views.history import Entry, Pruned


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """A small fleet whose history only grows."""
    with running(tmp_path_factory.mktemp("told")) as control:
        control.post("/v1/hosts", {"name": "host-a"})
        control.post("/v1/groups", {"name": "web", "kind": "availability-set", "policy": {"listening": "always"}})
        control.post("/v1/vms", {"name": "web-0", "host": "host-a", "group": "web"})
        control.post("/v1/vms", {"name": "web-1", "host": "host-a", "group": "web"})
        yield control


def test_filters_go_together(told: Control) -> None:
    def found(query: str) -> list[str]:
        return [entry["action"] for entry in told.get(f"/v1/history?{query}")["items"]]

    [operation] = told.post("/v1/operations", {"kind": "restart", "names": ["web-0"]})["operations"]
    of_vm = found("vm=web-0&by=operator:admin")
    assert of_vm == ["vm.added", "operation.scheduled", "event.scheduled"]
    assert found("vm=web-1") == ["vm.added"]
    assert found(f"operation={operation['id']}&action=event.") == ["event.scheduled"]
    assert found("vm=web-0&scope=group:web&action=vm.&host=host-a") == ["vm.added"]
    assert found("rollout=none") == []
    soon = quote((datetime.now(UTC) + timedelta(minutes=1)).isoformat())
    assert found(f"since={soon}") == []
    assert len(found(f"until={soon}&limit=1000")) > len(of_vm)


def test_history_in_both_directions(fleet: Control) -> None:
    oldest = fleet.get("/v1/history?limit=1000")["items"]
    assert [entry["seq"] for entry in oldest] == sorted(entry["seq"] for entry in oldest)
    assert fleet.listed("/v1/history?newest_first=true", 3) == oldest[::-1]
    assert fleet.get(f"/v1/history?after={oldest[-2]['seq']}")["items"] == oldest[-1:]


def test_history_is_filtered(fleet: Control) -> None:
    assert [entry["vm"] for entry in fleet.get("/v1/history?action=vm.added&vm=db")["items"]] == ["db"]
    hosts = fleet.get("/v1/history?action=host.&by=operator:admin")["items"]
    assert {entry["host"] for entry in hosts} == {"host-a", "host-b", "host-c"}
    assert fleet.get("/v1/history?until=2020-01-01T00:00:00Z")["items"] == []
    assert fleet.get("/v1/history?since=2020-01-01T00:00:00%2B02:00")["items"] != []
    naive = fleet.ask("GET", "/v1/history?since=2020-01-01T00:00:00")
    assert naive.status == 400
    assert "since in the query must be a time with its zone" in naive.message


def test_an_export_has_everything(told: Control) -> None:
    listed = told.get("/v1/history?limit=1000")["items"]
    said = told.ask("GET", "/v1/history/export")
    assert said.status == 200
    assert said.headers["content-type"] == "application/jsonl"
    assert said.headers["content-disposition"] == 'attachment; filename="history.jsonl"'
    assert [json.loads(line) for line in said.body.splitlines()] == listed

    said = told.ask("GET", "/v1/history/export?format=csv&vm=web-1")
    assert said.headers["content-type"] == "text/csv; charset=utf-8"
    head, *rows = csv.reader(io.StringIO(said.body.decode(), newline=""))
    assert tuple(head) == export.COLUMNS == tuple(Entry.__struct_fields__)
    of_vm = told.get("/v1/history?vm=web-1")["items"]
    assert [row[:3] for row in rows] == [[str(entry["seq"]), entry["at"], entry["action"]] for entry in of_vm]
    assert said.body.endswith(b"\r\n")

    nothing = told.ask("GET", "/v1/history/export?vm=nobody")
    assert (nothing.status, nothing.body) == (200, b"")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\t", "\r"])
def test_a_spreadsheet_takes_nothing_for_a_formula(start: str) -> None:
    entry = msgspec.structs.replace(EXAMPLES[Entry], **dict.fromkeys(export.COLUMNS, f"{start}1+1"))
    _, row = csv.reader(io.StringIO(b"".join(export.as_csv([[cast(Entry, entry)]])).decode(), newline=""))
    assert set(row) == {f"'{start}1+1"}


def test_an_export_refuses_what_it_does_not_know(told: Control) -> None:
    times = ("since=now", "since=0", "until=1e-9", "since=-1700000000.5", "since=2026-01-31")
    for query in ("format=xml", *times, "limit=3", "vm=%00"):
        refused = told.ask("GET", f"/v1/history/export?{query}")
        assert (refused.status, bool(refused.message)) == (400, True), query


def test_what_fails_during_an_export_breaks_it_off(told: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes a part for the whole."""
    monkeypatch.setattr(history, "MANY", 1)
    reads = count()

    def failing() -> AbstractContextManager[Reader]:
        if next(reads) > 6:
            raise errors.UnavailableError
        return read()

    read = told.service.store.read
    monkeypatch.setattr(told.service.store, "read", failing)
    with pytest.raises(http.client.IncompleteRead):
        told.ask("GET", "/v1/history/export")


def test_an_export_breaks_off_when_the_token_is_revoked(told: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MANY", 1)
    reads = count()
    made = told.post("/v1/tokens", {"name": "leaving", "role": "admin"})

    def revoking() -> AbstractContextManager[Reader]:
        if next(reads) == 6:
            with told.service.store.write() as transaction:
                transaction.tokens.revoke(made["id"], told.service.clock.now())
        return read()

    read = told.service.store.read
    monkeypatch.setattr(told.service.store, "read", revoking)
    with pytest.raises(http.client.IncompleteRead) as broken:
        told.ask("GET", "/v1/history/export", token=made["token"])
    assert broken.value.partial.count(b"\n") < 5


def test_pruning(told: Control) -> None:
    body = {"before": "2021-01-01T00:00:00Z"}
    foretold = told.post("/v1/history/prune", {**body, "dry_run": True})
    msgspec.convert(foretold, type=Pruned)
    assert told.post("/v1/history/prune", body) == {**foretold, "dry_run": False}
    [entry] = told.get("/v1/history?action=history.pruned")["items"]
    assert (entry["by"], entry["data"]["before"]) == ("operator:admin", body["before"])


def test_pruning_refuses(told: Control) -> None:
    times = ("yesterday", 1_000_000_000, "1000000000", "2020-01-01T00:00:00", "9999-01-01T00:00:00Z")
    at = {"before": "2020-01-01T00:00:00Z"}
    for body in ({}, *({"before": time} for time in times), at | {"dry_run": "yes"}, at | {"dryrun": True}):
        refused = told.ask("POST", "/v1/history/prune", body)
        assert (refused.status, bool(refused.message)) == (400, True), body


# Every command that did something is in the history, with who, from where and why

ELSEWHERE = {
    # These do nothing.
    "POST /v1/fleet/diff",
    "POST /v1/rollouts/plan",
    # These need a receiver and a driver, and are tested with those.
    "POST /v1/subscriptions/{name}/test",
    "POST /v1/operations/{operation_id}/result",
}
POLICY = {"max_user_operations": 7}
TOML = {"Content-Type": "application/toml"}


class Journalled:
    def __init__(self, control: Control) -> None:
        self.control = control
        self.tried: set[str] = set()

    def did(self, endpoint: str, body: object = None, **names: str) -> Any:
        """Send a command with a reason of its own, and find that in the history."""
        self.tried.add(endpoint)
        method, path = endpoint.format(**names).split()
        why = f"because of {len(self.tried)}"
        headers = {"Forenotice-Reason": quote(why), **(TOML if isinstance(body, bytes) else {})}
        said = self.control.ask(method, path, body, headers=headers)
        assert said.status in (200, 201), (endpoint, said.body)
        found = self.control.get("/v1/history?limit=1000&newest_first=true")["items"]
        entries = [entry for entry in found if entry["reason"] == why]
        assert entries, endpoint
        assert {(entry["by"], entry["origin"]) for entry in entries} == {("operator:admin", "127.0.0.1")}, endpoint
        return said.json


def test_every_command_is_in_the_history(fleet: Control) -> None:
    commands = Journalled(fleet)
    did = commands.did
    did("POST /v1/fleet", b"[hosts.host-x]\n")
    did("POST /v1/hosts", {"name": "host-y"})
    did("PATCH /v1/hosts/{name}", {"cordoned": True}, name="host-y")
    did("DELETE /v1/hosts/{name}", name="host-y")
    fleet.service.edges.beat("host-a", Beat(version="1.0"))
    fleet.service.edges.watch(True)
    did("DELETE /v1/edges/{host}", host="host-a")
    did("POST /v1/groups", {"name": "new", "kind": "availability-set"})
    did("PATCH /v1/groups/{name}", {"policy": {"auto_approve_restart": True}}, name="new")
    did("PATCH /v1/groups/{name}/policy", POLICY, name="new")
    did("DELETE /v1/groups/{name}", name="new")
    did("POST /v1/vms", {"name": "late", "host": "host-c"})
    did("PATCH /v1/vms/{name}", {"spot": True}, name="late")
    did("PATCH /v1/vms/{name}/policy", POLICY, name="late")
    did("DELETE /v1/vms/{name}", name="late")
    [restart] = did("POST /v1/operations", {"kind": "restart", "names": ["web-0"]})["operations"]
    did("POST /v1/operations/{operation_id}/cancel", operation_id=restart["id"])
    [again] = did("POST /v1/operations", {"kind": "restart", "names": ["web-0"]})["operations"]
    did("POST /v1/events/{event_id}/cancel", event_id=again["events"][0]["id"])
    [third] = did("POST /v1/operations", {"kind": "restart", "names": ["web-0"]})["operations"]
    did("POST /v1/events/{event_id}/approve", event_id=third["events"][0]["id"])
    token = did("POST /v1/tokens", {"name": "t", "role": "admin"})
    did("POST /v1/tokens/{token_id}/rotate", {}, token_id=token["id"])
    did("DELETE /v1/tokens/{token_id}", token_id=token["id"])
    rollout = did("POST /v1/rollouts", {"kind": "update", "hosts": "host-b"})["id"]
    for verb in ("pause", "resume", "cancel"):
        did(f"POST /v1/rollouts/{{rollout_id}}/{verb}", {}, rollout_id=rollout)
    did("POST /v1/subscriptions", {"name": "s", "url": "https://receiver.example/"})
    did("PATCH /v1/subscriptions/{name}", {"groups": "web"}, name="s")
    did("POST /v1/subscriptions/{name}/replay", {"after": 0}, name="s")
    did("POST /v1/subscriptions/{name}/resume", name="s")
    did("DELETE /v1/subscriptions/{name}", name="s")
    did("POST /v1/history/prune", {"before": "2000-01-01T00:00:00Z"})
    assert commands.tried == {name for name in EXPECTED if not name.startswith("GET ")} - ELSEWHERE
