"""What the service publishes to the guests' endpoint: scopes with their members and documents, and a serial form."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from forenotice.core import documents
from forenotice.core.documents import Document
from forenotice.core.fleet import NO_FACTS, Facts, Listening, Scope, Vm
from forenotice.core.operations import Event


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A VM of a scope: by what its requests are recognised, and what it is told of itself. Fields are those of `Vm`."""

    name: str
    vm_id: str
    addresses: tuple[str, ...] = ()
    update_domain: int = 0
    fault_domain: int = 0
    spot: bool = False
    facts: Facts = NO_FACTS
    arriving: bool = False
    """It is on its way to the host of this endpoint: it is recognised, and told to come again."""


class Publication(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of one scope: it replaces whatever was known of it. Without a document, that scope is gone."""

    key: str
    document: Document | None = None
    """With the scope's tag, kind and incarnation."""
    members: tuple[Member, ...] = ()
    listening: Listening = Listening.AUTO
    last_heard: datetime | None = None


class Publisher(Protocol):
    """Called after the commit, from any thread; keeps the order of calls."""

    def documents(self, documents: Sequence[Document]) -> None: ...

    def scopes(self, scopes: Sequence[Publication]) -> None: ...

    def everything(self, scopes: Sequence[Publication]) -> None:
        """All scopes there are: any other is gone."""


class NullPublisher:
    """For a service without an endpoint: a running one learns of changes from the store."""

    def documents(self, documents: Sequence[Document]) -> None: ...

    def scopes(self, scopes: Sequence[Publication]) -> None: ...

    def everything(self, scopes: Sequence[Publication]) -> None: ...


_OF_VM = tuple(name for name in Member.__struct_fields__ if name != "arriving")


def of(scope: Scope, vms: Iterable[Vm] = (), events: Iterable[Event] = (), arriving: Iterable[Vm] = ()) -> Publication:
    return Publication(
        key=scope.key,
        document=documents.document(scope, events),
        members=(*[_member(vm, arriving=False) for vm in vms], *[_member(vm, arriving=True) for vm in arriving]),
        listening=scope.policy.listening,
        last_heard=scope.last_heard,
    )


def _member(vm: Vm, *, arriving: bool) -> Member:
    return Member(arriving=arriving, **{name: getattr(vm, name) for name in _OF_VM})


def encode(scopes: Sequence[Publication]) -> bytes:
    return msgspec.json.encode(scopes)


def decode(data: bytes) -> list[Publication]:
    return msgspec.json.decode(data, type=list[Publication])


def encode_documents(documents: Sequence[Document]) -> bytes:
    return msgspec.json.encode(documents)


def decode_documents(data: bytes) -> list[Document]:
    return msgspec.json.decode(data, type=list[Document])
