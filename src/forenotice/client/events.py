"""What an endpoint announces: a document and its events, read from its bytes as tolerantly as is safe."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from forenotice.clock import MachineClock

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_HTTP_DATE = re.compile(
    rf"(?:[a-z]+,? +)?([0-9]{{1,2}})[ -]({'|'.join(_MONTHS)})[a-z]*[ -]([0-9]{{4}})"
    r" +([0-9]{1,2}):([0-9]{2}):([0-9]{2}) *(?:(?:gmt|utc|z)|([+-])([0-9]{2}):?([0-9]{2}))?",
    re.IGNORECASE,
)
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
_LAST = datetime(2200, 1, 1, tzinfo=UTC)


class Event(msgspec.Struct, frozen=True, kw_only=True):
    id: str = msgspec.field(name="EventId")
    status: str = msgspec.field(name="EventStatus")
    type: str = msgspec.field(name="EventType")
    resource_type: str = msgspec.field(name="ResourceType", default="VirtualMachine")
    resources: tuple[str, ...] = msgspec.field(name="Resources", default=())
    not_before_text: str = msgspec.field(name="NotBefore", default="")
    description: str | None = msgspec.field(name="Description", default=None)
    """This and what follows: None where the endpoint's version does not have it."""
    source: str | None = msgspec.field(name="EventSource", default=None)
    duration_seconds: int | None = msgspec.field(name="DurationInSeconds", default=None)
    """-1: the endpoint does not know."""
    ahead: float = msgspec.field(name="ClockAhead", default=0.0)
    """Seconds by which the endpoint's clock is ahead of this machine's; no endpoint sends it."""

    @property
    def started(self) -> bool:
        return self.status == "Started"

    @property
    def deadline(self) -> datetime | None:
        """NotBefore, by the endpoint's clock; None once it has started, or when it cannot be read."""
        return None if self.started else parse_date(self.not_before_text)

    @property
    def seconds_left(self) -> float:
        """Until the deadline, however wrong this machine's clock is; 0 without a deadline."""
        deadline = self.deadline
        if deadline is None:
            return 0.0
        return max(0.0, (deadline - MachineClock().now() - timedelta(seconds=self.ahead)).total_seconds())

    def as_listed(self) -> dict[str, object]:
        """With the keys of the protocol, as many as the endpoint's version has."""
        sent: dict[str, object] = msgspec.to_builtins(self)
        return {key: value for key, value in sent.items() if key != "ClockAhead" and value is not None}

    def names(self, me: str) -> bool:
        """Whether it is about this VM. Names are compared as Azure does, and 2017-03-01 put `_` before them."""
        return any(same_name(name, me) for name in self.resources)


def same_name(one: str, other: str) -> bool:
    return one.removeprefix("_").lower() == other.removeprefix("_").lower()


class Document(msgspec.Struct, frozen=True, kw_only=True):
    incarnation: int = msgspec.field(name="DocumentIncarnation")
    events: tuple[Event, ...] = msgspec.field(name="Events", default=())


NO_EVENTS = Document(incarnation=0)


class _Sent(msgspec.Struct):
    DocumentIncarnation: msgspec.Raw
    Events: list[Any]


def decode(body: bytes, ahead: float = 0.0) -> Document:
    """ValueError: it is no document. Half a document is none either: it must not pass for "no events".

    Keys may be missing, null, of the wrong kind or unknown, but not those without which nobody could act on an
    event: its id, status and type, and whom it is about.
    """
    try:
        found = msgspec.json.decode(body.removeprefix(_BYTE_ORDER_MARK), type=_Sent)
        return Document(
            incarnation=_incarnation(found.DocumentIncarnation),
            events=tuple(_event(each, ahead) for each in found.Events),
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _incarnation(sent: msgspec.Raw) -> int:
    """It is shown, and compared where our own service sent it: 0 where it is no number, or one beyond all bounds."""
    try:
        return _number(msgspec.json.decode(sent)) or 0
    except ValueError:
        return 0


def _event(value: Any, ahead: float) -> Event:
    match value:
        case {"EventId": str(event_id), "EventStatus": str(status), "EventType": str(kind)} if event_id:
            return Event(
                id=event_id,
                status=status,
                type=kind,
                resource_type=_text(value, "ResourceType") or "VirtualMachine",
                resources=_names(value.get("Resources")),
                not_before_text=(_text(value, "NotBefore") or "").strip(),
                description=_text(value, "Description"),
                source=_text(value, "EventSource"),
                duration_seconds=_number(value.get("DurationInSeconds")),
                ahead=ahead,
            )
    raise ValueError("one of its Events lacks EventId, EventStatus or EventType")


def _text(event: Mapping[str, object], key: str) -> str | None:
    found = event.get(key)
    return found if isinstance(found, str) else None


def _names(value: object) -> tuple[str, ...]:
    match value:
        case None:
            return ()
        case list() if all(isinstance(name, str) for name in value):
            return tuple(value)
    raise ValueError("the Resources of one of its Events are not a list of names")


def _number(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=1024)
def parse_date(text: str) -> datetime | None:
    """In UTC, which is also meant where no zone is given; the day's name does not count.

    None: it is blank or unreadable, or too far off to be meant, or to calculate with.
    """
    found = _HTTP_DATE.fullmatch(text.strip())
    try:
        moment = _from_http(*found.groups("")) if found else _from_iso(text.strip())
    except (ValueError, OverflowError):
        return None
    return moment if _FIRST <= moment < _LAST else None


def _from_http(
    day: str, month: str, year: str, hour: str, minute: str, second: str, sign: str, hours: str, minutes: str
) -> datetime:
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    at = datetime(
        int(year), _MONTHS.index(month.lower()) + 1, int(day), int(hour), int(minute), int(second), tzinfo=UTC
    )
    return at + offset if sign == "-" else at - offset


def _from_iso(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
