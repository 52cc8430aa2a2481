"""Pages follow what happens without being loaded again, and leave alone what somebody does there meanwhile."""

import re
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from playwright.sync_api import Locator, Page, Route, expect
from tests.acceptance.running import Server, serving
from tests.portal.browser.chromium import ZONE, Browsing
from tests.portal.browser.populated import approve as approve_all
from tests.portal.browser.populated import live_events, schedule
from tests.portal.browser.visiting import approve, restart, visiting
from tests.portal.running import Portal

from forenotice.core.operations import Kind
from forenotice.service import fleet, maintenance
from forenotice.service.calls import SYSTEM

LISTEN = """() => {
  window.heard = [];
  for (const region of document.querySelectorAll("[role=status], [role=alert], [aria-live]")) {
    const note = () => window.heard.push(region.textContent.trim());
    new MutationObserver(note).observe(region, { childList: true, characterData: true, subtree: true });
  }
}"""
HIDDEN = """
Object.defineProperty(document, "hidden", { configurable: true, get: () => !window.shown });
Object.defineProperty(document, "visibilityState", { get: () => window.shown ? "visible" : "hidden" });
"""
SHOW = "window.shown = true; document.dispatchEvent(new Event('visibilitychange'))"
POLLED = re.compile(r"Last polled\s*(now|\d+ s ago|\d\d:\d\d:\d\d)")


def opened(browsing: Browsing, portal: Portal, path: str = "/") -> Page:
    """A page that is up to date, and stays so."""
    page = visiting(browsing, portal)
    page.goto(path)
    expect(page.locator("#connection")).to_have_text("live")
    return page


def test_the_start_page_follows_a_restart_to_its_end(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo)
    page.goto("/")
    expect(page.get_by_text("No event is live.")).to_be_visible()
    page.evaluate(LISTEN)
    loaded: list[str] = []
    page.on("framenavigated", lambda frame: loaded.append(frame.url))

    event = restart(page.context.new_page(), "db")
    bar, card = page.locator(f"#bar-{event}"), page.locator(f"#event-{event}")
    expect(bar).to_have_attribute("data-status", "Scheduled")
    expect(card).to_contain_text("Nobody has approved")
    expect(card).to_contain_text("It waits for approval by db")
    # It counts by itself.
    countdown = f"#event-{event} time[data-countdown]"
    page.wait_for_function("selector => window.before = document.querySelector(selector)?.textContent", arg=countdown)
    page.wait_for_function("selector => document.querySelector(selector).textContent !== window.before", arg=countdown)

    assert approve(demo, "db") == event
    expect(bar).to_have_attribute("data-status", "Started")
    expect(card).to_contain_text("Approved by db")
    expect(card).to_have_count(0)
    expect(page.get_by_text("No event is live.")).to_be_visible()
    expect(bar).to_have_attribute("data-status", "Completed")
    assert loaded == []
    # A screen reader says how it stands, once and after a pause, and no countdown.
    page.wait_for_function("() => window.heard.at(-1) === 'Nothing is about to happen.'")
    heard = page.evaluate("window.heard")
    assert heard[0] == "1 event is Scheduled."
    assert heard[1:] in (["Nothing is about to happen."], ["1 event is Started.", "Nothing is about to happen."])


