"""For pytest, without any import: the fixtures `scheduled_events` and `each_situation`.

Every session loads this, also where no test uses it: nothing else is imported before one does.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forenotice.emulator.testing.playback import Situation
    from forenotice.emulator.testing.scheduled_events import ScheduledEvents

EVENTS = "scheduled_events"
SITUATION = "each_situation"
MARKERS = (
    f'{EVENTS}(time="virtual", start="2026-01-31T12:00:00Z", speed=60, as_vm="app_3", vms=["app_0", "app_1"]): '
    f"how the fixture {EVENTS} is set up",
    f'{SITUATION}("scenario-*", "fault-reset"): which situations the fixture {SITUATION} is about',
)
SHOWN = 20
STARTED = pytest.StashKey["ScheduledEvents"]()


@pytest.fixture
def scheduled_events(request: pytest.FixtureRequest) -> Iterator[ScheduledEvents]:
    """The real endpoint of Scheduled Events on a free port, found by FORENOTICE_ENDPOINT, with events at will."""
    with contextlib.ExitStack() as stack:
        started = _start(request.node, stack)
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("FORENOTICE_ENDPOINT", started.endpoint)
        environment.delenv("FORENOTICE_NAME", raising=False)
        request.node.stash[STARTED] = started
        yield started


@pytest.fixture
def each_situation(request: pytest.FixtureRequest, scheduled_events: ScheduledEvents) -> Situation:
    """The test is run once for each scenario of the catalogue, and for each fault."""
    from forenotice.emulator.testing.playback import Situation

    return Situation(scheduled_events, request.param)


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if SITUATION not in metafunc.fixturenames:
        return
    from forenotice.core import errors
    from forenotice.emulator.testing import playback

    marker = metafunc.definition.get_closest_marker(SITUATION)
    try:
        metafunc.parametrize(SITUATION, playback.matching(marker.args if marker else ()), indirect=True)
    except errors.ForenoticeError as refusal:
        raise pytest.Collector.CollectError(f"@pytest.mark.{SITUATION}: {refusal}") from None


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(EVENTS in getattr(item, "fixturenames", ()) for item in session.items):
        # Now rather than during the first test; the fixture reports what is missing.
        with contextlib.suppress(ImportError):
            import forenotice.emulator.testing.scheduled_events  # noqa: F401


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and STARTED in item.stash:
        report.sections.append(("Scheduled Events: requests", _requests(item.stash[STARTED])))
    return report


def _start(item: pytest.Item, stack: contextlib.ExitStack) -> ScheduledEvents:
    try:
        from forenotice.core import errors
        from forenotice.emulator.testing.scheduled_events import ScheduledEvents
        from forenotice.toml import nearest
    except ImportError as error:
        raise pytest.fail.Exception(f"{error}: {EVENTS} needs forenotice[testing]", pytrace=False) from None
    settings: dict[str, Any] = {}
    # The closest comes first, and has the last word.
    for marker in reversed(list(item.iter_markers(EVENTS))):
        if marker.args:
            pytest.fail(f"@pytest.mark.{EVENTS}: settings are given by name, not {marker.args[0]!r}", pytrace=False)
        settings |= marker.kwargs
    known = list(inspect.signature(ScheduledEvents).parameters)
    try:
        if unknown := [name for name in settings if name not in known]:
            raise errors.RefusedError(nearest(unknown[0], known, "setting"))
        return stack.enter_context(ScheduledEvents(**settings))
    except (errors.ForenoticeError, TypeError) as error:
        raise pytest.fail.Exception(f"@pytest.mark.{EVENTS}: {error}", pytrace=False) from None


def _requests(events: ScheduledEvents) -> str:
    requests = events.requests.all
    earlier = [f"... {len(requests) - SHOWN} more before these"] if len(requests) > SHOWN else []
    lines = [f"{each.at:%H:%M:%S.%f} {each}" for each in requests[-SHOWN:]]
    return "\n".join([*earlier, *lines]) or "none"
