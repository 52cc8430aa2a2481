"""The gate: tokens, idempotency keys, bounds, and the one shape of errors."""

import contextlib
import http.client
import json
import shutil
from pathlib import Path

import pytest
import structlog
from tests.control.running import Control

from forenotice.control import limits
from forenotice.service import calls, tokens


@pytest.mark.parametrize("path", ["/v1", "/v1/hosts", "/v1/none", "/v1/openapi.json"])
@pytest.mark.parametrize("header", [None, "Basic YTpi", "Bearer", "Bearer ", "Bearer fn_wrong", "fn_x", "Bearer \xff"])
def test_nothing_without_a_token(unchanged: Control, path: str, header: str | None) -> None:
    said = unchanged.ask("GET", path, token=None, headers={"Authorization": header} if header else {})
    assert said.status == 401
    assert said.headers["www-authenticate"].startswith("Bearer")
    assert said.json["error"]["code"] == "unauthorized"
    assert "token is needed" in said.message


@pytest.mark.parametrize("path", ["/v1/hosts", "/v1/none", "/v1/openapi.json", "/v1/history/export", "/metrics"])
@pytest.mark.parametrize("token", ["", None])
def test_no_response_is_cached_or_sniffed(unchanged: Control, path: str, token: str | None) -> None:
    headers = unchanged.ask("GET", path, token=token).headers
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")


