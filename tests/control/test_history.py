"""The history over HTTP: filters, exports, pruning."""

import csv
import http.client
import io
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import cast
from urllib.parse import quote

import msgspec
import pytest
from tests.control.running import Control, running

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


@pytest.mark.parametrize(
    "query",
    [
        "format=xml",
        "since=now",
        "since=0",
        "until=1e-9",
        "since=-1700000000.5",
        "since=2026-01-31",
        "limit=3",
        "vm=%00",
    ],
)
def test_an_export_refuses_what_it_does_not_know(told: Control, query: str) -> None:
    said = told.ask("GET", f"/v1/history/export?{query}")
    assert said.status == 400
    assert said.message


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


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"before": "yesterday"},
        {"before": 1_000_000_000},
        {"before": "1000000000"},
        {"before": "2020-01-01T00:00:00"},
        {"before": "9999-01-01T00:00:00Z"},
        {"before": "2020-01-01T00:00:00Z", "dry_run": "yes"},
        {"before": "2020-01-01T00:00:00Z", "dryrun": True},
    ],
)
def test_pruning_refuses(told: Control, body: dict[str, object]) -> None:
    said = told.ask("POST", "/v1/history/prune", body)
    assert said.status == 400
    assert said.message
