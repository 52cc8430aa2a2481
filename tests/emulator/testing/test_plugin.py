"""pytest with forenotice installed: fixtures that need no import, for people who test their handler."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from forenotice.emulator import faults
from forenotice.emulator.scenarios import catalogue
from forenotice.emulator.testing import playback

pytest_plugins = ("pytester",)

ROOT = Path(__file__).parents[3]
PLUGIN = "forenotice.emulator.testing.plugin"
OPTIONS = ("-p", PLUGIN, "-p", "no:cacheprovider", "--strict-markers", "-W", "error")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other plugins only take time; that ours is loaded without a word is shown by its entry point."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, text: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(f"import pytest\n{text}")
    return pytester.runpytest_inprocess(*OPTIONS, *options)


@pytest.mark.parametrize(("argument", "loaded"), [("scheduled_events", True), ("tmp_path", False)])
def test_all_is_imported_before_the_first_test_that_uses_it_and_else_nothing(
    pytester: pytest.Pytester, argument: str, loaded: bool
) -> None:
    assert PLUGIN in [found.value for found in entry_points(group="pytest11")]
    pytester.makeconftest("""
        import sys
        def pytest_runtestloop(session):
            print(sorted(name for name in sys.modules if name.startswith("forenotice")))
    """)
    pytester.makepyfile(f"def test_one({argument}): pass")
    done = pytester.runpytest_subprocess(*OPTIONS, "-s")
    done.assert_outcomes(passed=1)
    nothing = f"{['forenotice', 'forenotice.emulator', 'forenotice.emulator.testing', PLUGIN]}"
    assert (nothing in done.outlines) is not loaded
    assert ("'forenotice.emulator.testing.scheduled_events'" in done.stdout.str()) is loaded


def test_the_endpoint_is_found_and_then_forgotten(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORENOTICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("FORENOTICE_NAME", "somebody-else")
    text = """
import os, subprocess, sys
from forenotice import Client

CODE = "from forenotice import Client; print(Client().me, len(Client().events()))"

def test_found(scheduled_events, monkeypatch):
    scheduled_events.reboot()
    monkeypatch.undo()
    with Client() as client:
        assert (client.endpoint, client.me) == (scheduled_events.endpoint, "web-0")
    assert subprocess.check_output([sys.executable, "-c", CODE], text=True) == "web-0 1\\n"

def test_forgotten():
    assert os.environ["FORENOTICE_ENDPOINT"] == "http://127.0.0.1:9"
    assert os.environ["FORENOTICE_NAME"] == "somebody-else"
"""
    run(pytester, text).assert_outcomes(passed=2)


def test_settings_come_from_markers_and_the_closest_wins(pytester: pytest.Pytester) -> None:
    text = """
@pytest.mark.scheduled_events(time="virtual", as_vm="app_3", vms=["app_0"])
class TestAll:
    def test_of_the_class(self, scheduled_events):
        event = scheduled_events.reboot(notice="15m")
        scheduled_events.advance("15m")
        assert (event.status, event.resources) == ("Started", ("app_3",))

    @pytest.mark.scheduled_events(as_vm="app_7", speed=60)
    def test_of_its_own(self, scheduled_events):
        event = scheduled_events.reboot(notice="15m")
        assert (event.not_before - scheduled_events.now).total_seconds() == 15
        assert event.resources == ("app_7",)
"""
    run(pytester, text).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("tiem='virtual'", "there is no setting 'tiem'; did you mean 'time'?"),
        ("time='virtul'", 'time is "real" or "virtual", not \'virtul\''),
        ("'virtual'", "settings are given by name, not 'virtual'"),
        ("vms=5", "'int' object is not iterable"),
        ("vms={'web-0': 3}", "web-0 is in update domain 0, not 3"),
    ],
)
def test_wrong_settings_are_refused_in_a_line(pytester: pytest.Pytester, settings: str, said: str) -> None:
    done = run(pytester, f"@pytest.mark.scheduled_events({settings})\ndef test_one(scheduled_events): pass\n")
    done.assert_outcomes(errors=1)
    after = done.outlines[done.outlines.index("_" * 26 + " ERROR at setup of test_one " + "_" * 26) + 1 :]
    assert after[0] == f"@pytest.mark.scheduled_events: {said}"
    assert after[1].startswith("===")


def test_what_is_not_installed_is_named(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys\nsys.modules['httptools'] = None")
    pytester.makepyfile("def test_one(scheduled_events): pass")
    done = pytester.runpytest_subprocess(*OPTIONS)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*httptools*: scheduled_events needs forenotice[[]testing[]]"])


WITHOUT = """
import socket, sys

# What the service, the emulator as a program, and every other system than Windows have.
for name in {missing}:
    sys.modules[name] = None
for name in ("MSG_DONTWAIT", "MSG_MORE"):
    delattr(socket, name)
