"""What has been published to guests, in memory and ready to send. Used on the loop's thread only."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Protocol, TypeVar

import msgspec

from forenotice.core import fleet
from forenotice.core.documents import Document
from forenotice.metadata import responses
from forenotice.publication import Member, Publication
from forenotice.wire import document as wire_document
from forenotice.wire.versions import Version

T = TypeVar("T")

_texts = attrgetter(*(name for name in fleet.Facts.__dataclass_fields__ if name != "tags"))

NEVER = 0.0
FACTS_SHARED = 10_000
"""How many different facts are shared before starting anew."""


class Waiter(Protocol):
    def look_again(self) -> None:
        """The document, or who may see it, may have changed."""

    def end_for(self, guest: "Guest") -> None:
        """If it is this guest's, answer it now."""


@dataclass(slots=True, eq=False, init=False, repr=False)
class PublishedScope:
    """One scope: its document, and when its guests last polled."""

    key: str
    document: Document
    etag: str
    rendered: dict[str, bytes]
    """Responses by version, rendered when first asked for."""
    _not_modified: bytes
    guests: "tuple[Guest, ...]"
    listening: fleet.Listening
    heard: float
    """When a guest last polled."""
    saved: float
    """The latest such time that is durable."""
    _waiters: dict[Waiter, None] | None

    def __init__(self, published: Publication, document: Document) -> None:
        self.key = published.key
        self.guests = ()
        self._waiters = None
        self.listening = published.listening
        self.heard = self.saved = _unix(published.last_heard)
        self.show(document)

    def show(self, document: Document) -> None:
        self.document = document
        self.etag = wire_document.etag(document)
        self.rendered = {}
        self._not_modified = b""

    def put(self, published: Publication, document: Document) -> None:
        if document.tag != self.document.tag:
            self.heard = self.saved = NEVER
        self.listening = published.listening
        self.saved = max(self.saved, _unix(published.last_heard))
        self.heard = max(self.heard, self.saved)
        if self.is_outdated_by(document):
            self.show(document)

    def is_outdated_by(self, document: Document) -> bool:
        return document.tag != self.document.tag or document.incarnation > self.document.incarnation

    def render(self, version: Version) -> bytes:
        found = self.rendered.get(version.name)
        if found is None:
            headers = responses.JSON + responses.validators(self.document)
            found = responses.with_body(200, wire_document.render(self.document, version), headers).rest
            self.rendered[version.name] = found
        return found

    def not_modified(self) -> bytes:
        if not self._not_modified:
            self._not_modified = responses.not_modified(self.document).rest
        return self._not_modified

    def add_waiter(self, waiter: Waiter) -> None:
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: Waiter) -> None:
        if self._waiters is not None:
            self._waiters.pop(waiter, None)
            self._waiters = self._waiters or None

    def wake(self) -> None:
        for waiter in tuple(self._waiters or ()):
            waiter.look_again()

    def end_for(self, guest: "Guest") -> None:
        for waiter in tuple(self._waiters or ()):
            waiter.end_for(guest)


@dataclass(slots=True, eq=False, repr=False)
class Guest:
    """One VM."""

    member: Member
    scope: PublishedScope | None
    """None once the VM is gone, or while it is still arriving."""
    polls_full_at: float = 0.0
    approvals_full_at: float = 0.0
    """Its two rate buckets."""
    polled: float = NEVER
    """When it last polled or approved, to the second; kept nowhere else."""

    @property
    def name(self) -> str:
        return self.member.name

    def describe(self, scope: PublishedScope) -> tuple[fleet.Vm, fleet.Scope]:
        """The VM and its scope as far as they are known here."""
        known = {name: value for name, value in msgspec.structs.asdict(self.member).items() if name != "arriving"}
        vm = fleet.Vm(host="", scope=scope.key, **known)
        return vm, fleet.Scope(key=scope.key, kind=scope.document.kind, tag=scope.document.tag)


