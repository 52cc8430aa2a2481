"""What the service tells whoever answers guests: new documents, and who belongs to a scope."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forenotice.core.documents import Document
from forenotice.core.fleet import Scope, Vm
from forenotice.core.operations import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """All of one scope: it replaces whatever was known of it. Without a scope, that scope is gone."""

    key: str
    scope: Scope | None
    vms: tuple[Vm, ...] = ()
    events: tuple[Event, ...] = ()


class Publisher(Protocol):
    """Called after the commit, from any thread; keeps the order of calls."""

    def documents(self, documents: Sequence[Document]) -> None: ...

    def members(self, members: Sequence[Members]) -> None: ...

    def everything(self, members: Sequence[Members]) -> None:
        """All scopes there are: any other is gone."""
