"""A new token is copied from the one page that shows it."""

import re

from playwright.sync_api import Page, expect
from tests.acceptance.running import Server, ask
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.visiting import visiting


def make(page: Page, name: str) -> str:
    page.goto("/tokens")
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Make the token").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"The token {name} is made")
    return page.get_by_label("The token").input_value()


def test_a_new_token_is_copied_by_a_button_and_works(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo, permissions=["clipboard-read", "clipboard-write"])
    secret = make(page, "copied")
    expect(page.get_by_label("The token")).to_be_focused()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    assert ask(demo.operators, "GET", "/v1/vms", headers={"Authorization": f"Bearer {secret}"}).status == 200
    page.get_by_role("link", name="To all tokens").click()
    row = page.get_by_role("row", name=re.compile("^copied"))
    expect(row).to_contain_text("viewer")
    assert secret not in page.content()
    page.get_by_role("link", name="Revoke copied").click()
    page.get_by_role("button", name="Revoke copied").click()
    expect(row).to_contain_text("revoked")
    assert ask(demo.operators, "GET", "/v1/vms", headers={"Authorization": f"Bearer {secret}"}).status == 401


def test_without_scripts_there_is_no_button_that_would_do_nothing(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo, java_script_enabled=False)
    assert make(page, "by-hand").startswith("fn_")
    expect(page.get_by_role("button", name="Copy")).to_be_hidden()
    expect(page.get_by_text("Select all of the field (Ctrl-A) and copy it (Ctrl-C).")).to_be_visible()
