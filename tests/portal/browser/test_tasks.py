"""Whole tasks: by what the pages show alone, without a mouse, with scripts off, and a rollout from plan to end."""

import re
from pathlib import Path

from playwright.sync_api import Page, expect
from tests.acceptance.running import Server, serving, until
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.test_looks import pages
from tests.portal.browser.visiting import restart, visiting
from tests.portal.running import Portal

MOST = 80
"""Presses of Tab from the top of a page to whatever one wants."""
FOCUSED = """() => {
  const element = document.activeElement, style = getComputedStyle(element), place = element.getBoundingClientRect();
  const shown = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 || style.boxShadow !== "none";
  const inside = place.bottom > 0 && place.right > 0 && place.top < innerHeight && place.left < innerWidth;
  return {
    words: (element.labels?.[0] ?? element).textContent.replace(/\\s+/g, " ").trim(),
    seen: element === document.body || shown && inside && place.width > 0,
    what: element.outerHTML.slice(0, 200),
  };
}"""
UTC = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")
MOMENT = re.compile(r"<time(?![^>]*data-countdown)[^>]*>([^<]*)</time>")


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


def tab_to(page: Page, words: str) -> None:
    """Whatever has the focus on the way is seen to have it."""
    passed = []
    for _ in range(MOST):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        assert found["seen"], found["what"]
        passed.append(found["words"])
        if found["words"].startswith(words):
            return
    raise AssertionError(f"{words!r} is not among {passed}")


def test_a_vm_is_restarted_and_approved_without_a_mouse(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo)
    page.goto("/")
    tab_to(page, "Skip to content")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    tab_to(page, "Restart, move or update")
    page.keyboard.press("Enter")
    page.wait_for_url("**/act")

    tab_to(page, "Restart a VM")
    page.keyboard.press("Space")
    tab_to(page, "To whom")
    page.keyboard.type("web-0")
    tab_to(page, "Show what comes of it")
    page.keyboard.press("Enter")
    page.wait_for_url("**/act?*")
    expect(page.locator("#preview")).to_contain_text("web")

    tab_to(page, "Restart web-0")
    page.keyboard.press("Enter")
    page.wait_for_url("**/events/*")
    expect(page.locator("#state")).to_contain_text("It waits for approval by web (web-0)")
    tab_to(page, "Approve Reboot of web-0")
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_contain_text("It is over: done")


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
