"""What the gate keeps out, and how it says so."""

import re
import socket
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from urllib.parse import urlencode

import pytest
import structlog
from tests.acceptance.running import until
from tests.control.running import DEADLINE
from tests.portal.running import Portal, Visitor, running

from forenotice.control import limits
from forenotice.core.draft import World
from forenotice.portal import forms
from forenotice.portal.app import DECLARED, PLACES
from forenotice.service import queries
from forenotice.service.service import UnitOfWork


def test_nobody_sees_a_page_without_signing_in(unchanged: Portal) -> None:
    stranger = Visitor(unchanged.port)
    for declared in DECLARED:
        path = re.sub(r"\{.*?\}", "x", declared.path)
        if declared.method == "GET":
            assert stranger.get(path, 303).location.startswith("/sign-in")
        else:
            assert stranger.send(path, {}).status == 401


def test_no_form_is_taken_that_is_not_ours(unchanged: Portal) -> None:
    visitor, other = unchanged.visitor(), unchanged.visitor()
    token = re.search(r'name="form_token" value="([^"]*)"', other.get("/").html)
    assert token
    for declared in DECLARED:
        if declared.method == "POST":
            path = re.sub(r"\{.*?\}", "x", declared.path)
            for fields in ({}, {"form_token": ""}, {"form_token": "x" * 32}, {"form_token": token[1]}):
                assert visitor.send(path, fields).status == 403, path


def test_what_a_role_may_not_is_refused_with_the_way_back(unchanged: Portal) -> None:
    page = unchanged.visitor_as("tenant", "web").get("/rollouts", 403)
    assert "this needs the role" in page.text.lower()
    assert 'href="/"' in page.html


def test_places_are_for_those_who_may_go_there(portal: Portal) -> None:
    for role, scopes in (("admin", None), ("platform", None), ("viewer", None), ("tenant", "web"), ("viewer", "pool")):
        visitor = portal.visitor(portal.token_of(role, scopes, name=f"{role}-{scopes or 'all'}"))
        nav = visitor.get("/").html
        for _, path, _ in PLACES:
            shown = f'<li><a href="{path}"' in nav
            assert visitor.get(path, 200 if shown else 403)


def test_an_error_keeps_the_head_of_the_page(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/tokens/nothing/revoke", 404)
    assert "There is nothing here" in page.text
    assert 'href="/fleet"' in page.html


def test_a_page_that_is_not_there(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/nowhere", 404)
    assert "There is no page /nowhere" in page.text


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"form_token", 400), (b"\xff=\xff", 400), (b"x=1&" * 300, 400), (b"x=" + b"1" * forms.LARGEST, 413)],
)
def test_forms_that_cannot_be_read(unchanged: Portal, body: bytes, status: int) -> None:
    said = unchanged.visitor().ask("POST", "/sign-out", body)
    assert said.status == status
    assert "refused" in said.text


def test_a_refused_form_leads_back_to_its_page(portal: Portal) -> None:
    visitor = portal.visitor()
    token = re.search(r'name="form_token" value="([^"]*)"', visitor.get("/").html)
    assert token
    host = f"127.0.0.1:{portal.port}"
    fields = {"form_token": token[1], "reason": "x" * 2000}
    path = "/events/C7061BAC-AFDC-4513-B24B-AA5F13A16123/approve"
    said = visitor.send(path, fields, {"Referer": f"http://{host}/?span=1h"})
    assert said.status in (400, 404)
    assert 'href="/?span=1h">Back' in said.html
    elsewhere = visitor.send(path, fields, {"Referer": "http://evil.example/?span=1h"})
    assert "evil" not in elsewhere.html


def test_one_token_has_so_many_pages_at_once(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = portal.visitor()
    monkeypatch.setattr(limits, "MOST_OF_ONE", 0)
    assert "requests of this token are under way" in visitor.get("/", 429).text


def test_a_defect_is_an_honest_page(portal: Portal) -> None:
    visitor = portal.visitor()
    portal.service.clock = None  # type: ignore[assignment]
    page = visitor.get("/", 500)
    assert "This is a defect" in page.text
    assert "Traceback" not in page.text


def test_files_are_kept_for_as_long_as_they_stay_the_same(unchanged: Portal) -> None:
    stranger = Visitor(unchanged.port)
    [sheet] = re.findall(r'<link rel="stylesheet" href="([^"]*)"', stranger.get("/sign-in").html)
    said = stranger.ask("GET", sheet)
    assert said.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert said.headers["content-type"] == "text/css; charset=utf-8"
    other = stranger.ask("GET", "/static/000000000000/portal.css")
    assert (other.status, other.headers["cache-control"]) == (200, "no-store")
    assert stranger.ask("GET", "/static/000000000000/base.html").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/?scope=%00",
        "/rollouts/%00",
        "/tokens?after=%1f",
        "/subscriptions/%00",
        "/fleet?q=%00",
        "/history?vm=%00",
        "/act?name=%00&name=db",
    ],
)
def test_control_characters_are_refused(unchanged: Portal, path: str) -> None:
    assert "control characters" in unchanged.visitor().get(path, 400).text


