"""A browser, and servers that really run, for the tests of the portal's pages."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from tests.acceptance.running import Server, serving, until
from tests.portal.browser import chromium
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.populated import populated
from tests.portal.browser.visiting import live_events
from tests.portal.running import Portal


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


@pytest.fixture
def demo(settled: Server) -> Iterator[Server]:
    """The demo fleet, with nothing going on before the test and after it."""
    yield settled
    until(lambda: not live_events(settled), what=lambda: f"nothing is left going on: {live_events(settled)}")


@pytest.fixture(scope="package")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A restart takes four seconds, so that a page which is slow today sees it too."""
    with serving(tmp_path_factory.mktemp("demo"), "--demo", "--speed", "4") as server:
        yield server


@pytest.fixture(scope="package")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    """For tests that only look: in this process, as every worker makes one of its own."""
    with populated(tmp_path_factory.mktemp("busy")) as portal:
        yield portal
