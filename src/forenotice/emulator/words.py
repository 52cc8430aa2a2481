"""What people call an event, beside the kinds of operation."""

from collections.abc import Mapping

from forenotice.core.operations import Kind

WORDS: Mapping[str, Kind] = {
    "reboot": Kind.RESTART,
    "freeze": Kind.HOST_UPDATE,
    "preempt": Kind.EVICTION,
    "terminate": Kind.DELETION,
    **{kind.value: kind for kind in Kind},
}


def kind(word: str) -> Kind:
    """A ValueError says what would be right."""
    found = WORDS.get(word.lower())
    if found is None:
        raise ValueError(f"{word[:80]!r} is no event: give {', '.join(WORDS)}")
    return found
