"""Every page, with much going on: for everybody, narrow or wide, light or dark, and small; and pictures of each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect
from tests.acceptance.running import Server
from tests.control.running import DEADLINE
from tests.portal import crowd
from tests.portal.browser.chromium import WIDE, Browsing
from tests.portal.browser.populated import hear_edges, live_events
from tests.portal.browser.visiting import visiting
from tests.portal.running import Portal, running

from forenotice.core.roles import EVERYTHING
from forenotice.service import queries, rollouts, tokens
from forenotice.service.overview import PAGE

AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
GRAVE = ("serious", "critical")
PICTURES = Path(__file__).parents[3] / "screenshots"
NARROW: ViewportSize = {"width": 320, "height": 640}
MOST = 100 * 1024
"""Bytes of any page, with all that it loads."""
AGAIN = ("vm-alone", "act-update", "event-ended", "rollout-cancel")
"""Of a page that was looked at closely, another picture."""


def pages(portal: Portal) -> Mapping[str, Mapping[str, str]]:
    """By room, each under the name of its pictures."""
    hear_edges(portal)
    events = {str(event.type): event for event in live_events(portal)}
    several = next(event for event in live_events(portal) if event.operation == events["Freeze"].operation)
    [ended, *_] = queries.events(portal.service, live=False).items
    [rollout] = rollouts.page(portal.service, live=True, access=EVERYTHING).items
    [token] = [token for token in tokens.list_all(portal.service).items if token.name == "shop"]
    return {
        "events": {
            "now": "/",
            "event": f"/events/{events['Redeploy'].id}",
            "event-ended": f"/events/{ended.id}",
            "cancel": f"/events/{events['Redeploy'].id}/cancel",
            "operation": f"/operations/{several.operation}",
        },
        "fleet": {
            "fleet": "/fleet",
            "fleet-by-group": "/fleet?by=group",
            "vm": "/vms/web-0",
            "vm-alone": "/vms/db",
            "edges": "/edges",
            "host": "/hosts/host-a",
            "host-edge-lost": "/hosts/host-d",
            "group": "/groups/web",
        },
        "changes": {
            "act": "/act",
            "act-restart": "/act?kind=restart&name=web-1",
            "act-update": "/act?kind=host-update&name=host-a",
            "history": "/history",
        },
        "rollouts": {
            "rollouts": "/rollouts",
            "rollout-new": "/rollouts/new",
            "plan": "/rollouts/plan?kind=update&hosts=host-c,host-d",
            "rollout": f"/rollouts/{rollout.id}",
            "rollout-pause": f"/rollouts/{rollout.id}/pause",
            "rollout-cancel": f"/rollouts/{rollout.id}/cancel",
        },
        "others": {
            "tokens": "/tokens",
            "token-revoke": f"/tokens/{token.id}/revoke",
            "subscriptions": "/subscriptions",
            "subscription": "/subscriptions/pager",
            "subscription-remove": "/subscriptions/pager/remove",
        },
    }


# A test for each room, not for each page, which costs more around it than in it.
@pytest.mark.parametrize("room", ["events", "fleet", "changes", "rollouts", "others"])
def test_every_page_suits_everybody(browsing: Browsing, busy: Portal, subtests: pytest.Subtests, room: str) -> None:
    page = visiting(browsing, busy)
    for name, path in pages(busy)[room].items():
        with subtests.test(name):
            look(page, name, path)


def test_what_is_shown_once_suits_everybody(browsing: Browsing, busy: Portal) -> None:
    page = visiting(browsing, busy)
    page.goto("/tokens")
    page.get_by_label("Name").fill("deployments")
    page.get_by_role("button", name="Make the token").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("The token deployments is made")
    examine(page, "token-made")
    page.set_viewport_size(WIDE)
    page.goto("/subscriptions")
    page.get_by_label("Name").fill("chat")
    page.get_by_label("Receiver").fill("https://hooks.example.com/chat")
    page.get_by_role("button", name="Add the subscription").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("The subscription chat is made")
    examine(page, "subscription-made")


def test_pages_with_nothing_on_them_suit_everybody(browsing: Browsing, tmp_path: Path) -> None:
    with running(tmp_path, fleet=False) as portal:
        page = visiting(browsing, portal)
        for name, path in {
            "now-empty": "/",
            "fleet-empty": "/fleet",
            "rollouts-empty": "/rollouts",
            "history-empty": "/history?action=event.scheduled",
            "subscriptions-empty": "/subscriptions",
        }.items():
            look(page, name, path)
        look(page, "vm-missing", "/vms/nobody", status=404)


def test_signing_in_suits_everybody(browsing: Browsing, demo: Server) -> None:
    page = browsing.page(demo.operators)
    look(page, "sign-in", "/sign-in")
    look(page, "sign-in-refused", "/sign-in?once=long-ago", status=401)
    look(page, "missing", "/nowhere", status=404)


def test_five_hundred_events_can_be_read_as_five_can(browsing: Browsing, tmp_path: Path) -> None:
    with running(tmp_path, fleet=False) as portal:
        crowd.announce(portal.service, crowd.settle(portal.service, 50, 10))
        page = visiting(browsing, portal)
        look(page, "now-500", "/")
        expect(page.locator("#headline")).to_contain_text("500 events")
        expect(page.locator("#list .events > li")).to_have_count(PAGE)
        expect(page.locator("#timeline .lane")).to_have_count(17)
        expect(page.locator("#timeline")).to_contain_text("and 34 more groups")
        assert page.locator("svg .bar").count() <= 200


def look(page: Page, name: str, path: str, status: int = 200) -> None:
    page.set_viewport_size(WIDE)
    with counted(page) as received:
        answer = page.goto(path)
    assert answer is not None
    assert answer.status == status, page.inner_text("body")
    named = page.eval_on_selector_all("link[rel=stylesheet], script[src]", "all => all.map((it) => it.href || it.src)")
    assert {answer.url, *named} <= set(received)
    assert len(received) >= (4 if len(named) > 1 else 2), f"the page, its stylesheet and its scripts: {received}"
    # Without a window nobody needs the icon, but people's browsers fetch it.
    icon = page.request.get(page.locator("link[rel=icon]").get_attribute("href") or "")
    assert sum(received.values()) + len(icon.body()) <= MOST, received
    examine(page, name)


def examine(page: Page, name: str) -> None:
    """The page that is open."""
    expect(page.locator("h1")).to_have_count(1)
    found = [] if name in AGAIN else findings(page)
    _picture(page, name, "1280-light")
    page.emulate_media(color_scheme="dark")
    _picture(page, name, "1280-dark")
    page.set_viewport_size(NARROW)
    assert width(page) <= NARROW["width"]
    found += findings(page, "color-contrast", "scrollable-region-focusable")
    _picture(page, name, "320-dark")
    page.emulate_media(color_scheme="light")
    _picture(page, name, "320-light")
    assert found == []


def _picture(page: Page, name: str, how: str) -> None:
    page.screenshot(path=PICTURES / f"{name}-{how}.png", full_page=True, animations="disabled")


# What can be measured of any page


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
