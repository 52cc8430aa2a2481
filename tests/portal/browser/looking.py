"""What can be measured of any page: findings of axe-core, its width, what was sent for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

from playwright.sync_api import Page

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
def counted(page: Page) -> Iterator[list[int]]:
    """The bytes that come over the network for each thing, as if nobody had been here before."""
    received: list[int] = []
    devtools = page.context.new_cdp_session(page)
    devtools.on("Network.loadingFinished", lambda told: received.append(int(told["encodedDataLength"])))
    devtools.send("Network.enable")
    devtools.send("Network.setCacheDisabled", {"cacheDisabled": True})
    yield received
    devtools.detach()
