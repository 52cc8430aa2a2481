"""A newcomer, from `serve --demo` and the printed link to a restart that is done, by what the pages show alone."""

import re
from pathlib import Path

from playwright.sync_api import expect
from tests.acceptance.running import serving
from tests.portal.browser.chromium import Browsing


def test_a_newcomer_restarts_web_0_understands_why_it_waits_and_sees_it_done(
    browsing: Browsing, tmp_path: Path
) -> None:
    with serving(tmp_path, "--demo", "--speed", "4") as server:
        printed = re.search(r"^  (http://\S+)$", server.output, re.MULTILINE)
        assert printed is not None
        page = browsing.page(server.operators)
        page.goto(printed[1])
        expect(page.get_by_role("heading", level=1, name="Now")).to_be_visible()

        # What there is to do, even when nothing is going on.
        page.get_by_role("link", name="Restart a VM").first.click()
        page.get_by_role("radio", name="Restart").check()
        page.get_by_label("To whom", exact=True).fill("web-0")
        page.get_by_role("button", name="Show what comes of it").click()
        coming = page.get_by_role("region", name="Restart web-0")
        expect(coming).to_contain_text("What guests are told")
        expect(coming).to_contain_text("It waits for approval by web (web-0)")
        assert server.document()["Events"] == []
        coming.get_by_role("button", name="Restart web-0").click()

        # Nothing happens yet, and the page says why and what to do about it.
        state = page.locator("#state")
        expect(page.get_by_role("heading", level=1, name="Reboot of web-0")).to_be_visible()
        expect(state).to_contain_text("It waits for approval by web (web-0), until")
        [event] = server.document()["Events"]
        assert event["EventStatus"] == "Scheduled"
        page.get_by_role("link", name="Now").first.click()
        listed = page.locator(f"#event-{event['EventId']}")
        expect(listed).to_contain_text("It waits for approval by web (web-0), until")
        listed.get_by_role("button", name="Approve").click()

        expect(listed).to_contain_text("Started")
        expect(listed).to_have_count(0)
        expect(page.get_by_text("No event is live.")).to_be_visible()
        page.get_by_role("link", name="History").click()
        expect(page.get_by_role("main")).to_contain_text("web-0")
        assert server.document()["Events"] == []
        # It would ask on after the server's end, and be refused.
        page.close()
