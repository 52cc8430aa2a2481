"""With scripts off everything can be read and done; only nothing moves by itself."""

import re

from playwright.sync_api import Page, expect
from tests.acceptance.running import Server, until
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.test_looks import pages
from tests.portal.browser.visiting import restart, visiting
from tests.portal.running import Portal

UTC = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
MOMENT = re.compile(r"<time(?![^>]*data-countdown)[^>]*>([^<]*)</time>")


def test_a_restart_is_made_and_approved(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo, java_script_enabled=False)
    event = restart(page, "web-1")
    expect(page.locator("#state")).to_contain_text("It waits for approval by web (web-1)")
    says_utc_alone(page)
    for path in ("/", "/fleet", "/history"):
        page.goto(path)
        assert "web-1" in page.get_by_role("main").inner_text(), path
        says_utc_alone(page)

    page.goto("/")
    page.get_by_role("button", name="Approve Reboot of web-1").click()
    expect(page.get_by_role("status").first).to_contain_text("Approved: Reboot of web-1")
    until(lambda: page.goto(f"/events/{event}") and "It is over: done" in page.locator("#state").inner_text())


def test_every_page_can_be_read_as_it_comes(busy: Portal) -> None:
    visitor = busy.visitor()
    for path in (path for room in pages(busy).values() for path in room.values()):
        answer = visitor.get(path)
        assert answer.html.count("<h1") == 1, path
        assert [text for text in MOMENT.findall(answer.html) if text and not UTC.fullmatch(text)] == [], path


def says_utc_alone(page: Page) -> None:
    times = page.locator("time:not([data-countdown])").all_inner_texts()
    assert [text for text in times if text and not UTC.fullmatch(text)] == []
