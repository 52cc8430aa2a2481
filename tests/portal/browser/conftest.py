"""A browser, and servers that really run, for the tests of the portal's pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.portal.browser import chromium
from tests.portal.browser.chromium import Browsing


def pytest_runtest_setup() -> None:
    # Not in a fixture, whose skips are told once for each test.
    chromium.find()


# Not for the whole session: while it is there, a loop of asyncio runs in this thread, and no other test could run one.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium.running() as found:
        yield found


@pytest.fixture
def browsing(browser: Browser) -> Iterator[Browsing]:
    found = Browsing(browser)
    yield found
    found.close()
    assert found.faults == []
