"""The system's Chromium, which reaches loopback alone, and what a test must never see it do."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Request,
    Response,
    ViewportSize,
    expect,
    sync_playwright,
)

ZONE = "Europe/Berlin"
WIDE: ViewportSize = {"width": 1280, "height": 800}
PATIENCE = 60_000
"""Milliseconds for whatever a page is to show, on a machine that is busy with other tests."""
ARGUMENTS = (
    # Whoever runs the tests may be root, and /dev/shm may be small, as in containers.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    # Neither a page nor the browser itself finds anything outside this machine.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.*",
)


def find() -> str:
    """Where it is; skips the test where it is not."""
    program = shutil.which("chromium")
    if program is None:
        assert os.environ.get("CI") != "true", "the portal's tests need Chromium: apt-get install chromium"
        pytest.skip("Chromium is not here: apt-get install chromium")
    return program


@contextmanager
def running() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


class Browsing:
    """Contexts of one test, each a browser of its own to the server; `faults` must stay empty."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.faults: list[str] = []
        self.places: set[str] = set()
        """HOST:PORT of the servers that pages may speak to."""

    def context(self, place: str, **options: Any) -> BrowserContext:
        self.places.add(place)
        settings = {"viewport": WIDE, "timezone_id": ZONE, "locale": "en-GB", "base_url": f"http://{place}"}
        made = self._browser.new_context(**{**settings, **options})
        made.set_default_timeout(PATIENCE)
        made.on("request", self._asked)
        made.on("response", self._answered)
        made.on("console", self._said)
        made.on("weberror", lambda thrown: self.faults.append(f"an error that nobody caught: {thrown.error}"))
        self._contexts.append(made)
        return made

    def page(self, place: str, **options: Any) -> Page:
        return self.context(place, **options).new_page()

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _asked(self, request: Request) -> None:
        if urlsplit(request.url).netloc not in self.places:
            self.faults.append(f"fetched from elsewhere: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and not _is_page(response.request):
            self.faults.append(f"{response.status} for {response.url}")

    def _said(self, message: ConsoleMessage) -> None:
        # What is refused is looked at where it is answered.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.faults.append(f"said on the console: {message.text}")


def _is_page(request: Request) -> bool:
    try:
        return request.is_navigation_request()
    except Error:
        return False
