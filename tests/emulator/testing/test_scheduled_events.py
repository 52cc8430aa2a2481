"""What tests of handlers use: events at will, time that is real or virtual, faults, and who was silent for too long."""

import gc
import os
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from time import perf_counter
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.client.both import QUICK
from tests.emulator.handling import OPENER, approve, get, polling

from forenotice import Client
from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.emulator import ScheduledEvents

VIRTUAL = pytest.mark.scheduled_events(time="virtual")


def deadline(event: dict[str, Any]) -> Any:
    return parsedate_to_datetime(event["NotBefore"])


@VIRTUAL
def test_each_type_has_the_notice_of_its_kind(scheduled_events: ScheduledEvents) -> None:
    for method, kind, minutes in (
        (scheduled_events.reboot, "Reboot", 15),
        (scheduled_events.redeploy, "Redeploy", 10),
        (scheduled_events.freeze, "Freeze", 15),
        (scheduled_events.preempt, "Preempt", 0.5),
        (scheduled_events.terminate, "Terminate", 5),
    ):
        event = method()
        (shown,) = get(scheduled_events.url)["Events"]
        assert (shown["EventId"], shown["EventType"], shown["EventStatus"]) == (event.id, kind, "Scheduled")
        assert shown["Resources"] == ["web-0"] == list(event.resources)
        assert deadline(shown) == event.not_before == scheduled_events.now + timedelta(minutes=minutes)
        event.cancel()
    for word, kind in (("reboot", "Reboot"), ("Preempt", "Preempt"), (Kind.RESTART, "Reboot")):
        assert scheduled_events.announce(word).type == kind


