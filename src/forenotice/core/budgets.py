"""Budgets: how many VMs of a scope may be down at once for planned maintenance; and limits of users' operations."""

from dataclasses import dataclass, field
from enum import StrEnum

from forenotice.core import errors, update_domains
from forenotice.core.fleet import Policy


class Rule(StrEnum):
    UPDATE_DOMAIN = "update-domain"
    """Another update domain of the scope is down, or announced to be."""
    BUDGET = "budget"
    """So many VMs of the scope may not be down at once."""


@dataclass(slots=True)
class VmsDown:
    """How many VMs of a scope are down, or announced to be: by update domain, and for other reasons."""

    by_update_domain: dict[int, int] = field(default_factory=dict)
    others: int = 0

    @property
    def vms(self) -> int:
        return sum(self.by_update_domain.values()) + self.others

    def add(self, update_domain: int, vms: int) -> None:
        self.by_update_domain[update_domain] = self.by_update_domain.get(update_domain, 0) + vms
        if not self.by_update_domain[update_domain]:
            del self.by_update_domain[update_domain]


NOTHING_DOWN = VmsDown()


def blocker(down: VmsDown, update_domain: int, vms: int, allowed: int | None) -> Rule | None:
    """Why these VMs may not be taken down as well."""
    if update_domains.is_excluded(update_domain, down.by_update_domain):
        return Rule.UPDATE_DOMAIN
    return Rule.BUDGET if allowed is not None and down.vms + vms > allowed else None


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
    """Refuse what could never start: the VMs of one host go down together."""
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
