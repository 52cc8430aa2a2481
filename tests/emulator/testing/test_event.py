"""What became of an event: waits that end, and assertions that say what was seen instead."""

import asyncio
import re
import threading
import urllib.error
from collections.abc import Callable

import pytest
from tests.acceptance.running import until
from tests.emulator.handling import OPENER, approve, approving, approving_async, get

from forenotice.core import errors
from forenotice.emulator import ScheduledEvents
from forenotice.emulator.testing.event import AnnouncedEvent

VIRTUAL = pytest.mark.scheduled_events(time="virtual")
NAMED = r"<Reboot of web-0 \({status}, [0-9A-F-]{{36}}\)>"


def failing(text: str, status: str = "Scheduled") -> "pytest.RaisesExc[AssertionError]":
    """Of an event; times are not known in advance."""
    return pytest.raises(AssertionError, match=f"^{NAMED.format(status=status)} {text.replace('TIME', '[0-9:]{8}')}$")


@VIRTUAL
def test_an_approval_of_our_client(scheduled_events: ScheduledEvents) -> None:
    with approving():
        for _ in range(20):
            event = scheduled_events.reboot("web-0", notice="15m", takes="10m")
            event.wait_approved(timeout=60)
            assert [(request.status, request.event_ids) for request in event.requests] == [(200, (event.id,))]
            event.wait_started(timeout=60)
            event.assert_approved()
            event.assert_approved(by="web-0", before_not_before=True)
            with failing("was not to be approved, but web-0 approved it at TIME", "Started"):
                event.assert_never_approved()
            with failing("was to be approved by web-1, but web-0 approved it at TIME", "Started"):
                event.assert_approved(by="web-1")
            scheduled_events.advance("10m")


