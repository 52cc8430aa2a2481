"""Who gets in, and out again."""

import re

from playwright.sync_api import Page, expect
from tests.acceptance.running import Server
from tests.portal.browser.chromium import Browsing

NOW = re.compile(r"^http://[\d.:]+/$")
SIGN_IN = re.compile(r"/sign-in")


def give(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_a_token_leads_to_the_page_that_was_asked_for_and_a_wrong_one_nowhere(browsing: Browsing, demo: Server) -> None:
    page = browsing.page(demo.operators)
    page.goto("/?span=6h")
    expect(page).to_have_url(SIGN_IN)
    expect(page.get_by_label("Token")).to_be_focused()
    give(page, "fn_wrong")
    expect(page.get_by_role("alert")).to_contain_text("not a valid token")
    page.goto("/")
    expect(page).to_have_url(SIGN_IN)
    page.goto("/?span=6h")
    give(page, demo.token)
    expect(page).to_have_url(f"http://{demo.operators}/?span=6h")


def test_signing_out_is_for_good(browsing: Browsing, demo: Server) -> None:
    page = browsing.page(demo.operators)
    page.goto("/")
    give(page, demo.token)
    expect(page).to_have_url(NOW)
    cookies = page.context.cookies()
    assert [(cookie["httpOnly"], cookie["sameSite"]) for cookie in cookies] == [(True, "Strict")]
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(SIGN_IN)
    # Somebody has kept the cookie.
    kept, place = cookies[0], f"http://{demo.operators}"
    page.context.add_cookies([{"name": kept["name"], "value": kept["value"], "url": place}])
    page.goto("/")
    expect(page).to_have_url(SIGN_IN)


def test_the_printed_link_signs_in_once(browsing: Browsing, demo: Server) -> None:
    link = re.search(r"http://\S+/sign-in\?once=\S+", demo.output)
    assert link is not None
    page = browsing.page(demo.operators)
    page.goto(link[0])
    expect(page).to_have_url(NOW)
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    another = browsing.page(demo.operators)
    another.goto(link[0])
    expect(another.get_by_role("alert")).to_contain_text("used already")
