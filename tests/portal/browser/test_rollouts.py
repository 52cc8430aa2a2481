"""A rollout: what it would come to before anything happens, and then as it goes on."""

from playwright.sync_api import expect
from tests.acceptance.running import Server
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.visiting import visiting


def test_a_plan_is_drawn_before_anything_happens_and_then_watched(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo)
    page.goto("/rollouts")
    page.get_by_role("link", name="Plan a rollout").first.click()
    page.get_by_role("radio", name="Update").check()
    page.get_by_label("Hosts", exact=True).fill("host-a,host-b,host-d")
    page.get_by_role("button", name="Show the plan").click()
    plan = page.get_by_role("region", name="The plan")
    expect(plan).to_contain_text("Update of 2 hosts with 7 VMs, in 2 waves")
    expect(plan).to_contain_text("host-d")
    expect(plan.locator("svg .bar")).to_have_count(2)
    assert demo.get("/v1/rollouts")["items"] == []
    # The plan has an address of its own.
    page.reload()
    expect(plan).to_contain_text("Update of 2 hosts with 7 VMs, in 2 waves")

    plan.get_by_role("button", name="Start this rollout").click()
    page.wait_for_url("**/rollouts/*")
    [rollout] = demo.get("/v1/rollouts")["items"]
    main = page.get_by_role("main")
    expect(main).to_contain_text("web-0")
    demo.post(f"/v1/rollouts/{rollout['id']}/pause", {"reason": "a look from afar"})
    expect(main).to_contain_text("Paused")
    demo.post(f"/v1/rollouts/{rollout['id']}/cancel", {})
    expect(main).to_contain_text("Cancel")
