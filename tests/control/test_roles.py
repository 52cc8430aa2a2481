"""Every endpoint with every role, and what a tenant is told over HTTP."""

import http.client
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from tests.control.running import DEADLINE, Control, Said, running

from forenotice.control import app
from forenotice.control.api import DESCRIPTION, ROUTES, ApiRequest
from forenotice.control.router import Route, Router
from forenotice.service import calls, tokens
from forenotice.views.base import Removed

ROLES = {"viewer": None, "viewer of web": "web", "tenant": "web", "platform": None, "admin": None}

EVERYBODY = frozenset(ROLES)
OVERSEERS = EVERYBODY - {"viewer of web", "tenant"}
OPERATORS = EVERYBODY - {"viewer", "viewer of web"}
MANAGERS = frozenset({"platform", "admin"})
ADMINS = frozenset({"admin"})

EXPECTED = {
    "GET /v1/openapi.json": EVERYBODY,
    "GET /v1/hosts": OVERSEERS,
    "POST /v1/hosts": MANAGERS,
    "GET /v1/hosts/{name}": OVERSEERS,
    "PATCH /v1/hosts/{name}": MANAGERS,
    "DELETE /v1/hosts/{name}": MANAGERS,
    "GET /v1/vms": EVERYBODY,
    "POST /v1/vms": MANAGERS,
    "GET /v1/vms/{name}": EVERYBODY,
    "PATCH /v1/vms/{name}": MANAGERS,
    "DELETE /v1/vms/{name}": MANAGERS,
    "PATCH /v1/vms/{name}/policy": MANAGERS,
    "GET /v1/groups": EVERYBODY,
    "POST /v1/groups": MANAGERS,
    "GET /v1/groups/{name}": EVERYBODY,
    "PATCH /v1/groups/{name}": MANAGERS,
    "DELETE /v1/groups/{name}": MANAGERS,
    "PATCH /v1/groups/{name}/policy": MANAGERS,
    "GET /v1/operations": EVERYBODY,
    "POST /v1/operations": OPERATORS,
    "GET /v1/operations/{operation_id}": EVERYBODY,
    "GET /v1/operations/{operation_id}/explanation": EVERYBODY,
    "POST /v1/operations/{operation_id}/cancel": OPERATORS,
    "POST /v1/operations/{operation_id}/result": MANAGERS,
    "GET /v1/events": EVERYBODY,
    "GET /v1/events/{event_id}": EVERYBODY,
    "GET /v1/events/{event_id}/explanation": EVERYBODY,
    "POST /v1/events/{event_id}/approve": OPERATORS,
    "POST /v1/events/{event_id}/cancel": OPERATORS,
    "GET /v1/history": EVERYBODY,
    "GET /v1/history/export": EVERYBODY,
    "POST /v1/history/prune": MANAGERS,
    "GET /v1/stream": EVERYBODY,
    "GET /v1/rollouts": OVERSEERS,
    "POST /v1/rollouts": MANAGERS,
    "POST /v1/rollouts/plan": OVERSEERS,
    "GET /v1/rollouts/{rollout_id}": OVERSEERS,
    "GET /v1/rollouts/{rollout_id}/hosts": OVERSEERS,
    "GET /v1/rollouts/{rollout_id}/explanation": OVERSEERS,
    "POST /v1/rollouts/{rollout_id}/pause": MANAGERS,
    "POST /v1/rollouts/{rollout_id}/resume": MANAGERS,
    "POST /v1/rollouts/{rollout_id}/cancel": MANAGERS,
    "GET /v1/subscriptions": OVERSEERS,
    "POST /v1/subscriptions": MANAGERS,
    "GET /v1/subscriptions/{name}": OVERSEERS,
    "PATCH /v1/subscriptions/{name}": MANAGERS,
    "DELETE /v1/subscriptions/{name}": MANAGERS,
    "POST /v1/subscriptions/{name}/resume": MANAGERS,
    "POST /v1/subscriptions/{name}/replay": MANAGERS,
    "POST /v1/subscriptions/{name}/test": MANAGERS,
    "GET /v1/subscriptions/{name}/deliveries": OVERSEERS,
    "GET /v1/fleet": OVERSEERS,
    "POST /v1/fleet": MANAGERS,
    "POST /v1/fleet/diff": OVERSEERS,
    "GET /v1/fleet/drift": OVERSEERS,
    "GET /v1/edges": OVERSEERS,
    "GET /v1/edges/{host}": OVERSEERS,
    "DELETE /v1/edges/{host}": MANAGERS,
    "GET /v1/tokens": ADMINS,
    "POST /v1/tokens": ADMINS,
    "POST /v1/tokens/{token_id}/rotate": ADMINS,
    "DELETE /v1/tokens/{token_id}": ADMINS,
}
"""Who is let in. An endpoint that is missing here fails the test below."""


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    with running(tmp_path_factory.mktemp("roles")) as found:
        yield found


