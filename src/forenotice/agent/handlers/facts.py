"""The facts about an event, as handlers get them: variables, one JSON object, and templates with variables in them."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from string import Template
from urllib.parse import quote_plus

import msgspec

from forenotice.agent.handlers import Work
from forenotice.agent.rules.saga import Step
from forenotice.client.events import Event
from forenotice.programs.process import plain
from forenotice.wire import dates

LONGEST = 16 * 1024
"""Bytes of one variable; a kernel refuses to start a program with more than 128 KiB in one."""
Escape = Callable[[str], str]


def document(work: Work) -> dict[str, object]:
    """The JSON on a command's standard input: `event` in the words of the protocol, as it was listed."""
    return {
        "phase": work.phase.value,
        "handler": work.handler,
        "attempt": work.attempt,
        "name": work.me,
        "event": work.event.as_listed(),
        "not_before": _moment(work.event.deadline),
        "deadline": _moment(work.deadline),
        "seconds_left": round(work.seconds_left, 3),
        "pause_seconds": work.pause,
        "clock_ahead": work.event.ahead,
    }


def encoded(work: Work) -> bytes:
    return msgspec.json.encode(document(work)) + b"\n"


def environment(work: Work) -> dict[str, str]:
    return {name: plain(_bounded(value(work))) for name, value in _VARIABLES.items()}


def marks(event: Event, step: Step) -> dict[str, str]:
    """Those variables that identify a process of this attempt."""
    return {
        "FORENOTICE_PHASE": step.phase.value,
        "FORENOTICE_HANDLER": step.handler,
        "FORENOTICE_ATTEMPT": str(step.attempt),
        "FORENOTICE_EVENT_ID": plain(_bounded(event.id)),
    }


def fill(template: str, variables: Mapping[str, str], escape: Escape = str) -> str:
    """Unknown variables stay as they are: an odd message is better than none."""
    return Template(template).safe_substitute({name: escape(value) for name, value in variables.items()})


def template_flaw(text: str) -> str:
    template = Template(text)
    if not template.is_valid():
        return "a $ stands alone: write $$ for a dollar sign"
    unknown = sorted(set(template.get_identifiers()) - set(NAMES))
    if unknown:
        return f"${unknown[0]} is not known: the names are {', '.join(NAMES)}, and $$ is a dollar sign"
    return ""


def escape_for(content_type: str) -> Escape:
    """So that a value cannot end the string around it."""
    kind = content_type.partition(";")[0].strip().lower()
    if re.fullmatch(r"application/(.+\+)?json|text/json", kind):
        return lambda value: msgspec.json.encode(value).decode()[1:-1]
    return quote_plus if kind == "application/x-www-form-urlencoded" else str


def _bounded(text: str) -> str:
    return text[:LONGEST].encode(errors="replace")[:LONGEST].decode(errors="ignore")


def _resources(work: Work) -> str:
    """Cut between names if too long: part of a name could be another VM's."""
    text = " ".join(work.event.resources)
    return text if _bounded(text) == text else _bounded(text).rpartition(" ")[0]


def _duration(work: Work) -> str:
    return "" if work.event.duration_seconds is None else str(work.event.duration_seconds)


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else dates.iso(moment)


def _pause(seconds: float | None) -> str:
    """0: it was measured, and there was none. Empty: unknown."""
    return "" if seconds is None else f"{seconds:.3f}" if seconds else "0"


_VARIABLES: Mapping[str, Callable[[Work], str]] = {
    "FORENOTICE_PHASE": lambda work: work.phase.value,
    "FORENOTICE_HANDLER": lambda work: work.handler,
    "FORENOTICE_ATTEMPT": lambda work: str(work.attempt),
    "FORENOTICE_NAME": lambda work: work.me,
    "FORENOTICE_EVENT_ID": lambda work: work.event.id,
    "FORENOTICE_EVENT_TYPE": lambda work: work.event.type,
    "FORENOTICE_EVENT_STATUS": lambda work: work.event.status,
    "FORENOTICE_EVENT_SOURCE": lambda work: work.event.source or "",
    "FORENOTICE_EVENT_DESCRIPTION": lambda work: work.event.description or "",
    "FORENOTICE_RESOURCES": _resources,
    "FORENOTICE_DURATION": _duration,
    "FORENOTICE_NOT_BEFORE": lambda work: _moment(work.event.deadline) or "",
    "FORENOTICE_DEADLINE": lambda work: _moment(work.deadline) or "",
    "FORENOTICE_SECONDS_LEFT": lambda work: str(math.floor(work.seconds_left)),
    "FORENOTICE_PAUSE_SECONDS": lambda work: _pause(work.pause),
}
# The names that azure-scheduledevents-manager gave them.
_VARIABLES = {
    **_VARIABLES,
    **{name: _VARIABLES[f"FORENOTICE_{name}"] for name in ("EVENT_ID", "EVENT_TYPE", "EVENT_STATUS", "EVENT_SOURCE")},
    "EVENT_DESCRIPTION": _VARIABLES["FORENOTICE_EVENT_DESCRIPTION"],
    "EVENT_NOTBEFORE": lambda work: work.event.not_before_text,
    "EVENT_RESOURCES": _resources,
    "EVENT_RESOURCETYPE": lambda work: work.event.resource_type,
    "EVENT_DURATION": _duration,
}
NAMES = tuple(_VARIABLES)
"""Of all variables: what templates may use."""
