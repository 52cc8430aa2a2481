"""The emulator's page in a browser: it follows what happens, and suits everybody."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from tests.emulator.controlled import Controlled, controlled
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.test_looks import look


@pytest.fixture
def emulator() -> Iterator[Controlled]:
    with controlled() as found:
        yield found


def test_a_scenario_is_stepped_through_while_a_guest_acts(browsing: Browsing, emulator: Controlled) -> None:
    page = browsing.page(emulator.control)
    page.goto("/")
    page.get_by_label("Select a scenario").select_option("reboot")
    page.get_by_role("button", name="Set scenario").click()
    page.get_by_label("Resources, comma-separated").fill("web-0")
    page.get_by_role("button", name="Step by step").click()
    events = page.get_by_role("region", name="Events")
    expect(events.get_by_text("Scheduled")).to_be_visible()
    document = page.get_by_label("The document, indented to be read")
    expect(document).to_contain_text('"EventStatus": "Scheduled"')

    # Without a click or a reload from here on.
    page.evaluate("document.body.dataset.kept = 'yes'")
    (event,) = emulator.document()["Events"]
    callers = page.get_by_role("region", name="Who has called").first
    expect(callers.get_by_role("cell", name="GET /metadata/scheduledevents")).to_be_visible()
    assert emulator.approve(event["EventId"]).status == 200
    expect(document).to_contain_text('"EventStatus": "Started"')
    expect(events.get_by_text("Approved by web-0.")).to_be_visible()
    emulator.post("/faults", name="error-503")
    expect(page.get_by_role("button", name="Switch off error-503")).to_be_visible()
    assert page.evaluate("document.body.dataset.kept") == "yes"

    page.get_by_role("button", name="Switch off error-503").click()
    page.get_by_role("button", name="Step", exact=True).click()
    expect(events.get_by_text("There are no live events.")).to_be_visible()
    expect(events.get_by_text("Reboot of web-0 completed.")).to_be_visible()


def test_by_the_keyboard(browsing: Browsing, emulator: Controlled) -> None:
    emulator.post("/pause")
    emulator.post("/play", scenario="rolling-update")
    page = browsing.page(emulator.control)
    page.goto("/")
    page.get_by_role("button", name="Step", exact=True).focus()
    for _ in range(6):
        expect(page.get_by_role("button", name="Step", exact=True)).to_be_focused()
        with page.expect_navigation():
            page.keyboard.press("Enter")
    expect(page.get_by_text("Rolling update: all is played")).to_be_visible()
    expect(page.get_by_role("heading", name="So far, and expected")).to_be_in_viewport()


def test_without_scripts(browsing: Browsing, emulator: Controlled) -> None:
    page = browsing.page(emulator.control, java_script_enabled=False)
    page.goto("/?scenario=two-events")
    page.get_by_role("button", name="Run automatically").click()
    expect(page.get_by_role("status")).to_have_text("Two events at once has begun.")
    page.get_by_role("button", name="Approve Reboot of web-0").click()
    expect(page.get_by_role("status")).to_contain_text("it is Started")
    page.get_by_role("button", name="Switch on latency").click()
    expect(page.get_by_text("A poll would meet latency now.")).to_be_visible()


def test_it_suits_everybody(browsing: Browsing, emulator: Controlled) -> None:
    emulator.post("/pause")
    emulator.post("/play", scenario="rolling-update")
    emulator.post("/step")
    emulator.post("/faults", name="error-503", times=2, on="polls")
    for _ in range(3):
        emulator.poll()
    emulator.post("/faults", name="clock-skew")
    look(browsing.page(emulator.control), "emulator", "/")