@VIRTUAL
def test_anything_can_be_announced_and_a_failure_is_started_at_once(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.fail(takes="10m")
    (shown,) = get(scheduled_events.url)["Events"]
    assert (shown["EventType"], shown["EventStatus"], shown["NotBefore"]) == ("Redeploy", "Started", "")
    scheduled_events.advance("10m")
    assert (event.status, scheduled_events.events) == ("Completed", [])
    scheduled_events.announce("live-migration", "a", "b", notice="7s", description="Moved.", duration=3)
    (shown,) = get(scheduled_events.url)["Events"]
    assert (shown["Resources"], shown["Description"], shown["DurationInSeconds"]) == (["a", "b"], "Moved.", 3)
    assert deadline(shown) == scheduled_events.now + timedelta(seconds=7)


@pytest.mark.parametrize("start", ["2026-01-31T13:00:00+01:00", datetime(2026, 1, 31, 12, tzinfo=UTC)])
def test_virtual_time_starts_where_it_is_told_to(start: str | datetime) -> None:
    with ScheduledEvents(time="virtual", start=start) as scheduled_events, Client(scheduled_events.endpoint) as client:
        assert scheduled_events.now == datetime(2026, 1, 31, 12, tzinfo=UTC)
        scheduled_events.reboot(notice="15m")
        (shown,) = get(scheduled_events.url)["Events"]
        assert shown["NotBefore"] == "Sat, 31 Jan 2026 12:15:00 GMT"
        # By the Date of the answer, whatever this machine's clock says.
        assert 800 < client.events()[0].seconds_left <= 900
        scheduled_events.play("reboot")
        scheduled_events.reset()
        assert scheduled_events.now == datetime(2026, 1, 31, 12, tzinfo=UTC)
        scheduled_events.advance("1h")
        assert scheduled_events.now == datetime(2026, 1, 31, 13, tzinfo=UTC)


@pytest.mark.parametrize(
    "start",
    [
        *("", "soon", 5, "2026-01-31T12:00:00", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"),
        datetime(2026, 1, 31, microsecond=5, tzinfo=UTC),
    ],
)
def test_a_start_that_documents_could_not_say_is_refused(start: Any) -> None:
    with pytest.raises(errors.RefusedError) as refused:
        ScheduledEvents(time="virtual", start=start)
    right = "start is a whole second with its zone, from 1970 on, such as 2026-01-31T12:00:00Z"
    assert refused.value.message == f"{right}, not {start}"
    with pytest.raises(errors.RefusedError, match=r'^start is for virtual time: give time="virtual" too$'):
        ScheduledEvents(start="2026-01-31T12:00:00Z")


def test_real_time_passes_and_short_notices_are_allowed(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.preempt(notice="0s")
    event.wait_started(timeout=60)
    with pytest.raises(
        AssertionError, match=r"is not gone after 0\.1 s; nobody approved it; it is Started; 0 polls so far"
    ):
        event.wait_gone(timeout=0.1)
    scheduled_events.advance("2s")
    assert event.status == "Completed"


@pytest.mark.scheduled_events(speed=900)
def test_speed_divides_durations_and_dates_stay_true(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.reboot(notice="15m", takes="30m")
    assert timedelta(0) < event.not_before - scheduled_events.now <= timedelta(seconds=2)
    scheduled_events.advance("30m")
    assert event.status == "Started"
    scheduled_events.advance("30m")
    assert event.status == "Completed"


@pytest.mark.scheduled_events(as_vm="app_3", vms={"app_0": 0, "app_1": 1})
def test_several_vms_have_a_place_each_and_share_a_document(scheduled_events: ScheduledEvents) -> None:
    event = scheduled_events.freeze("app_0")
    assert scheduled_events.as_vm == "app_3"
    assert scheduled_events.endpoint_of("app_0") == scheduled_events.endpoint_of("app_0") != scheduled_events.endpoint
    assert get(scheduled_events.url) == get(scheduled_events.url_of("app_0")) == get(scheduled_events.url_of("new"))
    for endpoint, name in (
        (scheduled_events.endpoint, "app_3"),
        (scheduled_events.endpoint_of("app_1"), "app_1"),
        (scheduled_events.endpoint_of("new"), "new"),
    ):
        with Client(endpoint) as client:
            assert client.me == name
    with pytest.raises(errors.RefusedError, match="different update domains"):
        scheduled_events.freeze("app_0", "app_1")
    approve(scheduled_events.url_of("app_0"), event.id)
    event.assert_approved(by="app_0", before_not_before=True)


def test_a_hundred_side_by_side() -> None:
    many = [ScheduledEvents(as_vm=f"vm-{number}") for number in range(100)]
    for each in many:
        each.__enter__()
    try:
        for each in many:
            each.reboot()
        assert [get(each.url)["Events"][0]["Resources"] for each in many] == [[each.as_vm] for each in many]
        assert len({each.endpoint for each in many}) == 100
    finally:
        for each in many:
            each.__exit__(None, None, None)


@VIRTUAL
def test_faults_have_blocks_amounts_times_and_ends(scheduled_events: ScheduledEvents) -> None:
    scheduled_events.reboot()
    with scheduled_events.fault("error-500") as fault:
        assert fault.name == "error-500"
        with pytest.raises(urllib.error.HTTPError, match="500"):
            get(scheduled_events.url)
    truth = get(scheduled_events.url)
    scheduled_events.fault("clock-skew", amount="-5m", lasts="1h")
    assert deadline(truth["Events"][0]) - deadline(get(scheduled_events.url)["Events"][0]) == timedelta(minutes=5)
    scheduled_events.fault("clock-skew", amount=timedelta(minutes=1), on="polls")
    assert deadline(get(scheduled_events.url)["Events"][0]) - deadline(truth["Events"][0]) == timedelta(minutes=1)
    scheduled_events.clear_faults()
    assert get(scheduled_events.url) == truth
    scheduled_events.fault("error-429", times=1)
    with pytest.raises(urllib.error.HTTPError, match="429"):
        get(scheduled_events.url)
    scheduled_events.fault("iso-dates", lasts="10s")
    assert get(scheduled_events.url) != truth
    scheduled_events.advance("10s")
    assert get(scheduled_events.url) == truth


# Who was silent


def say_nothing(seconds: float) -> None:
    """This is what is judged, so it takes its time."""
    threading.Event().wait(seconds)


def test_a_vm_that_never_polls_is_silent_and_one_that_polls_often_is_not(scheduled_events: ScheduledEvents) -> None:
    get(scheduled_events.url_of("quiet"))
    with pytest.raises(urllib.error.HTTPError, match="400"):
        get(scheduled_events.url.partition("?")[0])
    with pytest.raises(AssertionError, match=r"^web-0 was to poll every 1 s, but it did not poll at all; 1 request"):
        scheduled_events.assert_polled_at_least()
    # A poll that is refused by a fault counts.
    with scheduled_events.fault("error-410"), pytest.raises(urllib.error.HTTPError, match="410"):
        get(scheduled_events.url)
    scheduled_events.assert_polled_at_least()
    with polling(scheduled_events.url):
        say_nothing(0.4)
        scheduled_events.assert_polled_at_least(hz=4)
        with pytest.raises(AssertionError, match=r"^quiet was to poll every 0\.25 s, but once it was silent for 0"):
            scheduled_events.assert_polled_at_least(hz=4, by="quiet")


def test_who_pauses_was_silent_also_when_it_has_gone_on(scheduled_events: ScheduledEvents) -> None:
    get(scheduled_events.url)
    say_nothing(0.2)
    expected = r"^web-0 was to poll every 0\.1 s, but once it was silent for 0\.\d s \(\d polls in all\)$"
    with pytest.raises(AssertionError, match=expected):
        scheduled_events.assert_polled_at_least(hz=10)
    for _ in range(3):
        get(scheduled_events.url)
    with pytest.raises(AssertionError, match=expected):
        scheduled_events.assert_polled_at_least(hz=10)
    scheduled_events.assert_polled_at_least(hz=1)


def test_who_waits_for_an_answer_is_not_silent(scheduled_events: ScheduledEvents) -> None:
    with Client(pace=QUICK) as client:
        thread = threading.Thread(target=lambda: list(client.follow()))
        thread.start()
        until(lambda: len(scheduled_events.requests) and scheduled_events._emulator.waiting)
        say_nothing(0.4)
        # Neither while it waits nor when it has waited.
        scheduled_events.assert_polled_at_least(hz=5)
        scheduled_events.reboot()
        until(lambda: len(scheduled_events.requests.polls) >= 2)
        scheduled_events.assert_polled_at_least(hz=5)
        client.close()
        thread.join(60)
    say_nothing(0.4)
    with pytest.raises(AssertionError, match="silent"):
        scheduled_events.assert_polled_at_least(hz=5)


def test_who_has_given_up_does_not_wait_for_an_answer(scheduled_events: ScheduledEvents) -> None:
    scheduled_events.fault("latency", amount="60s")
    with pytest.raises(TimeoutError):
        OPENER.open(urllib.request.Request(scheduled_events.url, headers={"Metadata": "true"}), timeout=0.4)
    # It was not silent until then.
    scheduled_events.assert_polled_at_least(hz=5)
    say_nothing(0.35)
    with pytest.raises(AssertionError, match=r"it was silent for 0\.[3-9] s \(1 polls in all\)$"):
        scheduled_events.assert_polled_at_least(hz=5)


# What is refused, and what is left


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"time": "virtul"}, 'time is "real" or "virtual", not \'virtul\''),
        ({"speed": 0}, "speed is how many times as fast: a number from 0.01 to 100000, not 0"),
        ({"speed": 1e-9}, "a number from 0.01 to 100000, not 1e-09"),
        ({"speed": float("inf")}, "a number from 0.01 to 100000, not inf"),
        ({"speed": float("nan")}, "a number from 0.01 to 100000, not nan"),
        ({"speed": "60"}, "a number from 0.01 to 100000, not '60'"),
        ({"as_vm": "a b"}, "'a b' is not a VM name"),
        ({"as_vm": 5}, "5 is not a VM name"),
        ({"vms": {"a": "x"}}, "a is in update domain 0, 1 and so on, not 'x'"),
        ({"vms": ["a b"]}, "'a b' is not a VM name"),
        ({"vms": {"web-0": 1}}, "web-0 is in update domain 0, not 1"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], said: str) -> None:
    before = left()
    with pytest.raises(errors.ForenoticeError, match=said), ScheduledEvents(**settings):
        raise AssertionError("not reached")
    assert left() == before


def test_what_makes_no_sense_is_refused(scheduled_events: ScheduledEvents) -> None:
    with pytest.raises(errors.RefusedError, match="no kind of event 'live-migraton'; did you mean 'live-migration'"):
        scheduled_events.announce("live-migraton")
    names: Any = ["a", "b"]
    with pytest.raises(errors.RefusedError, match=r"\['a', 'b'\] is not a VM name: give .* each by itself"):
        scheduled_events.reboot(names)
    for hz in (0, -1, float("inf"), float("nan")):
        with pytest.raises(errors.RefusedError, match=f"hz is how often a second: a number above 0, not {hz}"):
            scheduled_events.assert_polled_at_least(hz=hz)
    with pytest.raises(ValueError, match="'soon' is not a duration"):
        scheduled_events.reboot(notice="soon")
    with pytest.raises(errors.RefusedError, match="nothing is emulated yet"):
        ScheduledEvents().reboot()
    assert scheduled_events.events == []


def test_one_name_is_not_taken_for_its_letters_and_a_scenario_leaves_out_other_vms() -> None:
    with ScheduledEvents(vms="other") as events:
        get(events.url_of("other"))
        assert events.play("reboot", resources="app_3").events[0].resources == ("app_3",)
        assert events.as_vm == "app_3"
        for _ in range(2):
            events.reset()
            assert get(events.url_of("other"))["Events"] == events.events
            events.play("reboot")


def test_what_has_ended_can_only_be_looked_at() -> None:
    with ScheduledEvents() as events:
        event = events.reboot()
        events.endpoint_of("web-0")
        get(events.url)
        with pytest.raises(errors.RefusedError, match="it runs already"):
            events.__enter__()
    assert (event.status, len(events.requests), len(events.events)) == ("Scheduled", 1, 1)
    acts: list[Callable[[], object]] = [
        events.reboot,
        event.approve,
        event.cancel,
        events.reset,
        events.assert_polled_at_least,
        lambda: events.endpoint_of("web-0"),
        lambda: events.advance("1m"),
        lambda: events.fault("reset"),
        lambda: events.play("reboot"),
        lambda: events.__exit__(None, None, None),
    ]
    for act in acts:
        with pytest.raises(errors.RefusedError, match="ended"):
            act()
    assert event.status == "Scheduled"


def test_nothing_is_left_behind() -> None:
    events = ScheduledEvents()
    with events:
        get(events.url)
    before = left()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            with events:
                pass
        with events, Client(events.endpoint, pace=QUICK) as client:
            events.endpoint_of("other")
            threading.Thread(target=lambda: list(client.follow())).start()
            until(lambda: events._emulator.waiting)
        until(lambda: left() == before)
    assert len(events.requests) >= 1


def left() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def test_it_starts_in_a_moment() -> None:
    def seconds() -> float:
        begin = perf_counter()
        with ScheduledEvents():
            return perf_counter() - begin

    # The best of some: the machine may be busy.
    assert min(seconds() for _ in range(10)) < 0.05
