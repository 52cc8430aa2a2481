"""Which VMs operations have named, and by which event each was told: kept when it is dropped from them later."""

from notbefore.core.draft import Changes
from notbefore.store import schema
from notbefore.store.session import Row, Session, Upsert

_NAME = Upsert(schema.vm_operations, fixed=("event",))
_TELL = Upsert(schema.vm_operations)


def put(session: Session, changes: Changes) -> None:
    """Whom they name is settled when they are made, which is when the entries that tell of it are."""
    made_at = {entry.at for entry in changes.entries}
    told: dict[tuple[str, str], Row] = {}
    for event in changes.events.values():
        if event.created_at in made_at or not made_at:
            told.update(((vm, event.operation), (vm, event.operation, event.id)) for vm in event.resources)
    untold = [
        (vm, operation.id, None)
        for operation in changes.operations.values()
        if operation.created_at in made_at or not made_at
        for vm in operation.vms
        if (vm, operation.id) not in told
    ]
    session.upsert(_TELL, list(told.values()))
    session.upsert(_NAME, untold)