@VIRTUAL
def test_an_event_without_approval(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot()
    event.assert_never_approved()
    with failing("was to be approved, but nobody approved it; it is Scheduled"):
        event.assert_approved()
    get(scheduled_events.url)
    nobody = "nobody approved it; it is Scheduled; 1 poll so far"
    for wait, what in ((event.wait_approved, "approved"), (event.wait_started, "started"), (event.wait_gone, "gone")):
        with failing(rf"is not {what} after 0\.05 s; {nobody}"):
            wait(timeout=0.05)
    scheduled_events.advance("15m")
    event.assert_never_approved()


@VIRTUAL
def test_an_approval_that_is_sent_or_carried_out_too_late(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot(takes="1m")
    scheduled_events.advance("15m")
    approve(scheduled_events.url, event.id.lower())
    event.wait_approved(timeout=60)
    event.assert_approved(by="web-0")
    late = f"was to be approved by web-0 before {event.not_before:%H:%M:%S}, but web-0 approved it at TIME"
    with failing(late, "Started"):
        event.assert_approved(by="web-0", before_not_before=True)
    scheduled_events.reset()
    event = scheduled_events.reboot(notice="5m")
    scheduled_events.fault("latency", amount="10m", on="approvals")
    handler = threading.Thread(target=approve, args=(scheduled_events.url, event.id))
    handler.start()
    until(lambda: scheduled_events._emulator.faults.delayed)
    scheduled_events.advance("5m")
    scheduled_events.clear_faults()
    handler.join(60)
    event.assert_approved(by="web-0")
    late = f"before {event.not_before:%H:%M:%S}, but web-0 approved it at {event.not_before:%H:%M:%S}$"
    with pytest.raises(AssertionError, match=late):
        event.assert_approved(before_not_before=True)


@VIRTUAL
@pytest.mark.parametrize("canceled", [True, False])
def test_what_comes_after_its_end_is_no_approval(scheduled_events: ScheduledEvents, canceled: bool) -> None:
    event = scheduled_events.reboot(notice="1m")
    event.cancel() if canceled else scheduled_events.advance("2m")
    approve(scheduled_events.url, event.id)
    for judge in (event.assert_approved, event.assert_never_approved):
        with pytest.raises(AssertionError, match=r"approved, but web-0 requested it and got 200 after its end$"):
            judge()


def test_refused_approvals_and_those_of_several(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot("web-0", "web-1")
    with scheduled_events.fault("error-503", on="approvals"), pytest.raises(urllib.error.HTTPError):
        approve(scheduled_events.url, event.id)
    with scheduled_events.fault("reset", on="approvals"), pytest.raises(OSError, match="reset"):
        approve(scheduled_events.url, event.id)
    # A handler that requests it would have approved it, were it not for the fault.
    seen = "but web-0 requested it and got 503, web-0 requested it and got no response$"
    for judge in (event.assert_approved, event.assert_never_approved):
        with pytest.raises(AssertionError, match=seen):
            judge()
    assert not event.approved
    assert [request.status for request in event.requests] == [503, None]
    for vm in ("web-0", "web-1"):
        approve(scheduled_events.url_of(vm), event.id)
        event.assert_approved(by=vm, before_not_before=True)


def test_an_operator_may_approve_and_cancel(scheduled_events: ScheduledEvents) -> None:
    event, other = scheduled_events.reboot(), scheduled_events.freeze()
    event.approve(by="alice")
    event.assert_approved(by="alice", before_not_before=True)
    assert event.requests == []
    other.cancel()
    other.wait_gone(timeout=60)
    assert other.status == "Canceled"
    other.assert_never_approved()


WAITS = [("approved", AnnouncedEvent.approve), ("started", AnnouncedEvent.approve), ("gone", AnnouncedEvent.cancel)]


@VIRTUAL
@pytest.mark.parametrize(("name", "act"), WAITS)
def test_a_wait_ends_when_it_has_come(
    scheduled_events: ScheduledEvents, name: str, act: Callable[[AnnouncedEvent], None]
) -> None:
    event = scheduled_events.reboot()
    wait = getattr(event, f"wait_{name}")

    async def blocking() -> None:
        with pytest.raises(errors.RefusedError) as refused:
            wait()
        assert refused.value.message == (
            f"`wait_{name}()` would block the running event loop, and with it every handler there: "
            f"use `await event.{name}()`"
        )
        act(event)
        # In a thread of its own it may block.
        await asyncio.to_thread(wait)

    other = threading.Timer(0.05, act, [event])
    other.start()
    wait(timeout=60)
    other.join(60)
    assert re.match(NAMED.format(status="Canceled" if name == "gone" else "Started"), repr(event))
    scheduled_events.reset()
    event = scheduled_events.freeze()
    wait = getattr(event, f"wait_{name}")
    asyncio.run(blocking())
    message = rf"^`{name}\(\)` is to be awaited in an asyncio test: here, use `wait_{name}\(\)`$"
    with pytest.raises(errors.RefusedError, match=message):
        asyncio.run(getattr(event, name)())


@VIRTUAL
def test_a_handler_in_the_same_event_loop(scheduled_events: ScheduledEvents) -> None:
    async def approve(event: AnnouncedEvent) -> None:
        await asyncio.sleep(0.05)
        event.approve(by="alice")

    async def test() -> None:
        event = scheduled_events.reboot(notice="15m", takes="10m")
        assert not event.approved
        async with approving_async():
            await event.approved(timeout=60)
            await event.started(timeout=60)
            assert [request.status for request in event.requests] == [200]
            scheduled_events.advance("10m")
            await event.gone(timeout=60)
        assert all((event.approved, event.started, event.gone))
        event.assert_approved(by="web-0", before_not_before=True)
        # The loop goes on while an event is awaited.
        event, other = scheduled_events.freeze(), scheduled_events.reboot()
        await asyncio.gather(event.approved(60), event.started(60), approve(event))
        with failing(r"is not approved after 0 s; nobody approved it; it is Scheduled; \d+ polls? so far"):
            await other.approved(timeout=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.gone(60), 0.02)

    asyncio.run(test())


@VIRTUAL
def test_a_refused_request_is_reported_with_its_reason(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot()
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError):
            OPENER.open(scheduled_events.url)
    header = (
        "2 requests were refused: web-0 GET /metadata/scheduledevents?api-version=2020-07-01: 400, "
        "Bad request. Required metadata header not specified (2 times)"
    )
    with failing(f"is not approved after .*; 2 polls so far; {re.escape(header)}"):
        event.wait_approved(timeout=0)
    scheduled_events.requests.clear()
    with pytest.raises(urllib.error.HTTPError):
        approve(scheduled_events.url, "it")
    with pytest.raises(AssertionError, match=r"; 1 request was refused: web-0 POST .*: 400, .*'it' .* is not a GUID"):
        event.assert_approved()
    # A refusal by a fault is no mistake of the handler's.
    scheduled_events.requests.clear()
    with scheduled_events.fault("error-503"), pytest.raises(urllib.error.HTTPError):
        get(scheduled_events.url)
    with pytest.raises(AssertionError, match=r"nobody approved it; it is Scheduled$"):
        event.assert_approved()
