"""The way into every page: who gets in, what is refused and how, and what every response says to browsers."""

import http.client
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from urllib.parse import urlencode

import pytest
import structlog
from tests.acceptance.running import until
from tests.control import certificates
from tests.control.running import DEADLINE
from tests.control.test_roles import ADMINS, EVERYBODY, MANAGERS, OPERATORS, OVERSEERS, ROLES
from tests.emulator.controlled import controlled
from tests.portal.running import HIDDEN, Portal, Visitor, running

from forenotice.control import limits, tls
from forenotice.core.draft import World
from forenotice.portal import forms
from forenotice.portal.app import DECLARED, PLACES
from forenotice.service import queries
from forenotice.service.service import UnitOfWork

HEADERS = {
    # Word for word: a policy with one word more is another one.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
EXPECTED = {
    "GET /": EVERYBODY,
    "GET /act": OPERATORS,
    "POST /act": OPERATORS,
    "GET /events/{id}": EVERYBODY,
    "GET /events/{id}/cancel": OPERATORS,
    "GET /events/{id}/approve": EVERYBODY,
    "POST /events/{id}/approve": OPERATORS,
    "POST /events/{id}/cancel": OPERATORS,
    "GET /operations/{id}": EVERYBODY,
    "POST /operations/{id}/cancel": MANAGERS,
    "GET /fleet": EVERYBODY,
    "GET /edges": OVERSEERS,
    "POST /edges/{host}/forget": MANAGERS,
    "GET /vms/{name}": EVERYBODY,
    "GET /vms/{name}/document": EVERYBODY,
    "GET /vms/{name}/policy": EVERYBODY,
    "POST /vms/{name}/policy": MANAGERS,
    "GET /hosts/{name}": OVERSEERS,
    "POST /hosts/{name}/cordon": MANAGERS,
    "POST /hosts/{name}/uncordon": MANAGERS,
    "GET /groups/{name}": EVERYBODY,
    "GET /groups/{name}/policy": EVERYBODY,
    "POST /groups/{name}/policy": MANAGERS,
    "GET /history": EVERYBODY,
    "GET /history/export": EVERYBODY,
    "GET /rollouts": OVERSEERS,
    "GET /rollouts/new": OVERSEERS,
    "GET /rollouts/plan": OVERSEERS,
    "POST /rollouts": MANAGERS,
    "GET /rollouts/{rollout_id}": OVERSEERS,
    "GET /rollouts/{rollout_id}/{verb}": MANAGERS,
    "POST /rollouts/{rollout_id}/{verb}": MANAGERS,
    "GET /subscriptions": OVERSEERS,
    "POST /subscriptions": MANAGERS,
    "GET /subscriptions/{name}": OVERSEERS,
    "POST /subscriptions/{name}": MANAGERS,
    "GET /subscriptions/{name}/remove": MANAGERS,
    "POST /subscriptions/{name}/remove": MANAGERS,
    "GET /subscriptions/{name}/replay": OVERSEERS,
    "POST /subscriptions/{name}/replay": MANAGERS,
    "POST /subscriptions/{name}/resume": MANAGERS,
    "GET /subscriptions/{name}/test": OVERSEERS,
    "POST /subscriptions/{name}/test": MANAGERS,
    "GET /tokens": ADMINS,
    "POST /tokens": ADMINS,
    "GET /tokens/{token_id}/rotate": ADMINS,
    "POST /tokens/{token_id}/rotate": ADMINS,
    "GET /tokens/{token_id}/revoke": ADMINS,
    "POST /tokens/{token_id}/revoke": ADMINS,
}


@pytest.fixture(scope="module")
def visitors(unchanged: Portal) -> dict[str, Visitor]:
    """By role."""
    return {
        role: unchanged.visitor(unchanged.token_of(role.partition(" ")[0], scopes, name="a-" + role.replace(" ", "-")))
        for role, scopes in ROLES.items()
    }


@pytest.fixture(scope="module")
def admin(unchanged: Portal) -> Visitor:
    return unchanged.visitor()


# Roles, sessions and forms


def test_every_page_is_named_here() -> None:
    assert {f"{page.method} {page.path}" for page in DECLARED} == set(EXPECTED)
    # A page that is written but not declared would be missing.
    modules = (Path(__file__).parents[2] / "src/forenotice/portal/pages").glob("*.py")
    declared = sum(len(re.findall(r"^@pages\.(?:get|post)\(", path.read_text(), re.M)) for path in modules)
    assert declared == len(DECLARED)


@pytest.mark.parametrize("page", EXPECTED)
def test_who_may(visitors: dict[str, Visitor], page: str) -> None:
    method, _, path = page.partition(" ")
    path = re.sub(r"\{.*?\}", "nobody", path)
    allowed = set()
    for role, visitor in visitors.items():
        fields = {} if method == "GET" else {"form_token": visitor.hidden()["form_token"]}
        answer = visitor.ask("GET", path) if method == "GET" else visitor.send(path, fields)
        assert answer.status < 500, answer.text
        if answer.status != 403:
            allowed.add(role)
        else:
            answer.shows("needs the role", 'href="/"')
    assert allowed == EXPECTED[page]


def test_without_a_session_there_is_no_page_and_without_its_token_no_form(unchanged: Portal, admin: Visitor) -> None:
    stranger, other = Visitor(unchanged.port), unchanged.visitor().hidden()["form_token"]
    for page in DECLARED:
        path = re.sub(r"\{.*?\}", "x", page.path)
        if page.method == "GET":
            assert stranger.get(path, 303).location.startswith("/sign-in")
        else:
            assert stranger.send(path, {}).status == 401
            for fields in ({}, {"form_token": ""}, {"form_token": "x" * 32}, {"form_token": other}):
                assert admin.send(path, fields).status == 403, path


def test_the_head_of_a_page_leads_where_one_may_go(visitors: dict[str, Visitor]) -> None:
    for visitor in visitors.values():
        nav = visitor.get("/").html
        for _, path, _ in PLACES:
            visitor.get(path, 200 if f'<li><a href="{path}"' in nav else 403)


def test_what_is_not_there_keeps_the_head_of_the_page(admin: Visitor) -> None:
    admin.get("/tokens/nothing/revoke", 404).shows("There is nothing here", 'href="/fleet"')
    admin.get("/nowhere", 404).shows("There is no page /nowhere")


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"form_token", 400), (b"\xff=\xff", 400), (b"x=1&" * 300, 400), (b"x=" + b"1" * forms.LARGEST, 413)],
)
def test_forms_that_cannot_be_read(admin: Visitor, body: bytes, status: int) -> None:
    answer = admin.ask("POST", "/sign-out", body)
    assert answer.status == status
    answer.shows("refused")


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
def test_control_characters_are_refused(admin: Visitor, path: str) -> None:
    admin.get(path, 400).shows("control characters")


