"""Roles, source networks and tenancy: what a token allows, from where, and for which scopes."""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from forenotice.core import errors, selectors
from forenotice.core.fleet import FormerScope, canonical_address
from forenotice.core.operations import Event, Kind, Operation
from forenotice.core.selectors import Selector


class Role(StrEnum):
    VIEWER = "viewer"
    """Reads; with scopes, only of those."""
    TENANT = "tenant"
    """Sees its own scopes, and restarts, redeploys and approves there."""
    PLATFORM = "platform"
    """Everything but tokens."""
    ADMIN = "admin"


class Need(StrEnum):
    """What a request requires of its token."""

    SEE = "see"
    """What belongs to scopes: VMs, groups, their events, operations and history."""
    OVERSEE = "oversee"
    """What belongs to no scope: hosts, rollouts, subscriptions, the fleet as a whole."""
    OPERATE = "operate"
    """Restart, redeploy, approve, and cancel what tenants asked for."""
    MANAGE = "manage"
    """Everything else that changes something."""
    ADMINISTER = "administer"
    """Who may do what."""


GRANTED: Mapping[Role, frozenset[Need]] = {
    Role.VIEWER: frozenset({Need.SEE, Need.OVERSEE}),
    Role.TENANT: frozenset({Need.SEE, Need.OPERATE}),
    Role.PLATFORM: frozenset(Need) - {Need.ADMINISTER},
    Role.ADMIN: frozenset(Need),
}
OF_SCOPES = frozenset({Need.SEE, Need.OPERATE})
"""What can be granted for some scopes alone."""
TENANTS_KINDS = frozenset({Kind.RESTART, Kind.REDEPLOY})
NAMES_AT_ONCE: Mapping[Role, int] = {Role.TENANT: 1_000, Role.PLATFORM: 10_000, Role.ADMIN: 10_000}
"""VMs or hosts in one command of a role that may give one."""
WRITE_SECONDS = 30.0
"""How long a command may keep others from writing,"""
TENANTS_WRITE_SECONDS = 5.0
"""and a tenant's."""
TENANT = "tenant:"
"""How the names of those begin who act on their own scopes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    role: Role = Role.ADMIN
    scopes: Selector | None = None
    """Whose; None: everybody's."""

    def may(self, need: Need) -> bool:
        return need in GRANTED[self.role] and (self.scopes is None or need in OF_SCOPES)

    def require(self, need: Need | None) -> None:
        """None, for a route that does not declare what it needs, is never granted."""
        if need is None:
            raise errors.ForbiddenError("this route declares no role, so it is refused to everyone")
        if not self.may(need):
            limited = "" if need in OF_SCOPES else " of all scopes"
            granted = [role + limited if role is Role.VIEWER else role for role in Role if need in GRANTED[role]]
            wanted = " or ".join(filter(None, [", ".join(granted[:-1]), granted[-1]]))
            mine = self.role if self.scopes is None else f"{self.role} of {self.scopes.text}"
            raise errors.ForbiddenError(f"this needs the role {wanted}: the token's is {mine}", role=self.role)

    def sees(self, scope: str) -> bool:
        return self.scopes is None or scope in self.scopes

    def require_kind(self, kind: Kind) -> None:
        self.require(need_of(kind))

    def require_names(self, names: Sequence[str]) -> None:
        most = NAMES_AT_ONCE.get(self.role, 0)
        if len(names) > most:
            raise errors.RefusedError(
                f"{len(names):,} names are too many for one command: the role {self.role} may give {most:,} at a time",
                names=len(names),
                most=most,
            )

    @property
    def write_seconds(self) -> float:
        return TENANTS_WRITE_SECONDS if self.role is Role.TENANT else WRITE_SECONDS

    def require_cancel(self, operation: Operation, events: Iterable[Event]) -> None:
        self.require(self._to_cancel(operation, events))

    def may_cancel(self, operation: Operation, events: Iterable[Event]) -> bool:
        return self.may(self._to_cancel(operation, events))

    def _to_cancel(self, operation: Operation, events: Iterable[Event]) -> Need:
        """A token limited to some scopes may cancel only what a tenant requested and what concerns no other scope."""
        asked = operation.kind in TENANTS_KINDS and operation.by.startswith(TENANT)
        own = asked and all(self.sees(event.scope) for event in events)
        return Need.OPERATE if own else Need.MANAGE


EVERYTHING = Access()


def need_of(kind: Kind) -> Need:
    """What it takes to ask for an operation."""
    return Need.OPERATE if kind in TENANTS_KINDS else Need.MANAGE


def access(role: str, scopes: str | None) -> Access:
    """As a token says it."""
    try:
        found = Role(role)
    except ValueError:
        raise errors.RefusedError(f"there is no role {role[:80]!r}: give {', '.join(Role)}") from None
    match found, scopes:
        case Role.TENANT, None:
            raise errors.RefusedError("a tenant's token is for some scopes: name them, such as web-* or vm:db")
        case Role.PLATFORM | Role.ADMIN, str():
            raise errors.RefusedError(f"the role {found} is for all scopes: leave them out, or give tenant or viewer")
    if scopes is None:
        return Access(role=found)
    selector = selectors.of_scopes(scopes)
    if all(part.strip().startswith("!") for part in scopes.split(",") if part.strip()):
        raise errors.RefusedError(f"{scopes[:80]!r} says only whom it is not for: begin with whom, such as *,vm:*")
    return Access(role=found, scopes=selector)


MOST_NETWORKS = 32
LOCAL = "127.0.0.1"
"""The address of requests over the unix socket."""


def parse_networks(texts: Sequence[str]) -> tuple[str, ...]:
    """In canonical form, without duplicates."""
    if len(texts) > MOST_NETWORKS:
        raise errors.RefusedError(f"{len(texts)} networks are too many: give at most {MOST_NETWORKS}")
    found: dict[str, None] = {}
    for text in texts:
        try:
            found[str(ipaddress.ip_network(text.strip()))] = None
        except ValueError:
            why = f"{text[:80]!r} is not a network: give one such as 10.0.0.0/8, 2001:db8::/48 or 192.0.2.7"
            raise errors.RefusedError(why, network=text[:80]) from None
    return tuple(found)


def in_networks(networks: Iterable[str], origin: str) -> bool:
    """Whether an address is in one of them; an empty one means the unix socket."""
    address = ipaddress.ip_address(canonical_address(origin or LOCAL))
    return any(address in ipaddress.ip_network(network) for network in networks)


def bound(selector: Selector, named_at: datetime, former: Mapping[str, FormerScope]) -> Selector:
    """Without the names that meant an earlier scope when the token was made; patterns match by name alone."""
    gone = {key for key in selector.named if key in former and not former[key].is_meant(named_at)}
    return replace(selector, wanted=tuple(key for key in selector.wanted if key not in gone)) if gone else selector
