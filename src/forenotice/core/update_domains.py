"""Exclusion: a scope never has two update domains down for planned maintenance at the same time."""

from collections.abc import Iterable

from forenotice.core.operations import Kind, Operation, Status


def excludes_others(operation: Operation) -> bool:
    """Whether planned maintenance of other update domains waits for it: its VMs are down, or will be soon."""
    if operation.status is Status.PLANNED:
        return False
    if operation.kind is Kind.DEGRADED_HARDWARE:
        # Announced days ahead: until it starts nobody waits for it.
        return operation.status is Status.STARTED
    return operation.kind.traits.maintenance or operation.kind is Kind.HARDWARE_FAILURE


def is_excluded(update_domain: int, down: Iterable[int]) -> bool:
    """Whether planned maintenance of this update domain has to wait, given those of its scope that are down."""
    return any(other != update_domain for other in down)
