"""The optional facts of a VM as options."""

from collections.abc import Sequence
from dataclasses import fields

from forenotice.cli.usage import UsageError
from forenotice.core.fleet import Facts

NAMES = tuple(field.name for field in fields(Facts) if field.name != "tags")


def read(facts: Sequence[str], tags: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in facts:
        name, value = _pair("--fact", text)
        if name not in NAMES:
            raise UsageError(f"{name!r} is no fact of a VM: give one of {', '.join(NAMES)}")
        found[name] = value
    if tags:
        found["tags"] = dict(_pair("--tag", text) for text in tags)
    return found


def _pair(flag: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{flag}: {text!r} is not NAME=VALUE: give one such as {flag} zone=1")
    return name, value
