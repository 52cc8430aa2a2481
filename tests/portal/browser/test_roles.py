"""Everybody sees what is theirs, and is offered what they may do."""

import re

from playwright.sync_api import Page, expect
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.populated import live_events
from tests.portal.browser.visiting import visiting
from tests.portal.running import Portal

from forenotice.core.roles import EVERYTHING
from forenotice.service import rollouts

OTHERS = re.compile(r"pool|\bdb\b|\bbatch\b")
"""What no page of web's tenant may have in it, shown or not."""
EXAMPLE = re.compile(r'placeholder="[^"]*"')


def test_a_tenant_sees_its_own_groups_alone(browsing: Browsing, busy: Portal) -> None:
    token = busy.token_of("tenant", "web", "of-web")
    others = [event.id for event in live_events(busy) if event.scope != "group:web"]
    page = visiting(browsing, busy, token)
    for path in ("/", "/fleet", "/act", "/history", "/vms/web-0", "/groups/web"):
        says(page, path, 200)
        there = page.content()
        assert "web-0" in there, path
        assert OTHERS.findall(EXAMPLE.sub("", there)) == [], path
    page.goto("/")
    expect(page.get_by_role("link", name="Reboot of web-0").first).to_be_visible()
    assert set(page.get_by_role("navigation", name="Pages").get_by_role("link").all_inner_texts()) == {
        "Now",
        "Fleet",
        "Act",
        "History",
    }
    for path in ("/vms/db", "/groups/pool", f"/events/{others[0]}", f"/events/{others[0]}/cancel"):
        says(page, path, 404)
    for path in ("/hosts/host-a", "/rollouts", "/rollouts/new", "/tokens", "/subscriptions"):
        says(page, path, 403)
    # What a tenant may not do is not offered, and refused whoever asks for it.
    page.goto("/act")
    assert page.get_by_role("radio").count() == 2
    page.goto("/act?kind=restart&name=db")
    expect(page.get_by_role("alert")).to_contain_text("Refused")
    expect(page.get_by_role("button", name="Restart db")).to_have_count(0)


def test_a_viewer_is_offered_nothing_to_do(browsing: Browsing, busy: Portal) -> None:
    token = busy.token_of("viewer", name="onlooker")
    event = next(each.id for each in live_events(busy) if each.status == "Scheduled")
    [rollout] = [each.id for each in rollouts.page(busy.service, live=True, access=EVERYTHING).items]
    page = visiting(browsing, busy, token)
    for path in ("/", f"/events/{event}", "/vms/web-0", "/hosts/host-a", "/groups/web", f"/rollouts/{rollout}"):
        says(page, path, 200)
        offered = page.locator("main form[method=post]").all_inner_texts()
        assert offered == [], path
    says(page, "/act", 403)
    says(page, "/tokens", 403)


def says(page: Page, path: str, status: int) -> None:
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == status, (path, page.get_by_role("main").inner_text())
