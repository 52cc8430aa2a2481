"""A restart through the pages, from the announcement to its end, seen live on the start page."""

from pathlib import Path

from playwright.sync_api import Page, expect
from tests.acceptance.running import Server, serving
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.going_on import approve
from tests.portal.browser.visiting import restart, visiting

LISTEN = """() => {
  window.heard = [];
  for (const region of document.querySelectorAll("[role=status], [role=alert], [aria-live]")) {
    const note = () => window.heard.push(region.textContent.trim());
    new MutationObserver(note).observe(region, { childList: true, characterData: true, subtree: true });
  }
}"""


def test_the_start_page_follows_a_restart_to_its_end_without_being_loaded_again(
    browsing: Browsing, demo: Server
) -> None:
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
    ticks(page, f"#event-{event} time[data-countdown]")

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


def ticks(page: Page, selector: str) -> None:
    """It counts by itself."""
    page.wait_for_function("selector => window.before = document.querySelector(selector)?.textContent", arg=selector)
    page.wait_for_function("selector => document.querySelector(selector).textContent !== window.before", arg=selector)


def test_the_page_of_an_event_tells_its_whole_life_as_it_goes_on(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo)
    event = restart(page, "db")
    state = page.locator("#state")
    expect(page.get_by_role("status").first).to_contain_text("it is announced")
    expect(state).to_contain_text("It waits for approval by db")
    approve(demo, "db")
    expect(state).to_contain_text("It is happening now")
    expect(state).to_contain_text("It is over: done")
    expect(page.locator("#approvals")).to_contain_text("approved by its guest db")
    assert page.url == f"http://{demo.operators}/events/{event}"


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
