"""A browser that has the start page open while events change: the longest task of its main thread, and each refresh."""

import http.client
import json
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Page, sync_playwright

from bench import guests, report, servers
from bench.servers import Server

TASK_MS = 200.0
BEAT_SECONDS = 0.1
SCHEDULED_A_BEAT = 3
"""One of them is cancelled a second later, the others are approved, start and end: eleven changes for a beat."""
WAITING_BEATS = 10
LEAST_CHANGES = 50.0
"""Events that change in a second: with fewer the browser's measurement says nothing."""
WATCH = """
window.tasks = []; window.looks = [];
const seen = (list) => list.getEntries().forEach((each) => tasks.push([each.startTime, each.duration]));
new PerformanceObserver(seen)
  .observe({ type: "longtask", buffered: true });
document.addEventListener("looked", () => looks.push(performance.now()));
"""
"""Long tasks are those over 50 ms."""


def measure(
    server: Server, database: Path, what: str, token: str, vms: Sequence[str], seconds: int
) -> list[report.Row]:
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=servers.program("chromium"), args=options)
        try:
            context = browser.new_context(base_url=f"http://127.0.0.1:{server.control}")
            page = context.new_page()
            page.add_init_script(WATCH)
            page.goto("/sign-in")
            page.fill("input[name=token]", token)
            page.press("input[name=token]", "Enter")
            page.wait_for_selector("#list .events")
            # A function: an expression would be evaluated, which the page's policy forbids.
            page.wait_for_function("() => document.getElementById('connection')?.textContent === 'live'")
            return _watched(page, Changing(server, token, vms), database, what, seconds)
        finally:
            browser.close()


def _watched(page: Page, changing: "Changing", database: Path, what: str, seconds: int) -> list[report.Row]:
    at_first = [duration for _, duration in page.evaluate("tasks")]
    before, begin = _changes(database), page.evaluate("performance.now()")
    with changing:
        page.wait_for_timeout(seconds * 1000)
    changes = (_changes(database) - before) / seconds
    tasks = [duration for start, duration in page.evaluate("tasks") if start >= begin]
    looks = [moment for moment in page.evaluate("looks") if moment >= begin]
    fetched = page.evaluate(
        "performance.getEntriesByType('resource').filter((each) => each.initiatorType === 'fetch')"
        ".map((each) => [each.startTime, each.duration, each.transferSize])"
    )
    answers = [(duration, size) for start, duration, size in fetched if start >= begin]
    if not looks or not answers or changing.failed:
        raise SystemExit(f"bench: the page was not refreshed while events changed ({changing.failed or 'no reason'})")
    if changes < LEAST_CHANGES:
        raise SystemExit(
            f"bench: {changes:.0f} events a second changed, which is too few: {LEAST_CHANGES:.0f} are wanted"
        )
    each = f"{median(took for took, _ in answers):.0f} ms and {median(size for _, size in answers) / 1024:.0f} KiB each"
    return [
        report.within(
            f"{what} in Chromium: its longest task while {changes:.0f} events a second change",
            max(tasks, default=0.0),
            TASK_MS,
            "{:.0f} ms",
            f"{len(tasks)} over 50 ms, {len(looks)} refreshes in {seconds} s, {each}",
        ),
        report.Row(
            what=f"{what} in Chromium: its longest task at first", measured=f"{max(at_first, default=0):.0f} ms"
        ),
    ]


def _changes(database: Path) -> int:
    """How often an event has changed so far."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=guests.PATIENCE)) as connection:
        [count] = connection.execute("SELECT count(*) FROM journal WHERE action LIKE 'event.%'").fetchone()
    return int(count)


class Changing:
    """Restarts that are asked for, approved and cancelled at a steady pace, by the API, while it is entered."""

    def __init__(self, server: Server, token: str, vms: Sequence[str]) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.control, timeout=guests.PATIENCE)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._vms = iter(vms)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failed = ""

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(guests.PATIENCE)
        self._connection.close()

    def _run(self) -> None:
        waiting: deque[list[str]] = deque()
        due = time.monotonic()
        try:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                due += BEAT_SECONDS
                names = [next(self._vms) for _ in range(SCHEDULED_A_BEAT)]
                made = self._ask("/v1/operations", {"kind": "restart", "names": names})["operations"]
                waiting.append([operation["events"][0]["id"] for operation in made])
                if len(waiting) > WAITING_BEATS:
                    last, *others = waiting.popleft()
                    self._ask(f"/v1/events/{last}/cancel")
                    for event in others:
                        self._ask(f"/v1/events/{event}/approve")
        except (OSError, RuntimeError, StopIteration) as error:
            self.failed = str(error)

    def _ask(self, path: str, body: object = None) -> Any:
        self._connection.request("POST", path, json.dumps(body or {}), self._headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{path} was answered {answer.status}: {said!r}")
        return json.loads(said)