"""
NOT_ON_WINDOWS = ("fcntl", "grp", "pwd", "resource", "termios", "uvloop")


def test_it_needs_nothing_but_httptools_and_nothing_that_windows_lacks(pytester: pytest.Pytester) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.pop("testing") == ["httptools>=0.6"]
    names = {re.split(r"[^\w-]", name)[0] for name in (*extras["server"], *extras["emulator"])} - {"httptools"}
    missing = sorted({name.replace("-", "_") for name in names} | {"starlette", "anyio"} | set(NOT_ON_WINDOWS))
    pytester.makeconftest(WITHOUT.format(missing=missing))
    pytester.makepyfile("""
        import pytest
        from forenotice import Client, EndpointError
        from forenotice.logs import log

        def test_one(scheduled_events, caplog):
            event = scheduled_events.reboot()
            with Client() as client:
                client.approve(client.events(mine=True)[0])
                event.wait_approved()
                with scheduled_events.fault("reset"), pytest.raises(EndpointError, match="reset by peer"):
                    client.document()
            scheduled_events.play("two-events")
            scheduled_events.advance("1h")
            log.warning("It can be logged", action="test")
            assert caplog.messages == ["It can be logged {'action': 'test'}"]
    """)
    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=1)


def test_asyncio_tests_of_both_plugins(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import asyncio

        import pytest

        from forenotice import Appeared, AsyncClient

        pytestmark = pytest.mark.scheduled_events(time="virtual")

        async def handle(client):
            async for change in client.watch(mine=True):
                if isinstance(change, Appeared):
                    await client.approve(change.event)

        async def live(scheduled_events):
            event = scheduled_events.reboot(notice="15m")
            async with AsyncClient() as client:
                handler = asyncio.create_task(handle(client))
                await event.approved()
                scheduled_events.advance("15m")
                await event.gone()
                handler.cancel()
            event.assert_approved(by="web-0", before_not_before=True)

        @pytest.mark.asyncio
        async def test_with_pytest_asyncio(scheduled_events):
            await live(scheduled_events)

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_with_anyio(scheduled_events):
            await live(scheduled_events)

        @pytest.mark.anyio
        @pytest.mark.parametrize("anyio_backend", ["asyncio"])
        async def test_without_a_handler(scheduled_events):
            with pytest.raises(AssertionError, match="^nobody polls: "):
                await scheduled_events.play("reboot").run_async()
    """)
    plugins = ("-p", "pytest_asyncio.plugin", "-p", "anyio.pytest_plugin")
    scope = ("-o", "asyncio_default_fixture_loop_scope=function")
    pytester.runpytest_subprocess(*OPTIONS, *plugins, *scope).assert_outcomes(passed=3)


def test_one_test_through_all_situations_or_some(pytester: pytest.Pytester) -> None:
    done = run(pytester, "def test_one(each_situation): pass\n", "--collect-only", "-q")
    ids = [line.partition("[")[2].rstrip("]") for line in done.outlines if "::" in line]
    scenarios = [f"scenario-{name}" for name in catalogue.names()]
    assert ids == [*scenarios, *(f"fault-{fault.name}" for fault in faults.ALL)] == playback.ids()
    text = """
@pytest.mark.each_situation("fault-error-5*", "scenario-reboot")
@pytest.mark.scheduled_events(time="virtual")
def test_one(each_situation, scheduled_events):
    playback = each_situation.play(resources="app_3")
    assert scheduled_events.as_vm == "app_3"
    print(each_situation, each_situation.kind, each_situation.name, playback.events[0].type)
"""
    done = run(pytester, text, "-s", "-q")
    done.assert_outcomes(passed=3)
    assert [line.lstrip(".") for line in done.outlines if "Reboot" in line] == [
        "<scenario reboot> scenario reboot Reboot",
        "<fault error-500> fault error-500 Reboot",
        "<fault error-503> fault error-503 Reboot",
    ]
    done = run(pytester, "@pytest.mark.each_situation('scenario-rebot')\ndef test_one(each_situation): pass\n")
    done.assert_outcomes(errors=1)
    expected = "@pytest.mark.each_situation: there is no situation 'scenario-rebot'; did you mean 'scenario-reboot'?"
    assert expected in [line.removeprefix("E").strip() for line in done.outlines]


def test_a_failure_shows_what_was_asked_and_where_the_test_stands(pytester: pytest.Pytester) -> None:
    text = """
from forenotice import Client

def test_one(scheduled_events):
    event = scheduled_events.reboot()
    with Client() as client:
        for _ in range(30):
            client.document()
        with scheduled_events.fault("error-503"), pytest.raises(Exception):
            client.approve(event.id)
    event.assert_approved(by="web-0")

def test_two(scheduled_events):
    scheduled_events.assert_polled_at_least(hz=1)

def test_three(scheduled_events):
    pass
"""
    done = run(pytester, text, "-rP")
    done.assert_outcomes(failed=2, passed=1)
    done.stdout.fnmatch_lines(
        [
            ">       event.assert_approved(by=*",
            "E       AssertionError: <Reboot of web-0 *> was to be approved by web-0, but * and got 503",
            "*--- Scheduled Events: requests ---*",
            "... 11 more before these",
            "??:??:??.?????? web-0 GET /metadata/scheduledevents?api-version=*: 304",
            "??:??:??.?????? web-0 POST /metadata/scheduledevents?api-version=* for *: 503 (error-503)",
            ">       scheduled_events.assert_polled_at_least(hz=1)",
            "E       AssertionError: web-0 was to poll every 1 s, but it did not poll at all",
            "*--- Scheduled Events: requests ---*",
            "none",
        ]
    )
    assert "testing/event.py" not in done.stdout.str()
    assert done.stdout.str().count("Scheduled Events: requests") == 2
