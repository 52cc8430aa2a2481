"""Texts with $FORENOTICE_... and $EVENT_... in them."""

import re
from collections.abc import Callable, Mapping
from string import Template
from urllib.parse import quote_plus

import msgspec

from forenotice.agent.handlers import facts

Escape = Callable[[str], str]


def fill(text: str, variables: Mapping[str, str], escape: Escape = str) -> str:
    """What is not known stays as it is: a message that looks odd is better than none."""
    return Template(text).safe_substitute({name: escape(value) for name, value in variables.items()})


def flaw(text: str) -> str:
    """What is wrong with a template, for its author; empty when nothing is."""
    template = Template(text)
    if not template.is_valid():
        return "a $ stands alone: write $$ for a dollar sign"
    unknown = sorted(set(template.get_identifiers()) - set(facts.NAMES))
    if unknown:
        return f"${unknown[0]} is not known: the names are {', '.join(facts.NAMES)}, and $$ is a dollar sign"
    return ""


def escape_for(content_type: str) -> Escape:
    """So that a value cannot end the string that it stands in."""
    kind = content_type.partition(";")[0].strip().lower()
    if re.fullmatch(r"application/(.+\+)?json|text/json", kind):
        return _within_json
    if kind == "application/x-www-form-urlencoded":
        return quote_plus
    return str


def _within_json(value: str) -> str:
    return msgspec.json.encode(value).decode()[1:-1]
