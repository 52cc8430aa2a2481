"""A document from the bytes that an endpoint sent, bearing with whatever can be borne."""

from collections.abc import Mapping
from typing import Any

import msgspec

from forenotice.client.events import Document, Event

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def decode(body: bytes, ahead: float = 0.0) -> Document:
    """ValueError: it is none. What is half there is none either: it must not pass for "no events".

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


class _Sent(msgspec.Struct):
    DocumentIncarnation: msgspec.Raw
    Events: list[Any]


def _incarnation(sent: msgspec.Raw) -> int:
    """It is shown, and compared where our own service sent it: 0 where it is no number, or one beyond all bounds."""
    try:
        value = msgspec.json.decode(sent)
        return int(value) if isinstance(value, int | float | str) else 0
    except (ValueError, OverflowError):
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
                duration_seconds=_seconds(value.get("DurationInSeconds")),
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


def _seconds(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None
