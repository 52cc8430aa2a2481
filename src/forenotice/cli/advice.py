"""What helps whoever was refused: the name that was meant, or where to look."""

import difflib
from collections.abc import Callable, Iterator, Mapping

LISTS = {"vm": "vms", "host": "hosts", "group": "groups"}
"""What has names that people mistype, and where the API lists them."""
COMMANDS = {
    "vm": "vm list",
    "host": "host list",
    "hosts": "host list",
    "group": "group list",
    "event": "event list --all",
    "operation": "operation list --all",
    "rollout": "rollout list --all",
    "subscription": "subscription list",
    "token": "token list",
}


def on_missing(facts: Mapping[str, object], names: Callable[[str, str | None], list[str]]) -> str:
    """For a 404 with these facts; `names` gives those that a pattern fits. Empty when nothing can be said."""
    for noun, command in COMMANDS.items():
        name = facts.get(noun)
        if isinstance(name, str):
            meant = _meant(noun, name, names)
            return f"did you mean {meant}?" if meant else f"see `forenotice {command}`"
    return ""


def _meant(noun: str, name: str, names: Callable[[str, str | None], list[str]]) -> str:
    if noun not in LISTS:
        return ""
    for pattern in _patterns(name):
        if found := difflib.get_close_matches(name, names(LISTS[noun], pattern)):
            return " or ".join(found)
    return ""


def _patterns(name: str) -> Iterator[str | None]:
    """In a large fleet the mistake is rather at the end; a small one is looked through as it is."""
    if half := name[: len(name) // 2]:
        yield f"{half}*"
    yield None


def on_token(named: bool) -> str:
    """For a 401."""
    if named:
        return "give another with --token or in FORENOTICE_TOKEN"
    return (
        "the one in admin.token is not accepted: give --token, name the server's data directory with --data, or make "
        "a token there with `forenotice token create NAME --offline`"
    )
