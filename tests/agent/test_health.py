"""What probes and load balancers are told."""

import json

import pytest
from tests.acceptance.running import ask

from forenotice.agent.listener import Listener, Request
from forenotice.agent.status import Health, routes

FINE = Health(polling_ok=True, polling_why="polled 1 s ago", ready=True, ready_why="nothing is going on")
PREPARING = Health(polling_ok=True, polling_why="polled 1 s ago", ready=False, ready_why="preparing for a Reboot")
DEAF = Health(polling_ok=False, polling_why="connection refused", ready=True, ready_why="nothing is going on")


@pytest.mark.parametrize(
    ("standing", "path", "status", "why"),
    [
        (FINE, "/healthz", 200, "polled 1 s ago"),
        (FINE, "/readyz", 200, "nothing is going on"),
        (PREPARING, "/healthz", 200, "polled 1 s ago"),
        (PREPARING, "/readyz", 503, "preparing for a Reboot"),
        (DEAF, "/healthz", 503, "connection refused"),
        (DEAF, "/readyz", 200, "nothing is going on"),
    ],
)
def test_each_question_has_its_own_answer_with_a_reason(standing: Health, path: str, status: int, why: str) -> None:
    reply = routes(lambda: standing)["GET", path](Request(method="GET", path=path))
    assert reply.status == status
    assert json.loads(reply.body) == {"ok": status == 200, "why": why}


def test_a_load_balancer_sees_it_change() -> None:
    now = [FINE]
    listener = Listener("127.0.0.1", 0, routes(lambda: now[0]))
    listener.start()
    place = "{}:{}".format(*listener.address)
    try:
        assert ask(place, "HEAD", "/readyz").status == 200
        now[0] = PREPARING
        assert ask(place, "HEAD", "/readyz").status == 503
        assert ask(place, "GET", "/readyz").json["why"] == "preparing for a Reboot"
        now[0] = FINE
        assert ask(place, "GET", "/readyz").status == 200
    finally:
        listener.close()
