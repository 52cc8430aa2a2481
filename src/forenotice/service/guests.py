"""What guests cause: approvals and being heard, here or at the edge of their host."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from forenotice.cluster.messages import Heard
from forenotice.core import errors, lifecycle
from forenotice.core.draft import Draft, World
from forenotice.core.fleet import Vm
from forenotice.core.lifecycle import StartRequests
from forenotice.core.timing import ENDED_APPROVABLE
from forenotice.service.service import Service, UnitOfWork
from forenotice.store.database import GUESTS
from forenotice.store.journal import JournalFilter
from forenotice.store.transaction import Reader

Outcome = errors.ForenoticeError | None
AtEdge = tuple[str, StartRequests]
"""The host whose edge took it, and what it took."""


class Guests:
    """Called from one thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def approve(self, approvals: Sequence[StartRequests]) -> list[Outcome]:
        """Durable when it returns, for the whole batch in one transaction; each stands or falls by itself."""
        return self._approve([("", approval) for approval in approvals])

    def approve_at_edges(self, approvals: Sequence[AtEdge]) -> list[Outcome]:
        """Likewise. An edge can approve for VMs of its own host only."""
        return self._approve(approvals)

    def refusal(self, host: str, approval: StartRequests) -> Outcome:
        """What would come of an approval at the edge of this host."""
        with self._service.store.read() as reader:
            world = self._load(reader, [approval], self._service.clock.now())
            return _decide(reader, self._service.draft(world), host, approval)

    def _approve(self, approvals: Sequence[AtEdge]) -> list[Outcome]:
        def work(unit: UnitOfWork) -> list[Outcome]:
            draft = unit.draft(self._load(unit.transaction, [each for _, each in approvals], unit.now))
            outcomes = [_decide(unit.transaction, draft, host, approval) for host, approval in approvals]
            unit.keep(draft)
            return outcomes

        return self._service.transact(work, GUESTS)

    def _load(self, reader: Reader, approvals: Sequence[StartRequests], now: datetime) -> World:
        scopes = {approval.scope for approval in approvals}
        vms = {approval.vm for approval in approvals}
        world = reader.worlds.to_approve(scopes, vms)
        if not all(event_id.upper() in world.events for approval in approvals for event_id in approval.event_ids):
            # A slow client approves what has just ended.
            taken = min(approval.at or now for approval in approvals)
            world = reader.worlds.to_approve(scopes, vms, taken - ENDED_APPROVABLE)
        return world

    def heard(self, heard: Mapping[str, datetime]) -> None:
        """A scope that has been silent listens from now on; for the others only the time is kept."""
        self._service.transact(lambda unit: self._hear(unit, heard), GUESTS)

    def heard_at_edges(self, heard: Sequence[tuple[str, Heard]]) -> None:
        """Likewise. Scopes without VMs on the host of the edge are ignored; times ahead of ours count as now."""

        def work(unit: UnitOfWork) -> None:
            places = unit.transaction.worlds.places({key for _, each in heard for key in each.scopes})
            latest: dict[str, datetime] = {}
            for host, each in heard:
                for key, at in each.scopes.items():
                    if (key, host) in places:
                        at = min(at, unit.now)
                        latest[key] = max(latest.get(key, at), at)
            if latest:
                self._hear(unit, latest)

        self._service.transact(work, GUESTS)

    def _hear(self, unit: UnitOfWork, heard: Mapping[str, datetime]) -> None:
        scopes = unit.transaction.scopes.named(heard.keys()).values()
        waking = [scope.key for scope in scopes if lifecycle.would_wake(scope, unit.now, self._service.timing)]
        unit.transaction.scopes.set_heard({key: at for key, at in heard.items() if key not in waking})
        if waking:
            draft = unit.draft(unit.transaction.worlds.load(scopes=waking))
            for key in waking:
                lifecycle.record_poll(draft, key, heard[key])
            unit.keep(draft)


def _decide(reader: Reader, draft: Draft, host: str, approval: StartRequests) -> Outcome:
    draft.by = f"vm:{approval.vm}"
    vm = draft.world.vms.get(approval.vm)
    if host and vm is not None and vm.host != host and not _has_left(reader, vm, host, approval.at or draft.now):
        # As if there were no such VM: the credentials of one host must not reveal the VMs of others.
        return errors.RefusedError(lifecycle.LEFT)
    try:
        lifecycle.approve_as_guest(draft, approval)
    except errors.ForenoticeError as refusal:
        return refusal
    return None


def _has_left(reader: Reader, vm: Vm, host: str, at: datetime) -> bool:
    """Whether the VM was on that host then, or a short time before: it approved there before it left."""
    moves = reader.journal.page(
        JournalFilter(action="vm.", vm=vm.name, since=at - ENDED_APPROVABLE), limit=100, newest_first=True
    )
    return any(entry.data.get("source") == host for _, entry in moves)
