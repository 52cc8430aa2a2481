"""Everything by keyboard, and one always sees where one is."""

from playwright.sync_api import Page, expect
from tests.acceptance.running import Server
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.visiting import visiting

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