def test_two_tokens_in_one_request_are_none(unchanged: Control) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", unchanged.port, timeout=60)
    connection.putrequest("GET", "/v1/hosts")
    for _ in range(2):
        connection.putheader("Authorization", f"Bearer {unchanged.token}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_a_token_from_its_making_to_its_end(control: Control) -> None:
    made = control.post("/v1/tokens", {"name": "ci", "role": "admin"})
    assert control.ask("GET", "/v1/hosts", token=made["token"]).status == 200
    listed = {token["name"]: token for token in control.get("/v1/tokens")["items"]}
    assert listed["ci"]["last_used_at"] is not None
    assert "token" not in listed["ci"]
    assert control.ask("DELETE", f"/v1/tokens/{made['id']}").json["revoked_at"] is not None
    assert control.ask("GET", "/v1/hosts", token=made["token"]).status == 401
    assert control.ask("DELETE", f"/v1/tokens/{made['id']}").status == 404
    bot = control.post("/v1/tokens", {"name": "bot", "role": "viewer", "expires_in": "never"})
    rotated = control.post(f"/v1/tokens/{bot['id']}/rotate", {"overlap": "0s", "expires_in": "30d"})
    assert (bot["expires_at"], rotated["expires_at"] is None) == (None, False)
    statuses = [control.ask("GET", "/v1/vms", token=each["token"]).status for each in (bot, rotated)]
    assert statuses == [401, 200]


def test_refusals_are_logged_and_counted(control: Control) -> None:
    viewer = control.post("/v1/tokens", {"name": "viewer", "role": "viewer"})
    gone = control.post("/v1/tokens", {"name": "gone", "role": "viewer"})
    far, near = (
        control.post("/v1/tokens", {"name": name, "role": "viewer", "networks": [network]})
        for name, network in (("far", "192.0.2.0/24"), ("near", "127.0.0.1"))
    )
    assert control.ask("GET", "/v1/vms", token=near["token"]).status == 200
    control.ask("DELETE", f"/v1/tokens/{gone['id']}")
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            control.ask("GET", "/v1/hosts", token="fn_guessed")
        control.ask("GET", "/v1/hosts", token=gone["token"])
        control.ask("GET", "/v1/tokens", token=viewer["token"])
        control.ask("POST", "/v1/operations", {"kind": "restart", "names": ["x"]}, token=viewer["token"])
        control.ask("GET", "/v1/hosts/none")
        elsewhere = control.ask("GET", "/v1/vms", token=far["token"])
    assert (elsewhere.status, elsewhere.message) == (403, "this token may not be used from 127.0.0.1")
    traces = [each for each in logs if each["action"] == "control.refused"]
    assert [(each["status"], each["token"], each["count"]) for each in traces] == [
        (401, "", 1),
        (401, "", 2),
        (401, "", 4),
        (401, gone["id"], 1),
        (403, viewer["id"], 1),
        (403, viewer["id"], 2),
        (403, far["id"], 1),
    ]
    assert {each["address"] for each in traces} == {"127.0.0.1"}
    assert [each["unlogged"] for each in traces] == [0, 0, 1, 1, 0, 0, 0]
    assert "fn_" not in json.dumps(traces)
    told = control.metrics.render()
    assert b'forenotice_refused_total{status="401"} 6.0' in told
    assert b'forenotice_refused_total{status="403"} 3.0' in told


def test_a_flood_of_refusals_does_not_drown_the_log(control: Control) -> None:
    found = limits.Refusals(control.metrics)
    with structlog.testing.capture_logs() as logs:
        for number in range(5000):
            address = f"2001:db8:{number % 3000:x}::1"
            found.note(401, address=address, token="", method="GET", path="/v1/hosts")
    assert len(logs) <= limits.LINES_AT_ONCE + 20
    assert b'forenotice_refused_total{status="401"} 5000.0' in control.metrics.render()


def test_a_command_takes_effect_once_under_a_key(control: Control) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = control.ask("POST", "/v1/hosts", {"name": "host-a"}, headers=key)
    again = control.ask("POST", "/v1/hosts", {"name": "host-a"}, headers=key)
    assert (again.status, again.json) == (first.status, first.json)
    other = control.ask("POST", "/v1/hosts", {"name": "host-b"}, headers=key)
    assert (other.status, other.json["error"]["code"]) == (409, "conflict")
    elsewhere = control.ask("PATCH", "/v1/hosts/host-a", {"cordoned": True}, headers=key)
    assert elsewhere.status == 409
    assert "was used for another request" in other.message
    second = tokens.create(control.service, calls.SYSTEM, name="other").token
    theirs = control.ask("POST", "/v1/hosts", {"name": "host-b"}, headers=key, token=second)
    assert theirs.status == 201
    # The query is a part of the request.
    headers = {"Idempotency-Key": "k-2", "Content-Type": "application/json"}
    assert control.ask("POST", "/v1/fleet?dry_run=true", {}, headers=headers).status == 200
    assert control.ask("POST", "/v1/fleet", {}, headers=headers).status == 409


@pytest.mark.parametrize("key", ["", "two words", "x" * 201])
def test_a_bad_key_is_refused(unchanged: Control, key: str) -> None:
    said = unchanged.ask("POST", "/v1/hosts", {"name": "host-a"}, headers={"Idempotency-Key": key})
    assert (said.status, said.code) == (400, "refused")
    assert "Idempotency-Key must be 1 to 200" in said.message
    assert unchanged.get("/v1/hosts")["items"] == []


BAD = [
    ("POST", "/v1/hosts", b"{", "the body is not JSON"),
    ("POST", "/v1/hosts", b"", "the body is missing"),
    ("POST", "/v1/hosts", b"{\x80", "the body is not JSON"),
    ("POST", "/v1/hosts", b"[" * 100_000, "the body must be an object"),
    ("POST", "/v1/hosts", b"[]", "the body must be an object"),
    ("POST", "/v1/hosts", {}, "name in the body is missing"),
    ("POST", "/v1/hosts", {"name": "a b"}, "name in the body must be a name"),
    ("POST", "/v1/hosts", {"name": "x" * 65}, "name in the body must be a name"),
    ("POST", "/v1/hosts", {"name": "a\u0000"}, "name in the body must be a name"),
    ("POST", "/v1/hosts", {"name": 5}, "name in the body must be a string"),
    ("POST", "/v1/hosts", {"name": "a", "cordoned": "yes"}, "cordoned in the body must be true or false"),
    ("POST", "/v1/hosts", {"name": "a", "colour": "red"}, "colour in the body is not known"),
    ("POST", "/v1/vms", {"name": "v", "host": "h", "update_domain": "1"}, "update_domain in the body must be an int"),
    ("POST", "/v1/vms", {"name": "v", "host": "h", "update_domain": True}, "update_domain in the body must be an int"),
    ("POST", "/v1/vms", {"name": "v", "host": "h", "update_domain": 10**30}, "update_domain in the body must be at mo"),
    (
        "POST",
        "/v1/vms",
        {"name": "v", "host": "h", "facts": {"zone": "\u0000"}},
        "facts.zone in the body must not hold",
    ),
    ("POST", "/v1/vms", {"name": "v", "host": "h", "addresses": ["nowhere"]}, "'nowhere' is not an IP address"),
    ("POST", "/v1/vms", b'{"name": "v", "host": "h", "vm_id": "\\ud800"}', "without lone surrogates"),
    ("POST", "/v1/hosts", b'{"name": "\\ud800"}', "without lone surrogates"),
    ("POST", "/v1/hosts", b'{"\\udfff": "a"}', "without lone surrogates"),
    ("POST", "/v1/operations", b'{"kind": "restart", "names": ["a\\ud800"]}', "without lone surrogates"),
    ("POST", "/v1/groups", {"name": "g", "kind": "herd"}, "kind in the body must be one of"),
    ("POST", "/v1/groups", {"name": "g", "kind": "standalone"}, "a group is"),
    ("POST", "/v1/operations", {"kind": "restart", "names": []}, "names in the body must have at least 1"),
    ("POST", "/v1/operations", {"kind": "restart", "names": ["a", "b", "a"]}, "a is named twice"),
    ("POST", "/v1/operations", {"kind": "restart", "names": ["a/b"]}, "is not a VM or host name"),
    ("POST", "/v1/operations", b'{"kind": "restart", "names": ["a"], "notice_minutes": NaN}', "NaN and Infinity"),
    ("POST", "/v1/operations", {"kind": "host-update", "names": ["a"], "duration_seconds": 0}, "must be at least 1"),
    ("POST", "/v1/operations", {"kind": "restart", "names": ["a"], "notice_minutes": 1e9}, "must be at most 527040"),
    (
        "POST",
        "/v1/operations",
        {"kind": "restart", "names": ["a"], "reason": "a\nb"},
        "reason in the body must be print",
    ),
    ("GET", "/v1/hosts?limit=0", None, "limit in the query must be at least 1"),
    ("GET", "/v1/hosts?limit=x", None, "limit in the query must be an integer"),
    ("GET", "/v1/hosts?after=%00", None, "after in the query must not hold control characters"),
    ("GET", "/v1/hosts/a%20b", None, "name in the path must be a name"),
    ("GET", "/v1/events/%00", None, "event_id in the path must be an id"),
    ("GET", "/v1/events?vm=a%00b", None, "vm in the query must be a name"),
    ("GET", "/v1/history?after=99999999999999999999", None, "after in the query must be at most"),
    ("GET", "/v1/history?vm=%00", None, "vm in the query must not hold control characters"),
    ("GET", "/v1/operations?kind=dance", None, "kind in the query must be one of restart"),
    ("GET", "/v1/history?since=0001-01-01T00:00:00%2B14:00", None, "years 1 to 9999"),
    ("GET", "/v1/history?until=9999-12-31T23:59:59-14:00", None, "years 1 to 9999"),
    ("POST", "/v1/fleet?dryrun=true", {}, "dryrun in the query is not known: known are dry_run, move, prune"),
    ("GET", "/v1/hosts/a?limit=1", None, "limit in the query is not known: there is nothing to give here"),
    ("GET", "/v1/hosts?limit=1&limit=2", None, "limit in the query is given twice"),
    ("GET", "/v1/hosts?after=", None, "after in the query must have at least 1"),
]


@pytest.mark.parametrize(("method", "path", "body", "said"), BAD)
def test_what_is_malformed_gets_one_sentence(
    unchanged: Control, method: str, path: str, body: object, said: str
) -> None:
    before = unchanged.get("/v1/history?limit=1000")
    answer = unchanged.ask(method, path, body)
    assert (answer.status, answer.code) == (400, "refused"), answer.body
    assert said in answer.message
    assert unchanged.get("/v1/history?limit=1000") == before


def test_unknown_paths_and_methods(unchanged: Control) -> None:
    lost = unchanged.ask("GET", "/v1/none")
    assert (lost.status, lost.json["error"]["code"]) == (404, "not_found")
    assert "/v1/none" in lost.message
    wrong = unchanged.ask("PUT", "/v1/hosts", {})
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, POST")
    assert wrong.message == "PUT is not possible here: use GET, POST"
    assert unchanged.ask("GET", "/v1/hosts/").status == 404
    assert unchanged.ask("GET", "/", token=None).status == 404


def test_bodies_are_bounded_and_may_have_any_content_type(control: Control) -> None:
    for number, kind in enumerate(("application/x-www-form-urlencoded", "text/plain", "application/json")):
        body = {"name": f"host-{number}"}
        assert control.ask("POST", "/v1/hosts", body, headers={"Content-Type": kind}).status == 201
    large = b'{"name": "' + b"x" * (4 * 1024 * 1024) + b'"}'
    said = control.ask("POST", "/v1/hosts", large)
    assert (said.status, said.json["error"]["code"]) == (413, "too_large")
    assert "4 MiB" in said.message
    toml = b"#" * (5 * 1024 * 1024)
    for path in ("/v1/fleet", "/v1/fleet/diff"):
        assert control.ask("POST", path, toml, headers={"Content-Type": "application/toml"}).status == 200
    declared = {"Content-Type": "application/toml", "Content-Length": str(64 * 1024 * 1024 + 1)}
    assert control.ask("POST", "/v1/fleet", b"", headers=declared).status == 413
    connection = http.client.HTTPConnection("127.0.0.1", control.port, timeout=60)
    chunks = iter([b"x" * (1024 * 1024)] * 5)
    with contextlib.suppress(ConnectionError):  # The server may refuse before everything is sent.
        connection.request("POST", "/v1/hosts", chunks, {"Authorization": f"Bearer {control.token}"})
    assert connection.getresponse().status == 413
    connection.close()


def test_a_client_that_leaves_early_changes_nothing(unchanged: Control) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", unchanged.port, timeout=60)
    connection.putrequest("POST", "/v1/hosts")
    connection.putheader("Authorization", f"Bearer {unchanged.token}")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b'{"name": "host-a"}')
    connection.close()
    assert unchanged.get("/v1/hosts")["items"] == []


