"""Finding VMs, hosts and groups by a part of their name, and hosts by a label."""

from collections.abc import Callable

from forenotice.core import selectors
from forenotice.core.selectors import Selector
from forenotice.service import fleet_map, queries
from forenotice.service.calls import View
from forenotice.service.context import Service

MOST = 20
"""Of each noun."""
MEANT = frozenset("*?,!:")
"""Whoever writes one of these has a pattern in mind."""
NOTHING: View = {"items": [], "more": False}
LONGEST_PART = 62
"""With a wildcard at both ends it is as long as a pattern may be."""


def find(service: Service, text: str, *, hosts: bool, seen: Selector | None = None) -> View:
    """By noun, what has this text in its name, first what begins with it; with * or ?, what fits it as a pattern.

    Hosts only for whoever may see them.
    """
    text = text.strip()
    # Said of what was written, not of what is made of it.
    selector = selectors.of_hosts(text)
    if selector.wanted_labels or selector.unwanted_labels:
        by_label = _found(text, lambda name: queries.hosts(service, name=name, limit=MOST + 1)) if hosts else None
        return {"vms": NOTHING, "groups": NOTHING, "hosts": by_label}
    vms = _found(text, lambda name: queries.vms(service, name=name, limit=MOST + 1, seen=seen))
    return {
        "vms": {**vms, "items": fleet_map.with_states(service, vms["items"])},
        "groups": _found(text, lambda name: queries.groups(service, name=name, limit=MOST + 1, seen=seen)),
        "hosts": _found(text, lambda name: queries.hosts(service, name=name, limit=MOST + 1)) if hosts else None,
    }


def _found(text: str, ask: Callable[[str], View]) -> View:
    found: dict[str, View] = {}
    for pattern in _patterns(text):
        if len(found) <= MOST:
            found = {each["name"]: each for each in (*found.values(), *ask(pattern)["items"])}
    return {"items": list(found.values())[:MOST], "more": len(found) > MOST}


def _patterns(text: str) -> list[str]:
    if MEANT & set(text) or len(text) > LONGEST_PART:
        return [text]
    # The first alone is found at once, however large the fleet.
    return [f"{text}*", f"*{text}*"]
