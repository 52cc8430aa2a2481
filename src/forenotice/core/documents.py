"""The document of a scope: what its guests are told, before it is rendered for a version."""

from collections.abc import Iterable
from dataclasses import dataclass

from forenotice.core.fleet import Scope, ScopeKind, natural_key
from forenotice.core.operations import Event, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    scope: str
    tag: str
    kind: ScopeKind
    incarnation: int
    events: tuple[Event, ...] = ()
    """The live ones, in order."""


def document(scope: Scope, events: Iterable[Event]) -> Document:
    return Document(
        scope=scope.key,
        tag=scope.tag,
        kind=scope.kind,
        incarnation=scope.incarnation,
        events=tuple(in_order(events)),
    )


def in_order(events: Iterable[Event]) -> list[Event]:
    """By creation, then by first resource."""
    return sorted(events, key=lambda event: (event.created_at, [*map(natural_key, event.resources[:1])], event.id))


def looks_different(before: Event, after: Event) -> bool:
    """Whether a guest can see that an event has changed."""
    return _shown(before) != _shown(after)


def _shown(event: Event) -> tuple[object, ...]:
    if not event.status.live:
        return ()
    not_before = None if event.status is Status.STARTED else event.not_before
    return (event.status, event.resources, not_before)
