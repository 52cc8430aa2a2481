"""The pages of the fleet keep themselves up to date, and leave alone what somebody types there."""

import re

from playwright.sync_api import expect
from tests.acceptance.running import Server
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.visiting import visiting

POLLED = re.compile(r"Last polled\s*(now|\d+ s ago|\d\d:\d\d:\d\d)")


def test_a_vm_changes_its_state_in_the_grid_and_nothing_is_loaded_again(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo)
    page.goto("/fleet")
    page.evaluate("window.stays = true")
    expect(page.locator("#vm-web-1 .vm-fine")).to_have_text("✓ web-1, fine")
    restart = demo.schedule("restart", "web-1")
    expect(page.locator("#vm-web-1 .vm-scheduled")).to_have_text("◷ web-1, scheduled")
    demo.post(f"/v1/operations/{restart['id']}/cancel", {})
    expect(page.locator("#vm-web-1 .vm-fine")).to_be_visible()
    assert page.evaluate("window.stays")


def test_what_is_typed_into_a_policy_stays_while_the_page_changes(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo)
    page.goto("/vms/db")
    page.get_by_text("Change the policy").first.click()
    page.get_by_label("Users' operations at once, at most").fill("7")
    page.get_by_label("Reason").fill("too many restarts")
    restart = demo.schedule("restart", "db")
    expect(page.locator("#state")).to_contain_text("scheduled")
    expect(page.locator("#document-text")).to_contain_text(restart["events"][0]["id"].upper())
    expect(page.get_by_label("Reason")).to_have_value("too many restarts")
    page.get_by_role("button", name="Change the policy").click()
    expect(page.get_by_role("status")).to_contain_text("The policy of VM db is changed.")
    expect(page.locator("#policy-facts")).to_contain_text("at most 7 at once")
    expect(page.locator("#lately")).to_contain_text("too many restarts")
    demo.post(f"/v1/operations/{restart['id']}/cancel", {})
    assert demo.control("PATCH", "/v1/vms/db/policy", {"max_user_operations": None}).status == 200


def test_another_version_of_the_document_is_chosen(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo, java_script_enabled=False)
    page.goto("/vms/web-0")
    page.get_by_label("api-version", exact=True).select_option("2017-03-01")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/vms/web-0?api-version=2017-03-01#document")
    expect(page.get_by_label("The document in api-version 2017-03-01")).to_contain_text("DocumentIncarnation")


def test_what_the_endpoint_hears_of_a_vm_is_on_its_page(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo)
    facts = page.get_by_role("main")
    page.goto("/vms/pool_3")
    expect(facts).to_contain_text("nobody of its group has polled")
    demo.document("127.1.0.23")
    page.goto("/vms/pool_3")
    expect(facts).to_contain_text(POLLED)
    page.goto("/vms/batch")
    expect(facts).not_to_contain_text(POLLED)
