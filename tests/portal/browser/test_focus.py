"""Whoever goes by keyboard stays where they are while a page changes under them."""

from playwright.sync_api import Page, expect
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.populated import approve, schedule
from tests.portal.browser.visiting import visiting
from tests.portal.running import Portal

from forenotice.core.operations import Kind
from forenotice.service import maintenance
from forenotice.service.calls import SYSTEM


def announced(portal: Portal, name: str) -> str:
    """A restart; the id of its event."""
    return str(schedule(portal, Kind.RESTART, name).events[0].id)


def cancel(portal: Portal, event: str) -> None:
    maintenance.cancel_event(portal.service, SYSTEM, event)


def focus(page: Page, event: str) -> None:
    page.locator(f"#event-{event}").get_by_role("button", name="Approve").focus()
    page.evaluate("window.mine = document.activeElement; window.left = 0")
    # What is moved loses the focus on the way.
    page.evaluate("window.mine.addEventListener('blur', () => { window.left += 1; })")


def stays(page: Page) -> bool:
    return bool(page.evaluate("document.activeElement === window.mine && window.left === 0"))


def test_the_focus_stays_when_what_stood_before_it_goes(browsing: Browsing, portal: Portal) -> None:
    earlier, mine, later = (announced(portal, name) for name in ("web-0", "db", "batch"))
    page = visiting(browsing, portal)
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("live")
    focus(page, mine)
    for gone in (earlier, later):
        cancel(portal, gone)
        expect(page.locator(f"#event-{gone}")).to_have_count(0)
        assert stays(page)
    another = announced(portal, "web-1")
    expect(page.locator(f"#event-{another}")).to_be_visible()
    assert stays(page)


def test_when_what_has_the_focus_goes_one_is_near_it(browsing: Browsing, portal: Portal) -> None:
    mine, other = announced(portal, "db"), announced(portal, "web-0")
    page = visiting(browsing, portal)
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("live")
    focus(page, mine)
    cancel(portal, mine)
    expect(page.locator(f"#event-{mine}")).to_have_count(0)
    expect(page.get_by_role("heading", name="What is live")).to_be_focused()
    # The next stop is below it, not at the top of the page.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('li')?.id") == f"event-{other}"


def test_when_the_button_alone_goes_one_is_near_it_too(browsing: Browsing, portal: Portal) -> None:
    operation = schedule(portal, Kind.RESTART, "db")
    [event] = operation.events
    page = visiting(browsing, portal)
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("live")
    focus(page, event.id)
    approve(portal, operation)
    expect(page.locator(f"#event-{event.id}")).to_contain_text("Approved by")
    expect(page.get_by_role("heading", name="What is live")).to_be_focused()
