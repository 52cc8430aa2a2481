"""A policy as a form: what stands in its fields, what they ask for, and what is wrong with them."""

import re
from collections.abc import Mapping
from typing import Any

from forenotice.core import errors
from forenotice.core.fleet import Listening
from forenotice.core.timing import SILENCE
from forenotice.portal import forms, renderer
from forenotice.portal.page import PageRequest
from forenotice.views.fleet import Policy, PolicyChange

AUTO_APPROVED = ("auto_approve_restart", "auto_approve_redeploy")
OF_ALL = ("listening", *AUTO_APPROVED, "max_user_operations", "windows")
OF_GROUPS = ("terminate_notice_minutes", "max_unavailable", "min_available")
"""What a standalone VM cannot have."""
LABELS: Mapping[str, str] = {
    "auto_approve_restart": "Users' restarts are approved by themselves",
    "auto_approve_redeploy": "Users' redeploys are approved by themselves",
    "max_user_operations": "Users' operations at once, at most",
    "terminate_notice_minutes": "Minutes' notice of a deletion",
    "max_unavailable": "VMs down at once for planned maintenance, at most",
    "min_available": "VMs that planned maintenance leaves, at least",
}
_NAMES = re.compile(rf"\b({'|'.join(LABELS)})\b")

Fields = dict[str, str]


LISTENING: Mapping[str, str] = {
    Listening.AUTO: f"while it asks: from a first poll on, until it has been silent for {renderer.span(SILENCE)}",
    Listening.ALWAYS: "always: it is waited for, whether it asks or not",
    Listening.NEVER: "never: nobody there is waited for",
}
"""What each choice means; in full hours, as notices are, whatever the speed."""


def form(policy: Policy | None, sent: Fields | None, error: errors.ForenoticeError | None) -> dict[str, Any]:
    """What a page needs that shows the policy and its form, again where what was sent is refused."""
    return {
        "given": sent or (_fields(policy) if policy else {}),
        "error": refusal(error.message) if error else "",
        "listening": LISTENING,
        "labels": LABELS,
    }


def refusal(message: str) -> str:
    """The API's sentence, with the names that fields have in the form."""
    return _NAMES.sub(lambda found: f"“{LABELS[found[1]]}”", message).replace("leave it out", "leave it empty")


def _fields(policy: Policy) -> Fields:
    """As the form shows it."""
    minutes = policy.terminate_notice_minutes
    return {
        "listening": policy.listening,
        **{name: "yes" if getattr(policy, name) else "" for name in AUTO_APPROVED},
        "terminate_notice_minutes": "" if minutes is None else f"{minutes:g}",
        **{name: _text(getattr(policy, name)) for name in ("max_user_operations", "max_unavailable", "min_available")},
        "windows": "\n".join(policy.windows),
        "reason": "",
    }


def given(visit: PageRequest) -> Fields:
    """As the form was sent, to be shown again."""
    return {name: visit.form.get(name, "").strip() for name in (*OF_ALL, *OF_GROUPS, "reason")}


def asked(visit: PageRequest, sent: Fields, *, grouped: bool) -> PolicyChange:
    """The whole policy: what is left empty is not limited."""
    values: dict[str, Any] = {
        "listening": sent["listening"],
        **{name: bool(sent[name]) for name in AUTO_APPROVED},
        "max_user_operations": forms.number(sent["max_user_operations"]),
        "windows": [line.strip() for line in sent["windows"].splitlines() if line.strip()],
    }
    if grouped:
        values |= {name: forms.number(sent[name]) for name in OF_GROUPS}
    return visit.asked(PolicyChange, values)


def _text(value: object) -> str:
    return "" if value is None else str(value)
