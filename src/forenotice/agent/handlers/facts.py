"""The facts about an event, as handlers get them: variables, one JSON object, and templates with variables in them."""

import math
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from string import Template
from urllib.parse import quote_plus

import msgspec

from forenotice.agent.handlers import Work
from forenotice.agent.rules.policy import Phase
from forenotice.agent.rules.saga import Step
from forenotice.client.events import Event
from forenotice.programs.process import plain
from forenotice.wire import dates

LONGEST = 16 * 1024
"""Bytes of one variable; a kernel refuses to start a program with more than 128 KiB in one."""
Escape = Callable[[str], str]


def document(work: Work) -> dict[str, object]:
    """The JSON on a command's standard input: `event` in the words of the protocol, as it was listed."""
    deadline = work.event.deadline
    return {
        "phase": work.phase.value,
        "handler": work.handler,
        "attempt": work.attempt,
        "name": work.me,
        "event": work.event.as_listed(),
        "not_before": deadline and dates.iso(deadline),
        "deadline": dates.iso(work.deadline),
        "seconds_left": round(work.seconds_left, 3),
        "pause_seconds": work.pause,
        "clock_ahead": work.event.ahead,
    }


def encoded(work: Work) -> bytes:
    return msgspec.json.encode(document(work)) + b"\n"


def environment(work: Work) -> dict[str, str]:
    event = work.event
    resources = " ".join(event.resources)
    if _bounded(resources) != resources:
        # Cut between names: part of a name could be another VM's.
        resources = _bounded(resources).rpartition(" ")[0]
    duration = "" if event.duration_seconds is None else str(event.duration_seconds)
    # 0: it was measured, and there was none. Empty: unknown.
    pause = "" if work.pause is None else f"{work.pause:.3f}" if work.pause else "0"
    both = {
        "EVENT_ID": event.id,
        "EVENT_TYPE": event.type,
        "EVENT_STATUS": event.status,
        "EVENT_SOURCE": event.source or "",
        "EVENT_DESCRIPTION": event.description or "",
    }
    variables = {
        "FORENOTICE_PHASE": work.phase.value,
        "FORENOTICE_HANDLER": work.handler,
        "FORENOTICE_ATTEMPT": str(work.attempt),
        "FORENOTICE_NAME": work.me,
        **{f"FORENOTICE_{name}": value for name, value in both.items()},
        "FORENOTICE_RESOURCES": resources,
        "FORENOTICE_DURATION": duration,
        "FORENOTICE_NOT_BEFORE": dates.iso(event.deadline) if event.deadline else "",
        "FORENOTICE_DEADLINE": dates.iso(work.deadline),
        "FORENOTICE_SECONDS_LEFT": str(math.floor(work.seconds_left)),
        "FORENOTICE_PAUSE_SECONDS": pause,
        # The names that azure-scheduledevents-manager gave them.
        **both,
        "EVENT_NOTBEFORE": event.not_before_text,
        "EVENT_RESOURCES": resources,
        "EVENT_RESOURCETYPE": event.resource_type,
        "EVENT_DURATION": duration,
    }
    return {name: plain(_bounded(value)) for name, value in variables.items()}


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


_NOTHING = Work(
    handler="",
    phase=Phase.PREPARE,
    event=Event(id="", status="", type=""),
    me="",
    attempt=1,
    deadline=datetime(2000, 1, 1, tzinfo=UTC),
    seconds_left=0.0,
    stop=threading.Event(),
)
NAMES = tuple(environment(_NOTHING))
"""Of all variables: what templates may use."""
