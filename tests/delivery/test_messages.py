"""Which entries a subscription wants."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.store.test_subscriptions import PAGER

from forenotice.core import errors
from forenotice.core.journal import Entry
from forenotice.core.operations import Status
from forenotice.delivery import messages
from forenotice.delivery.messages import EntryFilter

AT = datetime(2026, 1, 5, tzinfo=UTC)
EVERYTHING = replace(PAGER, types=(), groups="", statuses=())


def entry(action: str, **about: str) -> Entry:
    return Entry(at=AT, action=action, **about)  # type: ignore[arg-type]


STARTED = entry("event.started", event="E", operation="o", scope="group:web-1")
APPROVED = entry("event.approved", event="E", operation="o", scope="vm:db")
HELD = entry("operation.held", operation="o")
ADDED = entry("host.added", host="a")


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ({}, [STARTED, APPROVED, HELD, ADDED]),
        ({"types": ["event.*"]}, [STARTED, APPROVED]),
        ({"types": ["forenotice.event.started", "host.*"]}, [STARTED, ADDED]),
        ({"types": ["*"]}, [STARTED, APPROVED, HELD, ADDED]),
        ({"groups": "web-*"}, [STARTED]),
        ({"groups": "web-*,vm:db"}, [STARTED, APPROVED]),
        ({"statuses": ("Started",)}, [STARTED]),
        ({"statuses": ("Scheduled", "Failed")}, [APPROVED]),
        ({"types": ["event.*"], "groups": "vm:*", "statuses": ("Started",)}, []),
    ],
)
def test_what_is_wanted(chosen: dict[str, object], wanted: list[Entry]) -> None:
    given = {name: messages.types(value) if name == "types" else value for name, value in chosen.items()}  # type: ignore[arg-type]
    subscription = replace(EVERYTHING, **given)  # type: ignore[arg-type]
    assert [each for each in (STARTED, APPROVED, HELD, ADDED) if each in EntryFilter(subscription)] == wanted


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ("event.scheduled", Status.SCHEDULED),
        ("event.approved", Status.SCHEDULED),
        ("event.postponed", Status.SCHEDULED),
        ("event.started", Status.STARTED),
        ("event.completed", Status.COMPLETED),
        ("event.canceled", Status.CANCELED),
        ("event.failed", Status.FAILED),
    ],
)
def test_the_status_of_an_event_once_this_had_happened(action: str, status: Status) -> None:
    assert messages.status(entry(action, event="E")) is status
    assert messages.status(entry(action)) is None
    assert [messages.lane(each) for each in (STARTED, HELD, ADDED)] == ["E", "o", ""]


NO_TYPE = "is not a type: give one such as"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        *((pattern, NO_TYPE) for pattern in ("", "Event.*", "event.[ab]", "a" * 65, "event started")),
        ("event.begun", "forenotice.event.begun: did you mean forenotice.event."),
        ("hots.*", r"forenotice.hots.\*: did you mean forenotice.host.\*\?"),
        ("*.nonsense", r"there are .*forenotice.driver.\*, forenotice.edge.\*, "),
    ],
)
def test_what_no_entry_can_be_of_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(errors.RefusedError, match=reason):
        messages.types([pattern])