def test_the_store_away_is_503(control: Control, tmp_path: Path) -> None:
    control.get("/v1/hosts")
    control.service.store.close()
    for file in tmp_path.glob("forenotice.db*"):
        file.unlink()
    shutil.rmtree(tmp_path)
    for path in ("/v1/hosts", "/readyz"):
        said = control.ask("GET", path)
        assert said.status == 503, said.body
        assert said.headers["retry-after"] == "1"
        assert said.message
    with structlog.testing.capture_logs() as logs:
        for _ in range(6):
            unready = control.ask("GET", "/readyz", token=None)
    # After the first one.
    assert [(each["action"], each["times"]) for each in logs] == [("control.unready", 2), ("control.unready", 4)]
    assert unready.message == "The store cannot be reached just now; try again."
    assert control.ask("GET", "/healthz", token=None).status == 200
    metrics = control.ask("GET", "/metrics", token=None)
    assert metrics.status == 200
    assert b"forenotice_store_up 0.0" in metrics.body


def test_a_defect_of_ours_is_an_honest_500(control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    del control.service.store
    said = control.ask("GET", "/v1/hosts")
    assert (said.status, said.json["error"]["code"]) == (500, "error")
    assert "AttributeError" not in said.message
    logged = capsys.readouterr()
    assert "control.failed" in logged.out + logged.err
