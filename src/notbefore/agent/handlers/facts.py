"""The facts about an event, as handlers are told them: as variables, and as one JSON object."""

import math
from datetime import datetime

import msgspec

from notbefore.agent.handlers.interface import Work
from notbefore.wire import dates

LONGEST = 16 * 1024
"""Bytes of one variable; a kernel refuses to start a program with more than 128 KiB in one."""


def document(work: Work) -> dict[str, object]:
    """What is JSON on a command's stdin: `event` in the words of the protocol, exactly as it was listed."""
    event = msgspec.to_builtins(work.event)
    return {
        "phase": work.phase.value,
        "handler": work.handler,
        "attempt": work.attempt,
        "name": work.me,
        "event": {key: value for key, value in event.items() if key != "ClockAhead"},
        "not_before": _moment(work.event.deadline),
        "deadline": _moment(work.deadline),
        "seconds_left": round(work.seconds_left, 3),
        "pause_seconds": work.pause,
        "clock_ahead": work.event.ahead,
    }


def encoded(work: Work) -> bytes:
    return msgspec.json.encode(document(work)) + b"\n"


def environment(work: Work) -> dict[str, str]:
    """The same as variables: ours, and the names that azure-scheduledevents-manager gave them."""
    event = work.event
    resources = _whole_words(plain(" ".join(event.resources)))
    told = {
        "NOTBEFORE_PHASE": work.phase.value,
        "NOTBEFORE_HANDLER": work.handler,
        "NOTBEFORE_ATTEMPT": str(work.attempt),
        "NOTBEFORE_NAME": work.me,
        "NOTBEFORE_EVENT_ID": event.id,
        "NOTBEFORE_EVENT_TYPE": event.type,
        "NOTBEFORE_EVENT_STATUS": event.status,
        "NOTBEFORE_EVENT_SOURCE": event.source,
        "NOTBEFORE_EVENT_DESCRIPTION": event.description,
        "NOTBEFORE_RESOURCES": resources,
        "NOTBEFORE_DURATION": str(event.duration_seconds),
        "NOTBEFORE_NOT_BEFORE": _moment(event.deadline) or "",
        "NOTBEFORE_DEADLINE": _moment(work.deadline) or "",
        "NOTBEFORE_SECONDS_LEFT": str(math.floor(work.seconds_left)),
        "NOTBEFORE_PAUSE_SECONDS": "" if work.pause is None else f"{work.pause:.3f}",
        "EVENT_ID": event.id,
        "EVENT_TYPE": event.type,
        "EVENT_STATUS": event.status,
        "EVENT_SOURCE": event.source,
        "EVENT_DESCRIPTION": event.description,
        "EVENT_NOTBEFORE": event.not_before_text,
        "EVENT_RESOURCES": resources,
        "EVENT_RESOURCETYPE": event.resource_type,
        "EVENT_DURATION": str(event.duration_seconds),
    }
    return {name: _bounded(plain(value)) for name, value in told.items()}


def plain(text: str) -> str:
    """Text from outside without what could end a variable, break a line or steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _bounded(text: str) -> str:
    return text.encode()[:LONGEST].decode(errors="ignore")


def _whole_words(text: str) -> str:
    """A name that is cut short could be that of another VM."""
    return text if len(text.encode()) <= LONGEST else _bounded(text).rpartition(" ")[0]


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else dates.iso(moment)
