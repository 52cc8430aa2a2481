"""A policy as a form: what stands in its fields, and what they ask for."""

from collections.abc import Mapping
from typing import Any

from notbefore.control import models
from notbefore.core.fleet import Listening
from notbefore.portal import rendering
from notbefore.portal.visiting import Visit
from notbefore.service.calls import View

OF_ALL = ("listening", "auto_approve", "max_user_operations", "windows")
OF_GROUPS = ("terminate_notice_minutes", "max_unavailable", "min_available")
"""What a standalone VM cannot have."""

Fields = dict[str, str]


def listening(visit: Visit) -> Mapping[str, str]:
    """What each choice means."""
    silence = rendering.span(visit.service.timing.silence)
    return {
        Listening.AUTO: f"while it asks: from a first poll on, until it has been silent for {silence}",
        Listening.ALWAYS: "always: it is waited for, whether it asks or not",
        Listening.NEVER: "never: nobody there is waited for",
    }


def fields(policy: View) -> Fields:
    """As the form shows it."""
    minutes = policy["terminate_notice_minutes"]
    return {
        "listening": policy["listening"],
        "auto_approve": "yes" if policy["auto_approve"] else "",
        "terminate_notice_minutes": "" if minutes is None else f"{minutes:g}",
        **{name: _text(policy[name]) for name in ("max_user_operations", "max_unavailable", "min_available")},
        "windows": "\n".join(policy["windows"]),
        "reason": "",
    }


def given(visit: Visit) -> Fields:
    """As the form was sent, to be shown again."""
    return {name: visit.form.get(name, "").strip() for name in (*OF_ALL, *OF_GROUPS, "reason")}


def asked(visit: Visit, sent: Fields, *, grouped: bool) -> dict[str, Any]:
    """The whole policy: what is left empty is not limited."""
    values: dict[str, Any] = {
        "listening": sent["listening"],
        "auto_approve": bool(sent["auto_approve"]),
        "max_user_operations": _number(sent["max_user_operations"]),
        "windows": [line.strip() for line in sent["windows"].splitlines() if line.strip()],
    }
    if grouped:
        values |= {name: _number(sent[name]) for name in OF_GROUPS}
    return visit.asked(models.PolicyChange, values).given()


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _number(text: str) -> int | float | str | None:
    """None where nothing stands; what is no number stays as it is, and is refused in words."""
    if not text:
        return None
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
