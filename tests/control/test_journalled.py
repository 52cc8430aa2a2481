"""Every command that did something is in the history, with who, from where and why."""

from typing import Any
from urllib.parse import quote

from tests.control.running import Control
from tests.control.test_roles import EXPECTED

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


def test_all_of_them(fleet: Control) -> None:
    commands = Journalled(fleet)
    did = commands.did
    did("POST /v1/fleet", b"[hosts.host-x]\n")
    did("POST /v1/hosts", {"name": "host-y"})
    did("PATCH /v1/hosts/{name}", {"cordoned": True}, name="host-y")
    did("DELETE /v1/hosts/{name}", name="host-y")
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
