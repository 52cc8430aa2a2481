"""Fixtures for all rooms, what is measured of them, and which tests begin first."""

import gc
import importlib
import os
import pkgutil
from collections.abc import Generator, Iterator
from pathlib import Path

import coverage
import pytest
import structlog

from forenotice import core, logs, wire
from forenotice.agent import rules

if "PYTEST_XDIST_WORKER" in os.environ:
    # This process is measured. What it starts is not: that would be a third slower, and lost when it is killed.
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        del os.environ[name]

pytest_plugins = ("tests.databases", "tests.postgres", "tests.wheel")


MEASURING = coverage.Coverage.current()
MEASURING_ALL = "MEASURE_ALL" in os.environ
PURE = tuple(Path(__file__).parent / room for room in ("core", "wire", "agent/rules"))
"""Tests of what holds itself to every branch. The tracer takes a third of the time: `make soak` measures the others."""
LONGEST = (
    "cluster/faults/test_faults.py",
    "machines/test_events.py",
    "machines/test_host_failure.py",
    "acceptance/test_two_servers.py",
    "core/test_histories.py::test_what_always_holds",
    "acceptance/test_rollout.py",
    "machines/test_kills.py",
    "lab/test_agent.py",
    "docs/test_lab_page.py::test_the_tour",
    "conformance/handlers/test_handlers.py",
    "docs/test_quickstart.py",
    "acceptance/test_outage.py",
    "acceptance/test_crash.py",
    "core/test_rollout_histories.py::test_rollouts_keep_their_promises",
    "docs/test_snippets.py::test_snippets_run[fleet.md]",
    "conformance/test_wrong_server.py::test_every_mistake",
    "docs/test_snippets.py::test_snippets_run[library.md]",
    "docs/test_snippets.py::test_snippets_run[history.md]",
)
"""Each takes a quarter of a minute or more: one that began last would keep a single worker busy."""

if MEASURING and not MEASURING_ALL:
    # Importing counts, too. The tracer then rests, as collecting thousands of tests takes twice as long with it.
    for package in (core, wire, rules):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    MEASURING.stop()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """xdist gives each worker a contiguous part, whose end others may steal: the longest go to the beginnings."""
    if not hasattr(config, "workerinput"):
        return
    workers: int = config.workerinput["workercount"]
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> int:
        return next((place for name, place in places.items() if item.nodeid.startswith(name)), len(places))

    longest = sorted((item for item in items if place(item) < len(places)), key=place)
    others = [item for item in items if place(item) == len(places)]
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        first = longest[worker::workers]
        size = (len(items) - len(ordered)) // (workers - worker)
        taken = max(0, size - len(first))
        ordered += [*first, *others[:taken]]
        del others[:taken]
    items[:] = [*ordered, *others]


def pytest_collection_finish() -> None:
    """Tests stay until the end: to look through thousands at every collection of garbage is a tenth of the time."""
    gc.collect()
    gc.freeze()
    if MEASURING:
        MEASURING.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    measured = MEASURING_ALL or any(item.path.is_relative_to(room) for room in PURE)
    if not MEASURING or not measured or item.get_closest_marker("drawn"):
        return (yield)
    MEASURING.start()
    try:
        return (yield)
    finally:
        MEASURING.stop()


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """A command that is run in this process sets its logs up; the next test has its own, where capsys finds them."""
    before, logs.log.setup = logs.log.setup, lambda: None
    yield
    logs.log.setup = before
    structlog.reset_defaults()
