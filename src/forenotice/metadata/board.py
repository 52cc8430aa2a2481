"""What guests can be told, in memory and ready to send. Touched on the loop's thread only."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Protocol, TypeVar

from forenotice.core import documents, fleet
from forenotice.core.documents import Document
from forenotice.metadata import answers
from forenotice.service.publishing import Members
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


class Notice:
    """One scope: its document, and when its guests were heard."""

    __slots__ = ("document", "etag", "guests", "heard", "ready", "saved", "scope", "unchanged", "waiters")

    def __init__(self, scope: fleet.Scope, document: Document) -> None:
        self.scope = scope
        self.guests: tuple[Guest, ...] = ()
        self.waiters: set[Waiter] | None = None
        self.heard = self.saved = _unix(scope.last_heard)
        """When a guest was last heard, and the latest such time that is durable."""
        self.show(document)

    def show(self, document: Document) -> None:
        self.document = document
        self.etag = wire_document.etag(document)
        self.ready: dict[str, bytes] = {}
        """Answers by version, rendered when first asked for."""
        self.unchanged = b""

    def put(self, scope: fleet.Scope, document: Document) -> None:
        if scope.tag != self.scope.tag:
            self.heard = self.saved = NEVER
        self.scope = scope
        self.saved = max(self.saved, _unix(scope.last_heard))
        self.heard = max(self.heard, self.saved)
        if self.outdated_by(document):
            self.show(document)

    def outdated_by(self, document: Document) -> bool:
        return document.tag != self.document.tag or document.incarnation > self.document.incarnation

    def answer(self, version: Version) -> bytes:
        found = self.ready.get(version.name)
        if found is None:
            headers = answers.JSON + answers.known_by(self.document)
            found = answers.whole(200, wire_document.render(self.document, version), headers).rest
            self.ready[version.name] = found
        return found

    def answer_unchanged(self) -> bytes:
        if not self.unchanged:
            self.unchanged = answers.unchanged(self.document).rest
        return self.unchanged

    def wait(self, waiter: Waiter) -> None:
        if self.waiters is None:
            self.waiters = set()
        self.waiters.add(waiter)

    def leave(self, waiter: Waiter) -> None:
        if self.waiters is not None:
            self.waiters.discard(waiter)
            if not self.waiters:
                self.waiters = None


class Guest:
    """One VM. Smaller than `fleet.Vm`: a hundred thousand of them are kept."""

    __slots__ = (
        "addresses",
        "approvals_full_at",
        "facts",
        "fault_domain",
        "name",
        "notice",
        "polled",
        "polls_full_at",
        "spot",
        "update_domain",
        "vm_id",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.vm_id = ""
        self.addresses: tuple[str, ...] = ()
        self.update_domain = self.fault_domain = 0
        self.spot = False
        self.facts = fleet.NO_FACTS
        self.notice: Notice | None = None
        """None once the VM is gone."""
        self.polls_full_at = self.approvals_full_at = 0.0
        """Its two rate buckets."""
        self.polled = NEVER
        """When it last asked for its document, to the second; kept nowhere else."""

    def describe(self, scope: fleet.Scope) -> fleet.Vm:
        return fleet.Vm(
            name=self.name,
            vm_id=self.vm_id,
            host="",
            scope=scope.key,
            update_domain=self.update_domain,
            fault_domain=self.fault_domain,
            spot=self.spot,
            addresses=self.addresses,
            facts=self.facts,
        )


class Board:
    """Scopes by key; VMs by name, by vmId and by address."""

    def __init__(self, facts_shared: int = FACTS_SHARED) -> None:
        self._facts_shared = facts_shared
        self.generation = 0
        """Grows whenever a caller may have become somebody else."""
        self.loaded = True
        """Whether the fleet has been loaded: until then an unknown caller may yet be a VM."""
        self.notices: dict[str, Notice] = {}
        self.by_name: dict[str, Guest] = {}
        self.by_vm_id: dict[str, Guest] = {}
        self.by_address: dict[str, Guest] = {}
        self._facts: dict[tuple[object, ...], fleet.Facts] = {}

    def polled(self, vm: str) -> datetime | None:
        """When a VM last asked this process for its document, since it was started. From any thread: it only looks."""
        guest = self.by_name.get(vm)
        return None if guest is None or guest.polled == NEVER else datetime.fromtimestamp(guest.polled, UTC)

    def put_documents(self, published: Iterable[Document]) -> None:
        for document in published:
            notice = self.notices.get(document.scope)
            # Without a notice the scope has no members yet: they come with its document.
            if notice is not None and notice.outdated_by(document):
                notice.show(document)
                _wake(notice)

    def put_members(self, published: Iterable[Members]) -> None:
        """All at once: a VM that leaves one scope for another is never seen without any."""
        touched = [notice for members in published if (notice := self._put(members)) is not None]
        self.generation += 1
        for notice in touched:
            _wake(notice)

    def put_everything(self, published: Sequence[Members]) -> None:
        known = {members.key for members in published}
        gone = [Members(key=key, scope=None) for key in self.notices if key not in known]
        self.put_members([*published, *gone])
        self.loaded = True

    def _put(self, members: Members) -> Notice | None:
        notice = self.notices.get(members.key)
        if members.scope is None:
            if notice is not None:
                del self.notices[members.key]
                self._replace(notice, ())
            return notice
        document = documents.document(members.scope, members.events)
        if notice is None:
            notice = self.notices[members.key] = Notice(members.scope, document)
        else:
            notice.put(members.scope, document)
        self._replace(notice, members.vms)
        return notice

    def _replace(self, notice: Notice, vms: Sequence[fleet.Vm]) -> None:
        before = notice.guests
        notice.guests = tuple([self._put_vm(vm, notice) for vm in vms])
        if before:
            staying = set(notice.guests)
            for guest in before:
                # One that another scope has taken over is not ours to remove.
                if guest not in staying and guest.notice is notice:
                    self._remove(guest)

    def _put_vm(self, vm: fleet.Vm, notice: Notice) -> Guest:
        guest = self.by_name.get(vm.name)
        if guest is None:
            guest = self.by_name[vm.name] = Guest(vm.name)
        else:
            self._unlist(guest)
        guest.vm_id = vm.vm_id
        guest.addresses = vm.addresses
        guest.update_domain = vm.update_domain
        guest.fault_domain = vm.fault_domain
        guest.spot = vm.spot
        guest.facts = self._shared(vm.facts)
        guest.notice = notice
        self.by_vm_id[_folded(vm.vm_id)] = guest
        for address in vm.addresses:
            # Older versions let them into the fleet.
            if not fleet.is_link_local(address):
                self.by_address[address] = guest
        return guest

    def _remove(self, guest: Guest) -> None:
        self._unlist(guest)
        del self.by_name[guest.name]
        guest.notice = None

    def _unlist(self, guest: Guest) -> None:
        if self.by_vm_id.get(_folded(guest.vm_id)) is guest:
            del self.by_vm_id[_folded(guest.vm_id)]
        for address in guest.addresses:
            if self.by_address.get(address) is guest:
                del self.by_address[address]

    def _shared(self, facts: fleet.Facts) -> fleet.Facts:
        """The same object for equal facts: most VMs of a fleet have the same."""
        if facts is fleet.NO_FACTS:
            return facts
        if len(self._facts) >= self._facts_shared:
            self._facts.clear()
        key = (*_texts(facts), *facts.tags.items())
        return self._facts.setdefault(key, facts)


class Publications:
    """The board's front for other threads: a `service.publishing.Publisher` that keeps the order of calls."""

    def __init__(self, board: Board, loop: asyncio.AbstractEventLoop) -> None:
        self._board = board
        self._loop = loop

    def documents(self, documents: Sequence[Document]) -> None:
        self._post(self._board.put_documents, documents)

    def members(self, members: Sequence[Members]) -> None:
        self._post(self._board.put_members, members)

    def everything(self, members: Sequence[Members]) -> None:
        self._post(self._board.put_everything, members)

    def _post(self, put: Callable[[tuple[T, ...]], None], published: Iterable[T]) -> None:
        # A closed loop answers nobody any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(put, tuple(published))


def _wake(notice: Notice) -> None:
    if notice.waiters:
        for waiter in tuple(notice.waiters):
            waiter.look_again()


def _unix(moment: datetime | None) -> float:
    return NEVER if moment is None else moment.astimezone(UTC).timestamp()


def _folded(vm_id: str) -> str:
    return vm_id if vm_id.islower() else vm_id.lower()
