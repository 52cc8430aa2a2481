"""A demo fleet in which much is going on: past, present and to come."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.running import Server, serving, until

FAST, SLOW = "500", "0.1"
"""What is past is over soon; what is going on stays as it is while pages are looked at: a restart takes 150 seconds."""
ADDRESSES = {"web-0": "127.1.0.10", "db": "127.1.0.30"}


@contextmanager
def populated(home: Path) -> Iterator[Server]:
    with serving(home, "--demo", "--speed", FAST, "--allow-private-targets") as server:
        _past(server)
        server.terminate()
        server.flags[server.flags.index(FAST)] = SLOW
        server.start()
        _tokens_and_subscriptions(server)
        _present(server)
        yield server


def approve(server: Server, vm: str) -> str:
    """As the guest itself, whatever it is told of itself; gives the event's id."""
    source = ADDRESSES[vm]
    found = [
        event["EventId"]
        for event in server.document(source)["Events"]
        if vm in event["Resources"] and event["EventStatus"] == "Scheduled"
    ]
    assert found, f"{vm} is told of nothing"
    said = server.approve(found[0], source=source)
    assert said.status == 200, said
    return str(found[0])


def live_events(server: Server) -> list[str]:
    """Their ids."""
    return [event["id"] for event in server.get("/v1/events")["items"] if event["ended_at"] is None]


def _past(server: Server) -> None:
    server.schedule("restart", "db", reason="a new kernel")
    server.schedule("host-update", "host-b")
    cancelled = server.schedule("redeploy", "web-2", reason="chosen by mistake", notice_minutes=600)
    server.post(f"/v1/operations/{cancelled['id']}/cancel", {})
    approve(server, "db")
    until(lambda: not live_events(server))


def _tokens_and_subscriptions(server: Server) -> None:
    server.post("/v1/tokens", {"name": "shop", "role": "tenant", "scopes": "web", "expires_in": "90d"})
    server.post("/v1/tokens", {"name": "dashboards", "role": "viewer"})
    server.post(
        "/v1/subscriptions", {"name": "pager", "url": "http://127.0.0.1:9/hook", "types": ["notbefore.event.*"]}
    )


def _present(server: Server) -> None:
    """Events of each type, and a rollout; the restart of db has been started."""
    server.post("/v1/rollouts", {"kind": "update", "hosts": "host-a,host-b,host-c", "reason": "firmware 4.2"})
    server.schedule("restart", "db")
    approve(server, "db")
    server.schedule("restart", "web-0", reason="a new kernel")
    server.schedule("redeploy", "web-2")
    server.schedule("deletion", "pool_4")
    server.schedule("eviction", "batch", notice_minutes=10)
    server.schedule("degraded-hardware", "host-c", notice_minutes=120)
    until(lambda: any(event["status"] == "Started" for event in server.get("/v1/events")["items"]))
    until(lambda: server.get("/v1/rollouts")["items"][0]["progress"]["under_way"])