@pytest.fixture(scope="module")
def secrets(control: Control) -> dict[str, str]:
    def make(who: str, scopes: str | None) -> str:
        name = f"a-{who.replace(' ', '-')}"
        return str(tokens.create(control.service, calls.SYSTEM, name=name, role=who.split()[0], scopes=scopes).token)

    return {who: make(who, scopes) for who, scopes in ROLES.items()}


OPEN = {"GET /healthz", "GET /readyz", "GET /metrics"}
"""What needs no token."""


def test_every_endpoint_declares_what_it_needs_and_is_in_the_table(control: Control) -> None:
    assert {f"{route.method} {route.path}" for route in app.MONITORING.routes} == OPEN
    found = {f"{route.method} {route.path}": route for route in ROUTES}
    assert [name for name, route in found.items() if route.need is None] == []
    described = {
        f"{method.upper()} {path}"
        for path, methods in control.get("/v1/openapi.json")["paths"].items()
        for method in methods
    }
    assert described <= set(found)
    assert set(found) == set(EXPECTED)


@pytest.mark.parametrize("who", ROLES)
def test_every_endpoint_with_every_role(control: Control, secrets: dict[str, str], who: str) -> None:
    let_in = set()
    for name in EXPECTED:
        method, path = name.split()
        status, body = _knock(control, method, re.sub(r"\{\w+\}", "none-such", path), secrets[who])
        assert status != 401
        if status == 403:
            assert body is not None
            error = json.loads(body)["error"]
            assert error["code"] == "forbidden"
            assert re.search(r"needs the role .*admin: the token's is " + who, error["message"]), error
        else:
            let_in.add(name)
    assert let_in == {name for name, expected in EXPECTED.items() if who in expected}


def _knock(control: Control, method: str, path: str, token: str) -> tuple[int, bytes | None]:
    """Only whether it is let in; what is let in may be a stream without an end."""
    connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=DEADLINE)
    try:
        body = None if method == "GET" else b"{}"
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read() if answer.status == 403 else None
    finally:
        connection.close()


def test_who_is_refused_does_not_send_a_body_first(control: Control, secrets: dict[str, str]) -> None:
    declared = {"Content-Length": str(64 * 1024 * 1024 + 1), "Content-Type": "application/toml"}
    for who, status in {"tenant": 403, "admin": 413}.items():
        assert control.ask("POST", "/v1/fleet", b"", headers=declared, token=secrets[who]).status == status


def test_what_declares_nothing_is_for_nobody(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgotten(_: ApiRequest) -> Removed:
        raise AssertionError

    route = Route("GET", "/v1/forgotten", None, forgotten)
    monkeypatch.setattr(app, "V1", Router([*ROUTES, route], DESCRIPTION))
    said = control.ask("GET", "/v1/forgotten")
    assert (said.status, said.json["error"]["code"]) == (403, "forbidden")


FLEET = b"""
[hosts.host-a]
[hosts.other-host]
[groups.web]
kind = "availability-set"
[groups.web.policy]
listening = "always"
[groups.other]
kind = "availability-set"
[groups.other.policy]
listening = "always"
[vms.web-0]
host = "host-a"
group = "web"
[vms.other-0]
host = "host-a"
group = "other"
[vms.other-db]
host = "other-host"
"""


def test_a_tenant_is_never_told_of_anybody_else(control: Control, secrets: dict[str, str]) -> None:
    control.post_fleet(FLEET)
    why = {"Forenotice-Reason": "other%20is%20ill"}
    updates = {"kind": "host-update", "names": ["host-a", "other-host"]}
    made = control.ask("POST", "/v1/operations", updates, headers=why).json["operations"]
    foreign = [event["id"] for each in made for event in each["events"] if event["scope"] != "group:web"]
    assert len(foreign) == 2
    control.ask("POST", f"/v1/events/{foreign[1]}/approve", headers=why)
    for who in ("tenant", "viewer of web"):
        answers = [*_everything(control, secrets[who]), _streamed(control, secrets[who])]
        for body in answers:
            assert b"other" not in body
            assert not [name for name in (*foreign, made[1]["id"]) if name.encode() in body]
            assert b"web" in body or b"waits for" in body
        assert any(b"an approval that is not yours" in body for body in answers)
        lost = [f"/v1/vms/{name}" for name in ("other-0", "none-such-0")]
        assert len({_without_name(control.ask("GET", path, token=secrets[who]), path) for path in lost}) == 1


def _everything(control: Control, token: str) -> Iterator[bytes]:
    """All that a tenant may read, with all ids that it can find."""
    paths = ["/v1/vms", "/v1/groups", "/v1/operations", "/v1/events", "/v1/history", "/v1/history/export"]
    for path in paths:
        said = control.ask("GET", path, token=token)
        assert said.status == 200
        yield said.body
        if "history" in path:
            continue
        assert said.json["items"]
        for item in said.json["items"]:
            one = f"{path}/{item.get('id') or item['name']}"
            asked = [one, f"{one}/explanation"] if path in ("/v1/operations", "/v1/events") else [one]
            for each in asked:
                found = control.ask("GET", each, token=token)
                assert found.status == 200
                yield found.body


def _streamed(control: Control, token: str) -> bytes:
    """As much as the history has."""
    sent = {"Authorization": f"Bearer {token}"}
    expected = len(control.ask("GET", "/v1/history?limit=1000", token=token).json["items"])
    connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=DEADLINE)
    try:
        connection.request("GET", "/v1/stream?after=0", headers=sent)
        answer = connection.getresponse()
        lines: list[bytes] = []
        while sum(line.startswith(b"data:") for line in lines) < expected:
            lines.append(answer.readline())
        return b"".join(lines)
    finally:
        connection.close()


