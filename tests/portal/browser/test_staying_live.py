"""A page stays up to date through small troubles, says so when it cannot, and takes no more than it needs."""

from playwright.sync_api import Route, expect
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.populated import schedule
from tests.portal.browser.visiting import visiting
from tests.portal.running import Portal

from forenotice.core.operations import Kind
from forenotice.service import fleet
from forenotice.service.calls import SYSTEM

HIDDEN = """
Object.defineProperty(document, "hidden", { configurable: true, get: () => !window.shown });
Object.defineProperty(document, "visibilityState", { get: () => window.shown ? "visible" : "hidden" });
"""
SHOW = "window.shown = true; document.dispatchEvent(new Event('visibilitychange'))"


def test_the_page_of_what_is_deleted_says_that_it_is_not_there(browsing: Browsing, portal: Portal) -> None:
    page = visiting(browsing, portal)
    page.goto("/vms/batch")
    expect(page.locator("#connection")).to_have_text("live")
    fleet.remove_vm(portal.service, SYSTEM, "batch")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such VM")
    # The look that found it gone.
    browsing.faults = [fault for fault in browsing.faults if fault != f"404 for {page.url}"]


def test_pages_that_nobody_looks_at_take_no_connections(browsing: Browsing, portal: Portal) -> None:
    context = visiting(browsing, portal).context
    context.add_init_script(HIDDEN)
    streams: list[str] = []
    context.on("request", lambda request: streams.append(request.url) if "/live?" in request.url else None)
    pages = [context.new_page() for _ in range(6)]
    for page in pages:
        page.goto("/")
        expect(page.locator("h1")).to_have_text("Now")
    assert streams == []
    # A seventh page has a connection: browsers have six for one server.
    pages[-1].goto("/fleet")
    pages[-1].evaluate(SHOW)
    expect(pages[-1].locator("#connection")).to_have_text("live")
    assert len(streams) == 1


def test_a_look_that_fails_once_is_made_good_soon(browsing: Browsing, portal: Portal) -> None:
    page = visiting(browsing, portal)
    page.goto("/")
    expect(page.locator("#connection")).to_have_text("live")
    failed: list[str] = []

    def fail(route: Route) -> None:
        failed.append(route.request.url)
        route.fulfill(status=503, body="")

    page.route(f"{portal.url}/", fail, times=1)
    event = schedule(portal, Kind.RESTART, "db").events[0].id
    expect(page.locator("#connection")).to_contain_text("cannot be reached")
    expect(page.locator(f"#event-{event}")).to_be_visible()
    expect(page.locator("#connection")).to_have_text("live")
    assert len(failed) == 1
    browsing.faults = [fault for fault in browsing.faults if fault != f"503 for {portal.url}/"]
