"""Words of agent.toml that TOML has no type for."""

import re
from datetime import timedelta

from forenotice.settings.spans import Span

_LEAD = re.compile(r"NotBefore\s*-\s*(.+)", re.IGNORECASE)


class When:
    """`at once`, or `NotBefore - 5m`."""

    __slots__ = ("lead",)

    def __init__(self, lead: timedelta | None = None) -> None:
        self.lead = lead

    def __eq__(self, other: object) -> bool:
        return isinstance(other, When) and self.lead == other.lead

    def __hash__(self) -> int:
        return hash(self.lead)

    @classmethod
    def read(cls, text: object) -> "When":
        words = text.strip() if isinstance(text, str) else ""
        if words.lower() == "at once":
            return cls()
        found = _LEAD.fullmatch(words)
        if not found:
            raise ValueError(f'{text!r} is not a time to begin: give "at once" or one such as "NotBefore - 5m"')
        return cls(Span.read(found[1]))


def read(kind: type, value: object) -> object:
    """msgspec's hook for what it does not know itself."""
    if kind in (Span, When):
        return kind.read(value)
    raise NotImplementedError(f"no way to read a {kind.__name__}")


def write(value: object) -> object:
    """And the way back."""
    match value:
        case timedelta():
            return f"{value.total_seconds():.3f}s"
        case When(lead=None):
            return "at once"
        case When(lead=timedelta() as lead):
            return f"NotBefore - {write(lead)}"
    raise NotImplementedError(f"no way to write a {type(value).__name__}")