def _without_name(said: Said, path: str) -> tuple[int, bytes]:
    return said.status, said.body.replace(path.rpartition("/")[2].encode(), b"NAME")


def test_the_history_says_who_from_where_and_why(control: Control, secrets: dict[str, str]) -> None:
    control.post_fleet(FLEET)
    control.post("/v1/hosts", {"name": "host-r"})
    why = {"Forenotice-Reason": "Gr%C3%BC%C3%9Fe%20%26%20Strom"}
    assert control.ask("DELETE", "/v1/hosts/host-r", headers=why).status == 200
    [added, removed] = control.get("/v1/history?host=host-r")["items"]
    assert (added["by"], added["origin"], added["reason"]) == ("operator:admin", "127.0.0.1", "")
    assert removed["reason"] == "Grüße & Strom"
    body = {"kind": "restart", "names": ["web-0"], "reason": "in the body"}
    [made] = control.ask("POST", "/v1/operations", body, headers=why, token=secrets["tenant"]).json["operations"]
    assert made["reason"] == "in the body"
    entries = control.get(f"/v1/history?operation={made['id']}")["items"]
    assert {(entry["by"], entry["reason"]) for entry in entries} == {("tenant:a-tenant", "in the body")}


@pytest.mark.parametrize(
    "reason", ["\0", "a\nb", "x" * 1001, "\x9b31m", "\u202egnp.exe", "a\u200bb", "\u2028", "\u2066"]
)
def test_a_reason_that_cannot_be(unchanged: Control, reason: str) -> None:
    """The same rule in the header as in the body."""
    operation = {"kind": "restart", "names": ["x"], "reason": reason}
    refused = [unchanged.ask("POST", "/v1/operations", operation)]
    for encoded in (quote(reason), "%FF", "\xfc"):
        headers = {"Forenotice-Reason": encoded}
        refused.append(unchanged.ask("POST", "/v1/hosts", {"name": "host-q"}, headers=headers))
    assert {(each.status, each.code) for each in refused} == {(400, "refused")}
    assert refused[0].message.startswith("reason in the body must")
    assert refused[1].message.startswith("a reason is at most 1000 printable characters")
    assert {each.message for each in refused[2:]} == {"Forenotice-Reason must be percent-encoded UTF-8"}
    assert unchanged.ask("GET", "/v1/hosts/host-q").status == 404


def test_tokens_over_the_api(control: Control) -> None:
    made = control.post("/v1/tokens", {"name": "t", "role": "tenant", "scopes": "web", "expires_in": "90d"})
    assert (made["role"], made["scopes"]) == ("tenant", "web")
    assert made["expires_at"] > made["created_at"]
    for body in (
        {"name": "t", "role": "tenant"},
        {"name": "t", "role": "admin", "scopes": "web"},
        {"name": "t"},
        {"name": "t", "role": "admin", "expires_in": "soon"},
        {"name": "t", "role": "admin", "expires_in": 90},
        {"name": "t", "role": "king"},
    ):
        assert control.ask("POST", "/v1/tokens", body).status == 400, body


def test_what_is_done_to_tokens_is_told_to_administrators_alone(control: Control, secrets: dict[str, str]) -> None:
    for who, secret in secrets.items():
        page = control.ask("GET", "/v1/history?action=token.&limit=1", token=secret).json["items"]
        export = control.ask("GET", "/v1/history/export?action=token.", token=secret).body
        assert (bool(page), bool(export)) == (who == "admin",) * 2, who
        if who in OVERSEERS:
            assert (b'"token.created"' in _streamed(control, secret)) == (who == "admin"), who