class PublishedFleet:
    """Scopes by key; VMs by name, by vmId and by address."""

    def __init__(self, facts_shared: int = FACTS_SHARED) -> None:
        self._facts_shared = facts_shared
        self.generation = 0
        """Grows whenever a caller may have become another VM."""
        self.loaded = True
        """Whether the fleet has been loaded: until then an unknown caller may yet be a VM."""
        self.scopes: dict[str, PublishedScope] = {}
        self.by_name: dict[str, Guest] = {}
        self.by_vm_id: dict[str, Guest] = {}
        self.by_address: dict[str, Guest] = {}
        self._facts: dict[tuple[object, ...], fleet.Facts] = {}

    def polled(self, vm: str) -> datetime | None:
        """When a VM last polled this process, or approved here, since it started. From any thread: it only looks."""
        guest = self.by_name.get(vm)
        return None if guest is None or guest.polled == NEVER else datetime.fromtimestamp(guest.polled, UTC)

    def end_long_polls(self, vms: Iterable[str]) -> None:
        for guest in filter(None, map(self.by_name.get, vms)):
            if guest.scope is not None:
                guest.scope.end_for(guest)

    def put_documents(self, published: Iterable[Document]) -> None:
        for document in published:
            scope = self.scopes.get(document.scope)
            # A scope that is not there has no members yet: they come with its document.
            if scope is not None and scope.is_outdated_by(document):
                scope.show(document)
                scope.wake()

    def put_scopes(self, published: Iterable[Publication]) -> None:
        """All at once: a VM that leaves one scope for another is never seen without any."""
        touched = [scope for each in published if (scope := self._put(each)) is not None]
        self.generation += 1
        for scope in touched:
            scope.wake()

    def put_everything(self, published: Sequence[Publication]) -> None:
        known = {each.key for each in published}
        self.put_scopes([*published, *(Publication(key=key) for key in self.scopes if key not in known)])
        self.loaded = True

    def _put(self, published: Publication) -> PublishedScope | None:
        scope, document = self.scopes.get(published.key), published.document
        if document is None:
            if scope is not None:
                del self.scopes[published.key]
                self._replace(scope, ())
            return scope
        if scope is None:
            scope = self.scopes[published.key] = PublishedScope(published, document)
        else:
            scope.put(published, document)
        self._replace(scope, published.members)
        return scope

    def _replace(self, scope: PublishedScope, members: Sequence[Member]) -> None:
        before = scope.guests
        scope.guests = tuple([self._put_member(member, scope) for member in members])
        if before:
            staying = set(scope.guests)
            for guest in before:
                # One that another scope has taken over is not ours to remove.
                if guest not in staying and guest.scope in (scope, None) and self.by_name.get(guest.name) is guest:
                    self._unlist(guest)
                    del self.by_name[guest.name]
                    guest.scope = None

    def _put_member(self, member: Member, scope: PublishedScope) -> Guest:
        if member.facts is not fleet.NO_FACTS:
            member = msgspec.structs.replace(member, facts=self._shared(member.facts))
        guest = self.by_name.get(member.name)
        of = None if member.arriving else scope
        if guest is None:
            guest = self.by_name[member.name] = Guest(member, of)
        else:
            self._unlist(guest)
            guest.member, guest.scope = member, of
        self.by_vm_id[_folded(member.vm_id)] = guest
        for address in member.addresses:
            # Older versions let them into the fleet.
            if not fleet.is_link_local(address):
                self.by_address[address] = guest
        return guest

    def _unlist(self, guest: Guest) -> None:
        for index, key in (
            (self.by_vm_id, _folded(guest.member.vm_id)),
            *((self.by_address, address) for address in guest.member.addresses),
        ):
            if index.get(key) is guest:
                del index[key]

    def _shared(self, facts: fleet.Facts) -> fleet.Facts:
        """The same object for equal facts: most VMs of a fleet have the same."""
        if len(self._facts) >= self._facts_shared:
            self._facts.clear()
        return self._facts.setdefault((*_texts(facts), *facts.tags.items()), facts)


class LoopPublisher:
    """A `publication.Publisher` for other threads: it publishes on the loop, in the order of calls."""

    def __init__(self, published: PublishedFleet, loop: asyncio.AbstractEventLoop) -> None:
        self._published = published
        self._loop = loop

    def documents(self, documents: Sequence[Document]) -> None:
        self._post(self._published.put_documents, documents)

    def scopes(self, scopes: Sequence[Publication]) -> None:
        self._post(self._published.put_scopes, scopes)

    def everything(self, scopes: Sequence[Publication]) -> None:
        self._post(self._published.put_everything, scopes)

    def end_long_polls(self, vm: str) -> None:
        self._post(self._published.end_long_polls, (vm,))

    def _post(self, put: Callable[[tuple[T, ...]], None], published: Iterable[T]) -> None:
        # A closed loop serves no guests any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(put, tuple(published))


def _unix(moment: datetime | None) -> float:
    return NEVER if moment is None else moment.astimezone(UTC).timestamp()


def _folded(vm_id: str) -> str:
    return vm_id if vm_id.islower() else vm_id.lower()