def test_an_origin_that_is_none_is_somebody_elses(unchanged: Portal) -> None:
    for headers in ({"Origin": "http://["}, {"Origin": ""}):
        assert Visitor(unchanged.port).send("/sign-in", {"token": unchanged.token}, headers).status == 403


def test_a_search_that_is_too_long(unchanged: Portal) -> None:
    assert "too long" in unchanged.visitor().get("/fleet?q=" + "*e" * 200, 400).text


def test_a_form_holds_its_key_to_one_thing(portal: Portal) -> None:
    visitor = portal.visitor()
    token = re.search(r'name="form_token" value="([^"]*)"', visitor.get("/").html)
    assert token
    fields = {"form_token": token[1], "form_key": "once", "kind": "restart", "name": "web-0"}
    assert visitor.send("/act", fields).status == 303
    other = visitor.send("/act", {**fields, "name": "db"}, {"Referer": "http://["})
    assert other.status == 409
    for key in ("x" * 300, "ä", "a b"):
        assert visitor.send("/act", {**fields, "form_key": key}).status == 400


def test_an_export_that_is_not_read_is_under_way(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    portal.service.transact(_fill)
    monkeypatch.setattr(limits, "MOST_OF_ONE", 1)
    visitor = portal.visitor_as("tenant", "web")
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(DEADLINE)
        connection.connect(("127.0.0.1", portal.port))
        head = f"Host: 127.0.0.1:{portal.port}\r\nCookie: {cookies}\r\n\r\n"
        connection.sendall(f"GET /history/export?format=jsonl HTTP/1.1\r\n{head}".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert "under way" in visitor.get("/", 429).text
    until(lambda: visitor.ask("GET", "/").status == 200)


def test_nothing_is_done_for_a_browser_that_has_gone_away(portal: Portal) -> None:
    visitor = portal.visitor()
    token = re.search(r'name="form_token" value="([^"]*)"', visitor.get("/").html)
    assert token
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    line = portal.service.store.writer
    with ExitStack() as open_, line.turn():
        connections = [
            open_.enter_context(socket.create_connection(("127.0.0.1", portal.port), timeout=DEADLINE))
            for _ in range(limits.AT_WORK + 2)
        ]
        for number, connection in enumerate(connections):
            fields = {"form_token": token[1], "form_key": f"key-{number}", "kind": "restart", "name": "web-0"}
            body = urlencode(fields).encode()
            head = f"POST /act HTTP/1.1\r\nHost: 127.0.0.1:{portal.port}\r\nCookie: {cookies}\r\n"
            connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        # Some wait for the writer, each with a thread, the others for a place among those that are worked on.
        until(lambda: len(line._waiting) == limits.AT_WORK)
        for connection in connections:
            connection.close()
        until(lambda: len(line._waiting) == 0)
    visitor.get("/")
    assert queries.operations(portal.service).items == []


def _fill(unit: UnitOfWork) -> None:
    """More than what lies between a server and a reader who does not read."""
    draft = unit.draft(World())
    for _ in range(8000):
        draft.note("command.unchanged", scope="group:web", asked="x" * 1000)
    unit.keep(draft)


def test_pages_and_requests_count_for_one_token(tmp_path: Path) -> None:
    with running(tmp_path, token_rate=0.5) as portal:
        visitor = portal.visitor()
        api = {"Authorization": f"Bearer {portal.token}"}
        until(lambda: visitor.ask("GET", "/v1/vms", headers=api).status == 429)
        end = monotonic() + DEADLINE
        while (refused := visitor.ask("GET", "/fleet")).status != 429:
            assert monotonic() < end
        assert "more than 0.5 requests a second" in refused.text
        assert 1 <= int(refused.headers["retry-after"]) <= 2


def test_those_who_are_refused_leave_a_trace(portal: Portal) -> None:
    visitor = portal.visitor_as("viewer")
    with structlog.testing.capture_logs() as logs:
        assert Visitor(portal.port).send("/sign-in", {"token": "fn_wrong"}).status == 401
        visitor.get("/tokens", 403)
        Visitor(portal.port).ask("GET", "/fleet")
    traces = [
        (each["status"], each["path"], bool(each["token"])) for each in logs if each["action"] == "control.refused"
    ]
    assert traces == [(401, "/sign-in", False), (403, "/tokens", True)]
