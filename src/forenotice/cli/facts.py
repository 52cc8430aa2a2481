"""The optional facts of a VM, and the labels of a host, as options."""

from collections.abc import Iterable, Sequence
from dataclasses import fields

from forenotice.cli.usage import UsageError
from forenotice.core.fleet import Facts

NAMES = tuple(field.name for field in fields(Facts) if field.name != "tags")

TITLES = {"size": "vmSize"}
"""Facts that would be taken for something else by their names."""


def read(facts: Sequence[str], tags: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in facts:
        name, value = _pair("--fact", text, "zone=1")
        if name not in NAMES:
            raise UsageError(f"{name!r} is no fact of a VM: give one of {', '.join(NAMES)}")
        found[name] = value
    if tags:
        found["tags"] = pairs("--tag", tags, "team=shop")
    return found


def pairs(flag: str, texts: Iterable[str], example: str) -> dict[str, str]:
    return dict(_pair(flag, text, example) for text in texts)


def _pair(flag: str, text: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{flag}: {text!r} is not NAME=VALUE: give one such as {flag} {example}")
    return name, value
