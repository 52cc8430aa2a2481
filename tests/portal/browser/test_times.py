"""Times are the viewer's, and UTC is at hand."""

import re
from datetime import datetime
from zoneinfo import ZoneInfo

from playwright.sync_api import Locator, expect
from tests.portal.browser.chromium import ZONE, Browsing
from tests.portal.browser.populated import live_events
from tests.portal.browser.visiting import visiting
from tests.portal.running import Portal

COUNTED = re.compile(r"^(in )?\d+ (d|h|min|s)\b")


def says_both(shown: Locator, moment: datetime) -> None:
    expect(shown).to_contain_text(f"{moment.astimezone(ZoneInfo(ZONE)):%H:%M:%S}")
    expect(shown).to_have_attribute("title", f"{moment:%Y-%m-%d %H:%M:%S} UTC")


def test_times_are_of_the_viewers_zone_with_utc_on_hover(browsing: Browsing, busy: Portal) -> None:
    events = {str(event.type): event for event in live_events(busy)}
    page = visiting(browsing, busy)
    not_before = events["Terminate"].not_before
    page.goto(f"/events/{events['Terminate'].id}")
    says_both(page.locator("#facts time").first, not_before)

    page.goto("/")
    counting = page.locator(f"#event-{events['Terminate'].id} time[data-countdown]").first
    expect(counting).to_have_text(COUNTED)
    expect(counting).to_have_attribute("title", f"{not_before:%Y-%m-%d %H:%M:%S} UTC")
    [started] = [event for event in live_events(busy) if event.status == "Started"]
    since = page.locator(f"#event-{started.id} time:not([data-countdown])").first
    says_both(since, datetime.fromisoformat(since.get_attribute("datetime") or ""))

    page.goto("/history")
    for shown in page.locator("main li[id^=entry-] time:not([data-countdown])").all()[:3]:
        says_both(shown, datetime.fromisoformat(shown.get_attribute("datetime") or ""))
