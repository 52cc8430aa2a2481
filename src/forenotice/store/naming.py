"""Which VMs operations have named, and by which event each was told: kept when it is dropped from them later."""

from datetime import datetime

from forenotice.core.draft import Changes
from forenotice.store import schema
from forenotice.store.queries import Executor, Row, Upsert

_NAME = Upsert(schema.vm_operations, fixed=("event",))
_TELL = Upsert(schema.vm_operations)


def put(executor: Executor, changes: Changes, newest: datetime | None) -> None:
    """Whom they name is settled when they are made, which is not before the newest entry."""
    told: dict[tuple[str, str], Row] = {}
    for event in changes.events.values():
        if newest is None or event.created_at >= newest:
            told.update(((vm, event.operation), (vm, event.operation, event.id)) for vm in event.resources)
    untold = [
        (vm, operation.id, None)
        for operation in changes.operations.values()
        if newest is None or operation.created_at >= newest
        for vm in operation.vms
        if (vm, operation.id) not in told
    ]
    executor.upsert(_TELL, list(told.values()))
    executor.upsert(_NAME, untold)
