"""Every page, with much going on: for everybody, narrow or wide, light or dark, and small; and pictures of each."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Page, ViewportSize, expect
from tests.acceptance.running import Server
from tests.portal.browser import looking
from tests.portal.browser.chromium import WIDE, Browsing
from tests.portal.browser.populated import live_events
from tests.portal.browser.visiting import visiting

PICTURES = Path(__file__).parents[3] / "screenshots"
NARROW: ViewportSize = {"width": 320, "height": 640}
MOST = 100 * 1024
"""Bytes of any page, with all that it loads."""


def pages(server: Server) -> Mapping[str, str]:
    """Each under the name of its pictures."""
    live = live_events(server)
    found = {
        "now": "/",
        "fleet": "/fleet",
        "fleet-by-group": "/fleet?by=group",
        "vm": "/vms/web-0",
        "vm-alone": "/vms/db",
        "host": "/hosts/host-a",
        "group": "/groups/web",
        "act": "/act",
        "act-restart": "/act?kind=restart&name=web-1",
        "act-update": "/act?kind=host-update&name=host-a",
        "event": f"/events/{live[-1]}",
        "cancel": f"/events/{live[-1]}/cancel",
        "rollouts": "/rollouts",
        "plan": "/rollouts/plan?kind=update&hosts=host-*",
        "history": "/history",
        "tokens": "/tokens",
        "subscriptions": "/subscriptions",
    }
    if rollouts := server.get("/v1/rollouts")["items"]:
        found["rollout"] = f"/rollouts/{rollouts[0]['id']}"
    if subscriptions := server.get("/v1/subscriptions")["items"]:
        found["subscription"] = f"/subscriptions/{subscriptions[0]['name']}"
    return found


# One test, not one for each page: it takes longer to make the fleet than to look at a page.
def test_every_page_suits_everybody(browsing: Browsing, busy: Server, subtests: pytest.Subtests) -> None:
    page = visiting(browsing, busy)
    for name, path in pages(busy).items():
        with subtests.test(name):
            look(page, name, path)


def test_pages_with_nothing_on_them_suit_everybody(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo)
    for name, path in {
        "now-empty": "/",
        "rollouts-empty": "/rollouts",
        "subscriptions-empty": "/subscriptions",
    }.items():
        look(page, name, path)


def test_signing_in_suits_everybody(browsing: Browsing, demo: Server) -> None:
    page = browsing.page(demo.operators)
    look(page, "sign-in", "/sign-in")
    look(page, "sign-in-refused", "/sign-in?once=long-ago", status=401)
    look(page, "missing", "/nowhere", status=404)


def look(page: Page, name: str, path: str, status: int = 200) -> None:
    page.set_viewport_size(WIDE)
    page.emulate_media(color_scheme="light")
    with looking.counted(page) as received:
        answer = page.goto(path)
    assert answer is not None
    assert answer.status == status, page.inner_text("body")
    assert len(received) >= 2, "the page and its stylesheet"
    assert sum(received) <= MOST
    expect(page.locator("h1")).to_have_count(1)
    found = looking.findings(page)
    _picture(page, name, "1280-light")
    page.emulate_media(color_scheme="dark")
    _picture(page, name, "1280-dark")
    page.set_viewport_size(NARROW)
    assert looking.width(page) <= NARROW["width"]
    found += looking.findings(page, "color-contrast", "scrollable-region-focusable")
    _picture(page, name, "320-dark")
    page.emulate_media(color_scheme="light")
    _picture(page, name, "320-light")
    assert found == []


def _picture(page: Page, name: str, how: str) -> None:
    page.screenshot(path=PICTURES / f"{name}-{how}.png", full_page=True, animations="disabled")
