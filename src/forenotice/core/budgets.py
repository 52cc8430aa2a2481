"""Budgets: how many VMs of a scope may be down at once for planned maintenance; and limits of users' operations."""

from dataclasses import dataclass

from forenotice.core import errors
from forenotice.core.fleet import Policy


def has_budget(policy: Policy) -> bool:
    return policy.max_unavailable is not None or policy.min_available is not None


def allowed(policy: Policy, members: int) -> int | None:
    """How many VMs of so many may be down at once; None: any number. A part of a VM is none."""
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
    most = allowed(policy, members)
    if most is not None and vms > most:
        name = scope.partition(":")[2]
        several = vms > 1
        why = (
            f"the budget of group {name} can never be met: {vms} of its {members} VMs {'are' if several else 'is'} on "
            f"host {host}{' and go together' if several else ''}, but {told(policy, members)} allows {most} down at "
            f"once: change it{', or spread the group' if several else ''}"
        )
        raise errors.ConflictError(why, group=name, host=host, vms=vms, members=members, allowed=most)


def _of(limit: str, members: int) -> int:
    return members * int(limit[:-1]) // 100 if limit.endswith("%") else int(limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """How many users' operations may be live at once; None: any number."""

    fleet: int | None = None
    tenant: int | None = None
    """Of those that one tenant requested."""

    @property
    def any(self) -> bool:
        return self.fleet is not None or self.tenant is not None


NO_LIMITS = UserLimits()