def test_a_refused_form_leads_back_to_its_page(admin: Visitor) -> None:
    fields = {"form_token": admin.hidden()["form_token"], "reason": "x" * 2000}
    path = "/events/C7061BAC-AFDC-4513-B24B-AA5F13A16123/approve"
    refused = admin.send(path, fields, {"Referer": f"http://127.0.0.1:{admin.port}/?span=1h"})
    assert refused.status in (400, 404)
    refused.shows('href="/?span=1h">Back')
    admin.send(path, fields, {"Referer": "http://evil.example/?span=1h"}).lacks("evil")


def test_a_form_holds_its_key_to_one_thing(portal: Portal) -> None:
    visitor = portal.visitor()
    token = visitor.hidden()["form_token"]
    fields = {"form_token": token, "form_key": "once", "kind": "restart", "name": "web-0"}
    assert visitor.send("/act", fields).status == 303
    assert visitor.send("/act", {**fields, "name": "db"}, {"Referer": "http://["}).status == 409
    for key in ("x" * 300, "ä", "a b"):
        assert visitor.send("/act", {**fields, "form_key": key}).status == 400


# Limits


def test_one_token_has_so_many_pages_at_once(admin: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_OF_ONE", 0)
    admin.get("/", 429).shows("requests of this token are under way")


def test_pages_and_requests_count_for_one_token(tmp_path: Path) -> None:
    with running(tmp_path, token_rate=0.5) as portal:
        visitor = portal.visitor()
        api = {"Authorization": f"Bearer {portal.token}"}
        until(lambda: visitor.ask("GET", "/v1/vms", headers=api).status == 429)
        until(lambda: visitor.ask("GET", "/live?after=x").status == 429)
        end = monotonic() + DEADLINE
        while (refused := visitor.ask("GET", "/fleet")).status != 429:
            assert monotonic() < end
        refused.shows("more than 0.5 requests a second")
        assert 1 <= int(refused.headers["retry-after"]) <= 2


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


def _fill(unit: UnitOfWork) -> None:
    """More than what lies between a server and a reader who does not read."""
    draft = unit.draft(World())
    for _ in range(8000):
        draft.note("command.unchanged", scope="group:web", asked="x" * 1000)
    unit.keep(draft)


@contextmanager
def restarts(portal: Portal, visitor: Visitor) -> Iterator[Callable[[int, int], list[socket.socket]]]:
    """Gives a function that sends forms with keys of these numbers, and does not wait for their responses."""
    token = visitor.hidden()["form_token"]
    cookies = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    head = f"POST /act HTTP/1.1\r\nHost: 127.0.0.1:{portal.port}\r\nCookie: {cookies}\r\n"
    with ExitStack() as open_:

        def send(first: int, end: int) -> list[socket.socket]:
            numbers = range(first, end)
            made = [socket.create_connection(("127.0.0.1", portal.port), timeout=DEADLINE) for _ in numbers]
            for number, connection in zip(numbers, made, strict=True):
                fields = {"form_token": token, "form_key": f"key-{number}", "kind": "restart", "name": "web-0"}
                body = urlencode(fields).encode()
                connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                open_.enter_context(connection)
            return made

        yield send


def test_nothing_is_done_for_a_browser_that_has_gone_away(portal: Portal) -> None:
    visitor = portal.visitor()
    line = portal.service.store.writer
    with restarts(portal, visitor) as send, line.turn():
        connections = send(0, limits.AT_WORK + 2)
        # Some wait for the writer, each with a thread, the others for a place among those that are worked on.
        until(lambda: len(line._waiting) == limits.AT_WORK)
        for connection in connections:
            connection.close()
        until(lambda: len(line._waiting) == 0)
    visitor.get("/")
    assert queries.operations(portal.service).items == []


def test_what_is_worked_on_keeps_its_place_and_gives_it_back_once(
    portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor, api = portal.visitor(), {"Authorization": f"Bearer {portal.token}"}
    line = portal.service.store.writer
    with restarts(portal, visitor) as send:
        with line.turn():
            connections = send(0, 1)
            until(lambda: len(line._waiting) == 1)
            # All of them while one goes on, so that places are neither lost nor multiplied.
            for _ in range(limits.AT_WORK):
                visitor.get("/fleet")
                assert visitor.ask("GET", "/v1/vms", headers=api).status == 200
            connections += send(1, limits.AT_WORK)
            until(lambda: len(line._waiting) == limits.AT_WORK)
            monkeypatch.setattr(limits, "PATIENCE_SECONDS", 0.05)
            visitor.get("/fleet", 429).shows("are being worked on")
            assert visitor.ask("GET", "/v1/vms", headers=api).status == 429
        # Only some of one VM's restarts are accepted, but all are judged.
        assert {connection.recv(12) for connection in connections} == {b"HTTP/1.1 303", b"HTTP/1.1 409"}


# Responses


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


def test_refusals_are_logged(portal: Portal) -> None:
    visitor = portal.visitor_as("viewer")
    with structlog.testing.capture_logs() as logs:
        assert Visitor(portal.port).send("/sign-in", {"token": "fn_wrong"}).status == 401
        visitor.get("/tokens", 403)
        Visitor(portal.port).ask("GET", "/fleet")
    traces = [
        (each["status"], each["path"], bool(each["token"])) for each in logs if each["action"] == "control.refused"
    ]
    assert traces == [(401, "/sign-in", False), (403, "/tokens", True)]


def test_headers_of_every_response(unchanged: Portal, admin: Visitor) -> None:
    stranger = Visitor(unchanged.port)
    asked = [(admin, path) for path in ("/", "/?span=2h", "/vms/nobody", "/nowhere", "/live")]
    asked += [(stranger, path) for path in ("/", "/sign-in", "/sign-in?once=x")]
    with controlled() as emulator:
        visitor = Visitor(int(emulator.control.rpartition(":")[2]))
        asked += [(visitor, "/"), (visitor, "/nowhere")]
        answers = [visitor.ask("GET", path, headers={"Accept": "text/html"}) for visitor, path in asked]
    assert [answer.status for answer in answers] == [200, 400, 404, 404, 400, 303, 200, 401, 200, 404]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_over_tls_the_session_never_travels_without_it(tmp_path: Path) -> None:
    made = certificates.make(tmp_path, "127.0.0.1")
    with running(tmp_path, tls=tls.context(made.file, made.key)) as portal:
        trusting = ssl.create_default_context(cafile=made.ca)
        connection = http.client.HTTPSConnection("127.0.0.1", portal.port, timeout=DEADLINE, context=trusting)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/sign-in", urlencode({"token": portal.token}), form)
        said = connection.getresponse()
        cookie = said.headers["set-cookie"]
        said.read()
        connection.request("GET", "/", headers={"Cookie": cookie.partition(";")[0]})
        page = connection.getresponse()
        token = HIDDEN.search(page.read().decode())
        connection.request("GET", "/v1/hosts", headers={"Authorization": f"Bearer {portal.token}"})
        hosts = connection.getresponse()
        hosts.read()
        assert token is not None
        sent = {**form, "Cookie": cookie.partition(";")[0]}
        connection.request("POST", "/sign-out", urlencode({"form_token": token[1]}), sent)
        left = connection.getresponse()
        connection.close()
    assert page.status == 200
    assert "Secure" in left.headers["set-cookie"], "a browser would not forget it"
    assert [answer.headers["strict-transport-security"] for answer in (said, page, hosts)] == ["max-age=31536000"] * 3
    assert said.status == 303
    assert cookie.startswith(f"__Host-forenotice-session-{portal.port}=")
    attributes = set(cookie.split("; "))
    assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= attributes
    assert not any(attribute.startswith("Domain") for attribute in attributes)


def test_without_tls_browsers_keep_the_session_too(unchanged: Portal) -> None:
    said = Visitor(unchanged.port).send("/sign-in", {"token": unchanged.token})
    attributes = set(said.headers["set-cookie"].split("; "))
    assert {"HttpOnly", "SameSite=strict"} <= attributes
    assert "Secure" not in attributes
    assert said.headers["set-cookie"].startswith(f"forenotice-session-{unchanged.port}=")
    assert "strict-transport-security" not in said.headers
