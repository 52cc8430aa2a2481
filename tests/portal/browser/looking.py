"""What can be measured of any page: findings of axe-core, its width, what was sent for it."""

from importlib import resources
from typing import Any

from playwright.sync_api import Page

AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
GRAVE = ("serious", "critical")


def findings(page: Page) -> list[str]:
    """Those of axe-core that keep somebody out."""
    page.evaluate(AXE)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{violation['impact']} {violation['id']}: {node['html']} {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in GRAVE
        for node in violation["nodes"]
    ]


def width(page: Page) -> int:
    """How wide it is, whatever of it is in view."""
    return int(page.evaluate("document.documentElement.scrollWidth"))


class Transfer:
    """Bytes over the network for what is opened next, as if nobody had been here before."""

    def __init__(self, page: Page) -> None:
        self.received = 0
        self._devtools = page.context.new_cdp_session(page)
        self._devtools.on("Network.loadingFinished", self._finished)
        self._devtools.send("Network.enable")
        self._devtools.send("Network.setCacheDisabled", {"cacheDisabled": True})

    def _finished(self, told: dict[str, Any]) -> None:
        self.received += int(told["encodedDataLength"])
