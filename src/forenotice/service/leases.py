"""A lease: of several processes on one database, one alone does something."""

from contextlib import suppress
from datetime import timedelta

from forenotice.core import errors
from forenotice.service.service import Service, UnitOfWork

LENGTH = timedelta(seconds=60)
"""How long a process that has died keeps others waiting."""


class Lease:
    def __init__(self, service: Service, name: str, length: timedelta = LENGTH) -> None:
        self._service = service
        self.name = name
        self._length = length

    def holds(self) -> bool:
        """Whether it is this process that does it. Takes the lease if nobody has it, and renews it in time."""
        service = self._service
        with service.store.read() as reader:
            lease = reader.leases.get(self.name)
        mine = lease.holder == service.process
        if lease.until - service.clock.now() > (self._length * 2 / 3 if mine else timedelta(0)):
            return mine
        return service.transact(self._take)

    def is_held(self, unit: UnitOfWork) -> bool:
        """Whether it still is, for the rest of this transaction."""
        return unit.transaction.leases.get(self.name).holder == self._service.process

    def give_up(self) -> None:
        """Others need not wait for it to lapse."""
        process = self._service.process
        with suppress(errors.UnavailableError, errors.UnsoundError):
            self._service.transact(lambda unit: unit.transaction.leases.release(self.name, process))

    def _take(self, unit: UnitOfWork) -> bool:
        leases, process = unit.transaction.leases, self._service.process
        lease = leases.get(self.name)
        if lease.holder != process and lease.until > unit.now:
            return False
        leases.put(self.name, process, unit.now + self._length)
        return True
