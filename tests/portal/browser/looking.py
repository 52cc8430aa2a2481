"""What can be measured of any page: findings of axe-core, its width, what was sent for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from time import monotonic
from typing import Any

from playwright.sync_api import Page
from tests.control.running import DEADLINE

AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
GRAVE = ("serious", "critical")


def findings(page: Page, *rules: str) -> list[str]:
    """Of all rules, or of those that are named: whatever keeps somebody out."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = rules
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{violation['impact']} {violation['id']}: {node['html']} {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in GRAVE
        for node in violation["nodes"]
    ]


def width(page: Page) -> int:
    """How wide it is, whatever of it is in view."""
    return int(page.evaluate("document.documentElement.scrollWidth"))


@contextmanager
def counted(page: Page) -> Iterator[dict[str, int]]:
    """The bytes that come over the network for each thing, by its address, as if nobody had been here before."""
    received: dict[str, int] = {}
    asked: dict[str, str] = {}

    def ask(told: dict[str, Any]) -> None:
        # A stream never ends, and says nothing yet.
        if told.get("type") != "EventSource":
            asked[told["requestId"]] = told["request"]["url"]

    def end(told: dict[str, Any]) -> None:
        if told["requestId"] in asked:
            url = asked.pop(told["requestId"])
            received[url] = received.get(url, 0) + int(told.get("encodedDataLength", 0))

    devtools = page.context.new_cdp_session(page)
    devtools.on("Network.requestWillBeSent", ask)
    devtools.on("Network.loadingFinished", end)
    devtools.on("Network.loadingFailed", end)
    devtools.send("Network.enable")
    devtools.send("Network.setCacheDisabled", {"cacheDisabled": True})
    yield received
    idle_at = monotonic() + DEADLINE
    while asked:
        assert monotonic() < idle_at, f"nothing came of {asked}"
        page.wait_for_timeout(20)
    devtools.detach()
