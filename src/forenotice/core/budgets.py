"""Exclusion of update domains, and budgets: how much of a scope planned maintenance may take at once."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from forenotice.core import errors
from forenotice.core.fleet import Policy
from forenotice.core.operations import Kind, Operation, Status


class Rule(StrEnum):
    UPDATE_DOMAIN = "update-domain"
    """Another update domain of the scope is out or announced."""
    BUDGET = "budget"
    """So many VMs of the scope may not be out at once."""


@dataclass(slots=True)
class Outage:
    """What is out of a scope, or announced to be: how many VMs, by update domain, and for other reasons."""

    planned: dict[int, int] = field(default_factory=dict)
    others: int = 0

    @property
    def vms(self) -> int:
        return sum(self.planned.values()) + self.others

    def add(self, update_domain: int, vms: int) -> None:
        self.planned[update_domain] = self.planned.get(update_domain, 0) + vms
        if not self.planned[update_domain]:
            del self.planned[update_domain]


NOTHING_OUT = Outage()


def excludes_others(operation: Operation) -> bool:
    """Whether planned maintenance leaves the other update domains alone for it: what is out, or announced for soon."""
    if operation.status is Status.PLANNED:
        return False
    if operation.kind is Kind.DEGRADED_HARDWARE:
        # Announced days ahead: until it starts nobody waits for it.
        return operation.status is Status.STARTED
    return operation.kind.traits.maintenance or operation.kind is Kind.HARDWARE_FAILURE


def is_excluded(update_domain: int, out: Iterable[int]) -> bool:
    """Whether planned maintenance of this update domain waits for others of its scope: one is out at a time."""
    return any(other != update_domain for other in out)


def blocker(outage: Outage, update_domain: int, vms: int, allowed: int | None) -> Rule | None:
    """Why these VMs may not be taken as well."""
    if is_excluded(update_domain, outage.planned):
        return Rule.UPDATE_DOMAIN
    return Rule.BUDGET if allowed is not None and outage.vms + vms > allowed else None


def has_budget(policy: Policy) -> bool:
    return policy.max_unavailable is not None or policy.min_available is not None


def allowed(policy: Policy, members: int) -> int | None:
    """How many VMs of so many may be out at once; None: any number. A part of a VM is none."""
    limits = []
    if policy.max_unavailable is not None:
        limits.append(_of(policy.max_unavailable, members))
    if policy.min_available is not None:
        limits.append(max(0, members - policy.min_available))
    return min(limits, default=None)


def told(policy: Policy, members: int) -> str:
    """The budget that decides, as the operator wrote it."""
    if policy.max_unavailable is not None and _of(policy.max_unavailable, members) == allowed(policy, members):
        return f"max_unavailable {policy.max_unavailable}"
    return f"min_available {policy.min_available}"


def require_possible(scope: str, policy: Policy, *, members: int, vms: int, host: str) -> None:
    """Refuse what could never start: the VMs of one host are taken together."""
    most = allowed(policy, members)
    if most is not None and vms > most:
        name = scope.partition(":")[2]
        several = vms > 1
        why = (
            f"the budget of group {name} can never be met: {vms} of its {members} VMs {'are' if several else 'is'} on "
            f"host {host}{' and go together' if several else ''}, but {told(policy, members)} allows {most} out at "
            f"once: change it{', or spread the group' if several else ''}"
        )
        raise errors.ConflictError(why, group=name, host=host, vms=vms, members=members, allowed=most)


def _of(limit: str, members: int) -> int:
    return members * int(limit[:-1]) // 100 if limit.endswith("%") else int(limit)
