"""Times are the viewer's, and UTC is at hand."""

from datetime import datetime
from zoneinfo import ZoneInfo

from playwright.sync_api import expect
from tests.acceptance.running import Server
from tests.portal.browser.chromium import ZONE, Browsing
from tests.portal.browser.visiting import visiting


def test_times_are_of_the_viewers_zone_with_utc_on_hover(browsing: Browsing, busy: Server) -> None:
    [event] = [each for each in busy.get("/v1/events")["items"] if each["type"] == "Terminate"]
    moment = datetime.fromisoformat(event["not_before"])
    page = visiting(browsing, busy)
    page.goto(f"/events/{event['id']}")
    shown = page.locator("#facts time").first
    expect(shown).to_contain_text(f"{moment.astimezone(ZoneInfo(ZONE)):%H:%M:%S}")
    expect(shown).to_have_attribute("title", f"{moment:%Y-%m-%d %H:%M:%S} UTC")