def test_a_page_says_when_it_is_not_live_and_catches_up_afterwards(browsing: Browsing, tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as server:
        page = visiting(browsing, server)
        page.goto("/")
        connection = page.locator("#connection")
        expect(connection).to_have_text("live")
        server.kill()
        expect(connection).to_contain_text("not live")
        server.start()
        server.schedule("restart", "db")
        expect(page.get_by_role("link", name="Reboot of db").first).to_be_visible()
        expect(connection).to_have_text("live")


def test_the_page_of_what_is_deleted_says_that_it_is_not_there(browsing: Browsing, portal: Portal) -> None:
    page = opened(browsing, portal, "/vms/batch")
    fleet.remove_vm(portal.service, SYSTEM, "batch")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such VM")
    # The look that found it gone.
    browsing.faults = [fault for fault in browsing.faults if fault != f"404 for {page.url}"]


def test_hidden_pages_take_no_connections(browsing: Browsing, portal: Portal) -> None:
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


def test_a_look_that_fails_once_is_repeated_soon(browsing: Browsing, portal: Portal) -> None:
    page = opened(browsing, portal)
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


# The focus


def focus(page: Page, event: str) -> None:
    page.locator(f"#event-{event}").get_by_role("button", name="Approve").focus()
    page.evaluate("window.mine = document.activeElement; window.left = 0")
    # What is moved loses the focus on the way.
    page.evaluate("window.mine.addEventListener('blur', () => { window.left += 1; })")


def test_the_focus_stays_while_others_come_and_go_and_is_near_when_its_own_goes(
    browsing: Browsing, portal: Portal
) -> None:
    def announced(name: str) -> str:
        return str(schedule(portal, Kind.RESTART, name).events[0].id)

    earlier, mine, later = (announced(name) for name in ("web-0", "db", "batch"))
    page = opened(browsing, portal)
    focus(page, mine)
    stays = "document.activeElement === window.mine && window.left === 0"
    for gone in (earlier, later):
        maintenance.cancel_event(portal.service, SYSTEM, gone)
        expect(page.locator(f"#event-{gone}")).to_have_count(0)
        assert page.evaluate(stays)
    another = announced("web-1")
    expect(page.locator(f"#event-{another}")).to_be_visible()
    assert page.evaluate(stays)
    maintenance.cancel_event(portal.service, SYSTEM, mine)
    expect(page.locator(f"#event-{mine}")).to_have_count(0)
    heading = page.get_by_role("heading", name="What is live")
    expect(heading).to_be_focused()
    # The next stop is below it, not at the top of the page.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('li')?.id") == f"event-{another}"
    # The same when the button alone goes.
    operation = schedule(portal, Kind.RESTART, "batch")
    [event] = operation.events
    expect(page.locator(f"#event-{event.id}")).to_be_visible()
    focus(page, event.id)
    approve_all(portal, operation)
    expect(page.locator(f"#event-{event.id}")).to_contain_text("Approved by")
    expect(heading).to_be_focused()


# The fleet


def test_the_grid_and_a_vm_change_and_what_is_typed_stays(browsing: Browsing, demo: Server) -> None:
    grid = visiting(browsing, demo)
    page = grid.context.new_page()
    grid.goto("/fleet")
    grid.evaluate("window.stays = true")
    expect(grid.locator("#vm-db .vm-fine")).to_have_text("✓ db, fine")
    page.goto("/vms/db")
    page.get_by_text("Change the policy").first.click()
    page.get_by_label("Users' operations at once, at most").fill("7")
    page.get_by_label("Reason").fill("too many restarts")
    restarted = demo.schedule("restart", "db")
    expect(grid.locator("#vm-db .vm-scheduled")).to_have_text("◷ db, scheduled")
    expect(page.locator("#state")).to_contain_text("scheduled")
    expect(page.locator("#document-text")).to_contain_text(restarted["events"][0]["id"].upper())
    expect(page.get_by_label("Reason")).to_have_value("too many restarts")
    page.get_by_role("button", name="Change the policy").click()
    expect(page.get_by_role("status")).to_contain_text("The policy of VM db is changed.")
    expect(page.locator("#policy-facts")).to_contain_text("at most 7 at once")
    expect(page.locator("#lately")).to_contain_text("too many restarts")
    demo.post(f"/v1/operations/{restarted['id']}/cancel", {})
    expect(grid.locator("#vm-db .vm-fine")).to_be_visible()
    assert grid.evaluate("window.stays")
    assert demo.control("PATCH", "/v1/vms/db/policy", {"max_user_operations": None}).status == 200


def test_a_poll_is_shown_on_the_page_of_its_vm(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo)
    facts = page.get_by_role("main")
    page.goto("/vms/pool_3")
    expect(facts).to_contain_text("nobody of its group has polled")
    demo.document("127.1.0.23")
    page.goto("/vms/pool_3")
    expect(facts).to_contain_text(POLLED)
    page.goto("/vms/batch")
    expect(facts).not_to_contain_text(POLLED)


# Times


def shows_both(shown: Locator, moment: datetime | None = None) -> None:
    """The time in the viewer's zone, and UTC on hover."""
    moment = moment or datetime.fromisoformat(shown.get_attribute("datetime") or "")
    expect(shown).to_contain_text(f"{moment.astimezone(ZoneInfo(ZONE)):%H:%M:%S}")
    expect(shown).to_have_attribute("title", f"{moment:%Y-%m-%d %H:%M:%S} UTC")


def test_times_are_of_the_viewers_zone_with_utc_on_hover(browsing: Browsing, busy: Portal) -> None:
    [terminate] = [event for event in live_events(busy) if event.type == "Terminate"]
    [started] = [event for event in live_events(busy) if event.status == "Started"]
    page = visiting(browsing, busy)
    page.goto(f"/events/{terminate.id}")
    shows_both(page.locator("#facts time").first, terminate.not_before)
    page.goto("/")
    counting = page.locator(f"#event-{terminate.id} time[data-countdown]").first
    expect(counting).to_have_text(re.compile(r"^(in )?\d+ (d|h|min|s)\b"))
    expect(counting).to_have_attribute("title", f"{terminate.not_before:%Y-%m-%d %H:%M:%S} UTC")
    shows_both(page.locator(f"#event-{started.id} time:not([data-countdown])").first)
    page.goto("/history")
    for shown in page.locator("main li[id^=entry-] time:not([data-countdown])").all()[:3]:
        shows_both(shown)
