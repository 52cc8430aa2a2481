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


def said(text: str, status: str = "Scheduled") -> str:
    """Of an event; times are not told in advance."""
    return f"^{NAMED.format(status=status)} {text.replace('TIME', '[0-9:]{8}')}$"


def test_what_our_client_approves_is_seen(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot("web-0", notice="15m")
    assert not event.approved
    with approving():
        event.wait_approved(timeout=60)
        event.wait_started(timeout=60)
    event.assert_approved()
    event.assert_approved(by="web-0", before_not_before=True)
    (request,) = event.requests
    assert request.event_ids == (event.id,)
    with pytest.raises(AssertionError, match=said("was not to be approved, but web-0 approved it at TIME", "Started")):
        event.assert_never_approved()
    with pytest.raises(
        AssertionError, match=said("was to be approved by web-1, but web-0 approved it at TIME", "Started")
    ):
        event.assert_approved(by="web-1")


@VIRTUAL
def test_whoever_has_waited_finds_the_request(scheduled_events: ScheduledEvents) -> None:
    with approving():
        for _ in range(20):
            event = scheduled_events.reboot()
            event.wait_approved(timeout=60)
            assert [request.status for request in event.requests] == [200]


@VIRTUAL
def test_what_nobody_approves(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot()
    event.assert_never_approved()
    with pytest.raises(AssertionError, match=said("was to be approved, but nobody approved it; it is Scheduled")):
        event.assert_approved()
    get(scheduled_events.url)
    nobody = "nobody approved it; it is Scheduled; 1 poll so far"
    for wait, what in ((event.wait_approved, "approved"), (event.wait_started, "started"), (event.wait_gone, "gone")):
        with pytest.raises(AssertionError, match=said(rf"is not {what} after 0\.05 s; {nobody}")):
            wait(timeout=0.05)
    scheduled_events.advance("15m")
    event.assert_never_approved()


@VIRTUAL
def test_what_comes_too_late_is_no_approval_in_time(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot(takes="1m")
    scheduled_events.advance("15m")
    approve(scheduled_events.url, event.id.lower())
    event.wait_approved(timeout=60)
    event.assert_approved(by="web-0")
    late = f"was to be approved by web-0 before {event.not_before:%H:%M:%S}, but web-0 approved it at TIME"
    with pytest.raises(AssertionError, match=said(late, "Started")):
        event.assert_approved(by="web-0", before_not_before=True)


@VIRTUAL
def test_what_is_carried_out_too_late_was_not_in_time(scheduled_events: ScheduledEvents) -> None:
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
    if canceled:
        event.cancel()
    else:
        scheduled_events.advance("2m")
    approve(scheduled_events.url, event.id)
    seen = "approved, but web-0 requested it and got 200 after its end$"
    with pytest.raises(AssertionError, match=seen):
        event.assert_approved()
    with pytest.raises(AssertionError, match=seen):
        event.assert_never_approved()


def test_who_approves_as_well_is_seen(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot("web-0", "web-1")
    for vm in ("web-0", "web-1"):
        approve(scheduled_events.url_of(vm), event.id)
        event.assert_approved(by=vm, before_not_before=True)


def test_a_refused_approval_is_none(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot()
    with scheduled_events.fault("error-503", on="approvals"), pytest.raises(urllib.error.HTTPError):
        approve(scheduled_events.url, event.id)
    with scheduled_events.fault("reset", on="approvals"), pytest.raises(OSError, match="reset"):
        approve(scheduled_events.url, event.id)
    seen = "but web-0 requested it and got 503, web-0 requested it and got no response$"
    with pytest.raises(AssertionError, match=seen):
        event.assert_approved()
    # Whoever asks would have done it, were it not for the fault.
    with pytest.raises(AssertionError, match=seen):
        event.assert_never_approved()
    assert not event.approved
    assert [request.status for request in event.requests] == [503, None]


def test_an_operator_may_approve_and_cancel(scheduled_events: ScheduledEvents) -> None:
    event, other = scheduled_events.reboot(), scheduled_events.freeze()
    event.approve(by="alice")
    event.assert_approved(by="alice", before_not_before=True)
    assert event.requests == []
    other.cancel()
    other.wait_gone(timeout=60)
    assert other.status == "Canceled"
    other.assert_never_approved()


@pytest.mark.parametrize(
    ("wait", "act"),
    [
        (AnnouncedEvent.wait_approved, AnnouncedEvent.approve),
        (AnnouncedEvent.wait_started, AnnouncedEvent.approve),
        (AnnouncedEvent.wait_gone, AnnouncedEvent.cancel),
    ],
)
def test_a_wait_ends_when_it_has_come(
    scheduled_events: ScheduledEvents, wait: Callable[..., None], act: Callable[[AnnouncedEvent], None]
) -> None:
    event = scheduled_events.reboot()
    other = threading.Timer(0.05, act, [event])
    other.start()
    wait(event, timeout=60)
    other.join(60)
    assert re.match(NAMED.format(status="Started" if act is AnnouncedEvent.approve else "Canceled"), repr(event))


@VIRTUAL
def test_a_handler_in_the_same_event_loop(scheduled_events: ScheduledEvents) -> None:
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

    asyncio.run(test())


@VIRTUAL
def test_the_event_loop_goes_on_while_it_is_awaited(scheduled_events: ScheduledEvents) -> None:
    async def approve(event: AnnouncedEvent) -> None:
        await asyncio.sleep(0.05)
        event.approve(by="alice")

    async def test() -> None:
        event, other = scheduled_events.reboot(), scheduled_events.freeze()
        await asyncio.gather(event.approved(60), event.started(60), approve(event))
        message = said("is not approved after 0 s; nobody approved it; it is Scheduled; 0 polls so far")
        with pytest.raises(AssertionError, match=message.replace("Reboot", "Freeze")):
            await other.approved(timeout=0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.gone(60), 0.02)

    asyncio.run(test())


Wait = Callable[[AnnouncedEvent], object]


@pytest.mark.parametrize(
    ("wait", "blocking", "awaited"),
    [
        (AnnouncedEvent.wait_approved, "wait_approved()", "event.approved()"),
        (AnnouncedEvent.wait_started, "wait_started()", "event.started()"),
        (AnnouncedEvent.wait_gone, "wait_gone()", "event.gone()"),
    ],
)
@VIRTUAL
def test_a_wait_that_would_block_the_event_loop_says_so(
    scheduled_events: ScheduledEvents, wait: Wait, blocking: str, awaited: str
) -> None:
    async def test() -> None:
        event = scheduled_events.reboot()
        with pytest.raises(errors.RefusedError) as refused:
            wait(event)
        assert refused.value.message == (
            f"`{blocking}` would block the running event loop, and with it every handler there: use `await {awaited}`"
        )
        # In a thread of its own it may block.
        event.cancel()
        await asyncio.to_thread(event.wait_gone)

    asyncio.run(test())


def test_what_is_to_be_awaited_says_so_where_nothing_can(scheduled_events: ScheduledEvents) -> None:
    message = r"^`gone\(\)` is to be awaited in an asyncio test: here, use `wait_gone\(\)`$"
    with pytest.raises(errors.RefusedError, match=message):
        asyncio.run(scheduled_events.reboot().gone())


@VIRTUAL
def test_a_refused_request_is_told_with_its_reason(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot()
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError):
            OPENER.open(scheduled_events.url)
    header = (
        "2 requests were refused: web-0 GET /metadata/scheduledevents?api-version=2020-07-01: 400, "
        "Bad request. Required metadata header not specified (2 times)"
    )
    with pytest.raises(AssertionError, match=said(f"is not approved after .*; 2 polls so far; {re.escape(header)}")):
        event.wait_approved(timeout=0)
    scheduled_events.requests.clear()
    with pytest.raises(urllib.error.HTTPError):
        approve(scheduled_events.url, "it")
    with pytest.raises(AssertionError, match=r"; 1 request was refused: web-0 POST .*: 400, .*'it' .* is not a GUID"):
        event.assert_approved()
    # A refusal that a fault made is told by its name, among what was asked.
    scheduled_events.requests.clear()
    with scheduled_events.fault("error-503"), pytest.raises(urllib.error.HTTPError):
        get(scheduled_events.url)
    with pytest.raises(AssertionError, match=r"nobody approved it; it is Scheduled$"):
        event.assert_approved()
