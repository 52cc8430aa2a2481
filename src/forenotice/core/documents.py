"""The document of a scope: what its guests are told, before it is rendered for a version."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from forenotice.core.fleet import Scope, ScopeKind, natural_key
from forenotice.core.operations import Event, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    scope: str
    tag: str
    """Key of the scope and its epoch. Of documents with the same tag, the one with the higher incarnation is newer."""
    kind: ScopeKind
    incarnation: int
    events: tuple[Event, ...] = ()
    """The live ones, in order."""


def document(scope: Scope, events: Iterable[Event]) -> Document:
    return Document(
        scope=scope.key, tag=scope.tag, kind=scope.kind, incarnation=scope.incarnation, events=tuple(in_order(events))
    )


def in_order(events: Iterable[Event]) -> list[Event]:
    """By creation, then by first resource."""
    return sorted(events, key=lambda event: (event.created_at, [*map(natural_key, event.resources[:1])], event.id))


def looks_different(before: Event, after: Event) -> bool:
    """Whether a guest can see that an event has changed."""
    return _visible(before) != _visible(after)


def _visible(event: Event) -> tuple[object, ...]:
    return (event.status, event.resources, visible_not_before(event)) if event.status.live else ()


def visible_not_before(event: Event) -> datetime | None:
    """NotBefore as guests see it: blank once Started."""
    return None if event.status is Status.STARTED else event.not_before


BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
STEP = 1 << 16
"""More changes than a scope has between two restores within a second."""


def next_epoch(now: datetime, *known: int) -> int:
    """The next epoch: seconds since 2024, so that it grows even if the last one is unknown.

    Incarnations go on from it. A document that changes less than once a second stays behind the clock, so none was ever
    higher, and the number fits into 31 bits until 2092.
    """
    return max(int((now - BEGAN).total_seconds()), max(known, default=0) + STEP)


def epoch_suffix(epoch: int) -> str:
    """Of scopes' tags."""
    return f".{epoch:x}"


def is_behind(epoch: int, position: int, *, was: tuple[int, int]) -> bool:
    """Whether a database is older than its mark, by epoch and journal position."""
    return (epoch, position) < was
