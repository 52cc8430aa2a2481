"""Scenarios in the hands of a test: run to their end in virtual time, or watched in real time."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.client.both import QUICK
from tests.emulator.handling import OPENER, approving, approving_async, get, polling

from forenotice.core import errors
from forenotice.emulator import ScheduledEvents
from forenotice.emulator.testing.playback import TIMES, Situation

NOT_TO_BE_APPROVED = ("hardware-failure", "vanishing-event")
"""Started at once, or gone too soon."""
LASTING = (
    *("slow-first-answer", "frozen", "stale-document"),
    *("incarnation-restart", "clock-skew", "other-key-order", "iso-dates", "rfc1123-dates"),
)
"""A handler can do its work under these, or they end by themselves."""
VIRTUAL = pytest.mark.scheduled_events(time="virtual")


@VIRTUAL
def test_our_client_gets_through_everything(scheduled_events: ScheduledEvents, each_situation: Situation) -> None:
    playback = each_situation.play()
    begin, me = scheduled_events.now, scheduled_events.as_vm
    with approving():
        playback.run(pause=0.02)
    assert playback.done
    assert playback.events
    assert scheduled_events.now > begin
    for event in playback.events:
        assert not event.status.live
        if me not in event.resources:
            event.assert_never_approved()
        elif each_situation.name not in NOT_TO_BE_APPROVED:
            event.assert_approved(by=me, before_not_before=True)
    if each_situation.kind == "fault":
        met = [asked for asked in scheduled_events.requests if asked.fault == each_situation.name]
        assert len(met) == TIMES or (met and each_situation.name in LASTING)


@VIRTUAL
def test_a_plain_poller_gets_through_too(scheduled_events: ScheduledEvents) -> None:
    playback = scheduled_events.play("two-events", resources=["a", "b"])
    with polling(scheduled_events.url, "a"):
        playback.run(pause=0.05)
    mine, other = playback.events
    mine.assert_approved(by="a", before_not_before=True)
    other.assert_never_approved()
    assert (mine.resources, other.resources) == (("a",), ("b",))
    # A handler that approves nothing is not waited for, nor one that need not poll.
    for polls in (1, 0):
        playback = scheduled_events.play("reboot")
        with polling(scheduled_events.url) if polls else contextlib.nullcontext():
            playback.run(polls=polls, pause=0)
        (event,) = playback.events
        event.assert_never_approved()
        assert playback.done
        assert (event.status, playback.labelled) == ("Completed", {})


ALONE = """
import asyncio, time
from forenotice.emulator import ScheduledEvents

began = time.monotonic()
with ScheduledEvents(time="virtual") as scheduled_events:
    playback = scheduled_events.play("reboot")
    for run in (playback.run, lambda: asyncio.run(playback.run_async())):
        try:
            run()
        except AssertionError as failure:
            print(failure)
print(time.monotonic() - began < 30)
"""


def test_without_a_handler_it_fails_at_once() -> None:
    """In a process of its own: in this one, other tests may have left threads and children."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120, check=True)
    alone = "nobody polls: start the handler before `run`, or use `advance` without one"
    assert done.stdout.splitlines() == [alone, alone, "True"]


@contextlib.contextmanager
def in_a_thread() -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join(60)


@contextlib.contextmanager
def in_a_child() -> Iterator[None]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield
        process.kill()


@VIRTUAL
@pytest.mark.parametrize("handler", [in_a_thread, in_a_child])
def test_a_handler_that_does_not_poll_is_waited_for(
    scheduled_events: ScheduledEvents, handler: Callable[[], AbstractContextManager[None]]
) -> None:
    playback = scheduled_events.play("reboot")
    where = scheduled_events.endpoint.removeprefix("http://")
    silent = f"^nobody has polled within 0.1 s: start the handler before `run`, and let it poll {where}$"
    with handler(), pytest.raises(AssertionError, match=silent):
        playback.run(timeout=0.1)
    get(scheduled_events.url)
    with pytest.raises(urllib.error.HTTPError):
        OPENER.open(scheduled_events.url)
    refused = r"^there were not 2 polls within 0\.1 s; 1 request was refused: WestNO_0 GET .*: 400, Bad request\. Req"
    with pytest.raises(AssertionError, match=refused):
        playback.run(timeout=0.1)


@VIRTUAL
def test_a_handler_in_the_same_event_loop(scheduled_events: ScheduledEvents) -> None:
    async def test() -> None:
        playback = scheduled_events.play("reboot")
        with pytest.raises(errors.RefusedError, match=r"^`run\(\)` would .*: use `await playback.run_async\(\)`$"):
            playback.run()
        with pytest.raises(errors.RefusedError, match=r"^`wait_done\(\)` would .*: use `await playback.done\(\)`$"):
            playback.wait_done(timeout=60)
        async with approving_async():
            await playback.run_async(pause=0.02)
        await playback.done(timeout=0)
        playback.events[0].assert_approved(before_not_before=True)

    asyncio.run(test())


@pytest.mark.scheduled_events(speed=900)
def test_in_real_time_it_is_waited_for(scheduled_events: ScheduledEvents) -> None:
    playback = scheduled_events.play("maintenance-cancelled")
    assert not playback.done
    with pytest.raises(AssertionError, match=r"^the scenario is not over after 0\.1 s: it waits for its next step at "):
        playback.wait_done(timeout=0.1)
    playback.wait_done(timeout=60)
    assert playback.labelled["maintenance"].status == "Canceled"
    playback = scheduled_events.play("reboot")
    with pytest.raises(AssertionError, match=r"^the scenario is not over after 0 s: <Reboot of WestNO_0 .* is left$"):
        playback.wait_done(timeout=0)


@VIRTUAL
def test_a_file_and_a_seed(scheduled_events: ScheduledEvents, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    step = '[[step]]\nwait = ["1m", "60m"]\n[[step]]\nannounce = "restart"\nid = "it"\n'
    file.write_text(f'title = "Mine"\nresources = ["db-0"]\nseed = 1\n{step}')

    def when(seed: int | None) -> float:
        playback, begin = scheduled_events.play(file, seed=seed), scheduled_events.now
        with polling(scheduled_events.url):
            playback.run(polls=1, pause=0)
        assert get(scheduled_events.url)["Events"] == []
        return round((playback.labelled["it"].not_before - begin).total_seconds())

    assert when(1) == when(None) != when(2)
    file.write_text(f'title = "Mine"\nresources = ["db-0"]\nrepeat = "forever"\n{step}')
    with pytest.raises(errors.RefusedError, match="has no end: use `advance`"):
        scheduled_events.play(file).run()


@VIRTUAL
def test_a_poll_that_failed_is_no_look_unless_all_fail(scheduled_events: ScheduledEvents) -> None:
    pace = replace(QUICK, first_pause=0.1, longest_pause=0.1)
    playback = scheduled_events.play("reboot")
    scheduled_events.fault("error-500", times=3)
    with approving(pace):
        playback.run(pause=0)
    playback.events[0].assert_approved(before_not_before=True)
    playback = scheduled_events.play("reboot")
    scheduled_events.fault("error-500")
    # Only now: it sees nothing of this one.
    with approving(pace):
        playback.run(polls=1, pause=0)
    playback.events[0].assert_never_approved()
