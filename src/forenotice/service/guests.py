"""What guests cause: approvals and being heard."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from forenotice.core import errors, lifecycle
from forenotice.core.lifecycle import StartRequests
from forenotice.core.timing import ENDED_APPROVABLE
from forenotice.service.service import Service, UnitOfWork
from forenotice.store.database import GUESTS


class Guests:
    """Called by the guests' endpoint, from one thread."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def approve(self, approvals: Sequence[StartRequests]) -> list[errors.ForenoticeError | None]:
        """Durable when it returns, for the whole batch in one transaction; each stands or falls by itself."""

        def work(unit: UnitOfWork) -> list[errors.ForenoticeError | None]:
            scopes = {approval.scope for approval in approvals}
            vms = {approval.vm for approval in approvals}
            world = unit.transaction.worlds.to_approve(scopes, vms)
            if not all(event_id.upper() in world.events for approval in approvals for event_id in approval.event_ids):
                # A slow client approves what has just ended.
                world = unit.transaction.worlds.to_approve(scopes, vms, unit.now - ENDED_APPROVABLE)
            draft = unit.draft(world)
            answers: list[errors.ForenoticeError | None] = []
            for approval in approvals:
                draft.by = f"vm:{approval.vm}"
                try:
                    lifecycle.approve_as_guest(draft, approval)
                    answers.append(None)
                except errors.ForenoticeError as refusal:
                    answers.append(refusal)
            unit.keep(draft)
            return answers

        return self._service.transact(work, GUESTS)

    def heard(self, heard: Mapping[str, datetime]) -> None:
        """A scope that has been silent listens from now on; for the others only the time is kept."""

        def work(unit: UnitOfWork) -> None:
            scopes = unit.transaction.scopes.named(heard.keys()).values()
            waking = [scope.key for scope in scopes if lifecycle.would_wake(scope, unit.now, self._service.timing)]
            unit.transaction.scopes.set_heard({key: at for key, at in heard.items() if key not in waking})
            if waking:
                draft = unit.draft(unit.transaction.worlds.load(scopes=waking))
                for key in waking:
                    lifecycle.record_poll(draft, key, heard[key])
                unit.keep(draft)

        self._service.transact(work, GUESTS)
