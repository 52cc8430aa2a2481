"""Whether the agent hears of events, and whether this VM should be given work: for probes and load balancers."""

from collections.abc import Callable
from dataclasses import dataclass

from forenotice.agent.listener import Reply, Request, Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    polling_ok: bool
    polling_why: str
    ready: bool
    """Not from the start of preparing until recovered."""
    ready_why: str


def routes(standing: Callable[[], Standing]) -> Routes:
    """Asked anew for each request, from any thread."""

    def healthz(_: Request) -> Reply:
        now = standing()
        return _said(now.polling_ok, now.polling_why)

    def readyz(_: Request) -> Reply:
        now = standing()
        return _said(now.ready, now.ready_why)

    return {("GET", "/healthz"): healthz, ("GET", "/readyz"): readyz}


def _said(ok: bool, why: str) -> Reply:
    return Reply.json({"ok": ok, "why": why}, 200 if ok else 503)
