"""Hosts, scopes and VMs in their tables, and when scopes were removed."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from sys import intern
from typing import NamedTuple

import msgspec
from sqlalchemy import BigInteger, ColumnElement, bindparam, case, delete, exists, func, or_, select, update

from forenotice.core import documents
from forenotice.core.fleet import (
    GROUP_PREFIX,
    NO_FACTS,
    STANDALONE_PREFIX,
    Facts,
    FormerScope,
    Host,
    Policy,
    Scope,
    ScopeKind,
    Vm,
    amount,
    taken_by,
)
from forenotice.core.operations import Kind, Status
from forenotice.core.selectors import Selector
from forenotice.core.windows import parse_all
from forenotice.store import rows, schema
from forenotice.store.pages import LAST_CHARACTER, Listing
from forenotice.store.queries import Among, Executor, Matching, Query, Repository, Upsert, given, patterns
from forenotice.store.rows import AMOUNT, Codec, Mapper, Row, json_codec, json_text

_H, _S, _V, _A, _F = schema.hosts.c, schema.scopes.c, schema.vms.c, schema.vm_addresses.c, schema.former_scopes.c

HOSTS = Query(select(schema.hosts))
HOSTS_NAMED = Query(select(schema.hosts).where(Among(_H.name, "names")))
SCOPES = Query(select(schema.scopes))
SCOPES_NAMED = Query(select(schema.scopes).where(Among(_S.key, "names")).order_by(_S.key))
SCOPES_AFTER = Query(select(schema.scopes).where(_S.key > given.after).order_by(_S.key).limit(given.limit))
VMS = Query(select(schema.vms))
VMS_NAMED = Query(select(schema.vms).where(Among(_V.name, "names")))
VMS_ON = Query(select(schema.vms).where(Among(_V.host, "names")))
VMS_IN = Query(select(schema.vms).where(Among(_V.scope, "names")).order_by(_V.scope, _V.name))
ADDRESSES = Query(select(schema.vm_addresses))
ADDRESSES_NAMED = Query(select(schema.vm_addresses).where(Among(_A.address, "names")))
SIZES = Query(select(_V.scope, func.count()).where(Among(_V.scope, "names")).group_by(_V.scope))
_O = schema.operations.c
_MAINTAINED = exists(
    select(_O.id)
    .where(_O.host == _H.name, _O.ended_at.is_(None), _O.status != Status.PLANNED.value)
    .where(or_(*(_O.kind == kind.value for kind in Kind if kind.traits.keeps_others_away)))
    .correlate(schema.hosts)
)
TARGETS = Query(
    select(_H.name, func.count(_V.name))
    .select_from(schema.hosts.outerjoin(schema.vms, _V.host == _H.name))
    .where(_H.cordoned.is_(False), ~_MAINTAINED)
    .group_by(_H.name)
)
USED_ON = Query(select(_V.host, func.sum(func.coalesce(_V.size, 1))).where(Among(_V.host, "names")).group_by(_V.host))
VM_SIZES = Query(select(_V.name, _V.size).where(Among(_V.name, "names")))
_MOVES = Query(
    select(_O.targets, _O.done).where(_O.ended_at.is_(None), _O.status == Status.STARTED.value, _O.targets.is_not(None))
)
DOMAINS_IN = Query(
    select(_V.scope, _V.host, _V.update_domain, _V.fault_domain, func.count())
    .where(Among(_V.scope, "names"))
    .group_by(_V.scope, _V.host, _V.update_domain, _V.fault_domain)
)
_EMPTIER = Query(
    select(_H.name)
    .where(_H.cordoned.is_(False), ~_MAINTAINED)
    .order_by(case((exists(select(_V.name).where(_V.host == _H.name)), 1), else_=0), _H.name)
    .limit(given.limit)
)

_PUT_HOSTS, _PUT_SCOPES, _PUT_VMS = Upsert(schema.hosts), Upsert(schema.scopes), Upsert(schema.vms)
_PUT_ADDRESSES = Upsert(schema.vm_addresses)
_PUT_FORMER = Upsert(schema.former_scopes, fixed=("ended_before",))
_REMOVE_HOSTS = Query(delete(schema.hosts).where(Among(_H.name, "names")))
_REMOVE_SCOPES = Query(delete(schema.scopes).where(Among(_S.key, "names")))
_REMOVE_VMS = Query(delete(schema.vms).where(Among(_V.name, "names")))
_REMOVE_ADDRESSES = Query(delete(schema.vm_addresses).where(Among(_A.vm, "names")))
_SET_HEARD = Query(
    update(schema.scopes)
    .where(_S.key == given.scope, func.coalesce(_S.last_heard, given.heard - 1) < given.heard)
    .values(last_heard=given.heard)
)
_SHIFT_HEARD = Query(
    update(schema.scopes)
    .where(_S.last_heard.is_not(None))
    .values(last_heard=_S.last_heard + bindparam("by", type_=schema.MOMENT()))
)
_TAG = 8
"""Characters of a scope's own tag; what follows is of the epoch."""
_RAISED = _S.incarnation + bindparam("more", type_=BigInteger)
_RAISE_EPOCH = Query(
    update(schema.scopes).values(
        incarnation=case((given.epoch < _RAISED, _RAISED), else_=given.epoch),
        tag=func.substr(_S.tag, 1, _TAG) + bindparam("suffix", type_=schema.NAME),
    )
)

_EXISTS_NOW = exists(select(_S.key).where(_S.key == _F.key))
_FORMER_NAMED = Query(select(_F.key, _F.ended_at, _F.ended_before, _EXISTS_NOW).where(Among(_F.key, "names")))
_PASS_ON = Query(update(schema.former_scopes).where(Among(_F.key, "names")).values(ended_before=_F.ended_at))


def of_latest(scope: ColumnElement[str], moment: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether something at that moment belongs to the latest scope with its key: `FormerScope.hides`, in SQL."""
    hidden_until = (
        select(case((_EXISTS_NOW, _F.ended_at), else_=_F.ended_before)).where(_F.key == scope).scalar_subquery()
    )
    return moment > func.coalesce(hidden_until, -1)


_window_texts = msgspec.json.Decoder(list[str]).decode
_WINDOWS = Codec(
    lambda text: parse_all(_window_texts(text)) if text else (),
    lambda windows: json_text([str(window) for window in windows]) if windows else None,
)
_HOSTS = Mapper(
    _H,
    Host,
    codecs={
        "labels": json_codec(dict[str, str], empty=dict, nullable=True, cached=True),
        "capacity": AMOUNT,
    },
)
_POLICIES = Mapper(_S, Policy, codecs={"windows": _WINDOWS})
_SCOPES = Mapper(_S, Scope, computed={"policy": _POLICIES.shared})
_VMS = Mapper(
    _V,
    Vm,
    codecs={
        "host": Codec(intern),
        "scope": Codec(intern),
        "facts": json_codec(Facts, empty=lambda: NO_FACTS, nullable=True, cached=True),
        "size": AMOUNT,
    },
)
host, scope, vm = _HOSTS.read, _SCOPES.read, _VMS.read


def _scope_row(scope: Scope) -> Row:
    values = dict(zip(_SCOPES.columns, _SCOPES.row(scope), strict=True))
    values.update(zip(_POLICIES.columns, _POLICIES.row(scope.policy), strict=True))
    return tuple([values[column.name] for column in _S])


_targets = msgspec.json.Decoder(dict[str, str]).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode


def moving(executor: Executor) -> dict[str, str]:
    """VMs on their way, and where to."""
    found: dict[str, str] = {}
    for targets, done in executor.rows(_MOVES):
        arrived = _names(done) if done else ()
        found.update((name, host) for name, host in _targets(targets).items() if name not in arrived)
    return found


class Place(NamedTuple):
    """Where a VM is. A page of the fleet shows thousands."""

    vm: str
    host: str
    scope: str
    update_domain: int


_PLACES = select(_V.name, _V.host, _V.scope, _V.update_domain)
_PLACED_ON = Query(_PLACES.where(Among(_V.host, "names")).order_by(_V.host, _V.name).limit(given.limit))
_PLACED_IN = Query(_PLACES.where(Among(_V.scope, "names")).order_by(_V.scope, _V.name).limit(given.limit))


@cache
def _standalone(seen: bool) -> Query:
    # By scope, whose index has them together; their keys have the order of their names.
    found = _PLACES.where(_V.scope > given.after, _V.scope < STANDALONE_PREFIX + LAST_CHARACTER)
    found = found.where(Matching(_V.scope)) if seen else found
    return Query(found.order_by(_V.scope).limit(given.limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFilter:
    name: Selector | None = None
    """Of names and labels."""
    cordoned: bool | None = None


_HOST_LIST = Listing(
    select(schema.hosts, select(func.count()).where(_V.host == _H.name).scalar_subquery()),
    schema.hosts,
    lambda row: (host(row), int(row[-1])),
    by=("name",),
    labels="labels",
)


class Hosts(Repository):
    def page(
        self, after: str | None, limit: int, wanted: HostFilter | None = None, *, descending: bool = False
    ) -> list[tuple[Host, int]]:
        """By name, beyond the name `after`, or `descending` before it; each with the number of its VMs."""
        return _HOST_LIST.page(self._executor, after, limit, wanted, descending=descending)

    def emptier(self, limit: int) -> list[str]:
        """Some that are not cordoned: those without any VM first."""
        return self._executor.column(_EMPTIER, limit=limit)

    def used(self, hosts: Collection[str]) -> dict[str, float]:
        """What the VMs on each of these hosts, and those on their way to it, take of its capacity."""
        taken = Counter(dict.fromkeys(hosts, 0))
        coming = {name: host for name, host in moving(self._executor).items() if host in taken}
        for host, size in self._executor.rows(USED_ON, names=list(hosts)) if hosts else ():
            taken[host] += taken_by(size)
        for name, size in self._executor.rows(VM_SIZES, names=list(coming)) if coming else ():
            taken[coming[name]] += taken_by(size)
        return {host: amount(thousandths) for host, thousandths in taken.items()}

    def put(self, hosts: Mapping[str, Host | None]) -> None:
        """None: it is removed; so it is for scopes and VMs."""
        self._executor.upsert(_PUT_HOSTS, [_HOSTS.row(host) for host in hosts.values() if host])
        if removed := [name for name, host in hosts.items() if host is None]:
            self._executor.run(_REMOVE_HOSTS, names=removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    name: Selector | None = None
    """Of keys of scopes."""
    seen: Selector | None = None
    """Those of these scopes only, as in all filters."""


_GROUP_LIST = Listing(
    select(schema.scopes, select(func.count()).where(_V.scope == _S.key).scalar_subquery()).where(
        _S.key >= GROUP_PREFIX, _S.key < GROUP_PREFIX + LAST_CHARACTER, _S.kind != ScopeKind.STANDALONE.value
    ),
    schema.scopes,
    lambda row: (scope(row), int(row[-1])),
    by=("key",),
    seen=lambda columns: Matching(columns.key),
)


class Scopes(Repository):
    def groups(
        self, after: str | None, limit: int, wanted: GroupFilter | None = None, *, descending: bool = False
    ) -> list[tuple[Scope, int]]:
        """By name, as hosts, each with the number of its VMs."""
        key = None if after is None else GROUP_PREFIX + after
        return _GROUP_LIST.page(self._executor, key, limit, wanted, descending=descending)

    def named(self, keys: Collection[str]) -> dict[str, Scope]:
        """Those that exist."""
        return {row[0]: scope(row) for row in self._executor.rows(SCOPES_NAMED, names=list(keys))}

    def former(self, keys: Collection[str]) -> dict[str, FormerScope]:
        """Which of these scope keys were removed at least once."""
        found = self._executor.rows(_FORMER_NAMED, names=list(keys)) if keys else ()
        return {
            key: FormerScope(ended_at=rows.moment(ended_at), before=rows.optional_moment(before), exists=bool(exists))
            for key, ended_at, before, exists in found
        }

    def put(self, scopes: Mapping[str, Scope | None], now: datetime | None) -> None:
        """Those that are removed were there until `now`, if it is given."""
        self._executor.upsert(_PUT_SCOPES, [_scope_row(scope) for scope in scopes.values() if scope])
        if removed := [key for key, scope in scopes.items() if scope is None]:
            self._executor.run(_REMOVE_SCOPES, names=removed)
            if now is not None:
                self._executor.run(_PASS_ON, names=removed)
                self._executor.upsert(_PUT_FORMER, [(key, rows.number(now), None) for key in removed])

    def set_heard(self, heard: Mapping[str, datetime]) -> None:
        """When scopes were last heard. Never goes back; unknown scopes are passed over."""
        each = [{"scope": key, "heard": rows.number(moment)} for key, moment in heard.items()]
        self._executor.run_each(_SET_HEARD, each)

    def shift_heard(self, by: timedelta) -> None:
        """Move every `last_heard`: our own downtime does not count as silence."""
        self._executor.run(_SHIFT_HEARD, by=rows.microseconds(by))

    def raise_epoch(self, epoch: int) -> None:
        """Give every scope a tag of this epoch and an incarnation that goes on from there."""
        self._executor.run(_RAISE_EPOCH, epoch=epoch, suffix=documents.epoch_suffix(epoch), more=documents.STEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFilter:
    name: Selector | None = None
    host: str | None = None
    scope: str | None = None
    spot: bool | None = None
    seen: Selector | None = None


_VM_LIST = Listing(select(schema.vms), schema.vms, vm, by=("name",), seen=lambda columns: Matching(columns.scope))


class Vms(Repository):
    def page(
        self, after: str | None, limit: int, wanted: VmFilter | None = None, *, descending: bool = False
    ) -> list[Vm]:
        """By name, as hosts."""
        return _VM_LIST.page(self._executor, after, limit, wanted, descending=descending)

    def placed_on(self, hosts: Collection[str], limit: int) -> list[Place]:
        """The first VMs of these hosts, by host and name."""
        return [Place(*row) for row in self._executor.rows(_PLACED_ON, names=list(hosts), limit=limit)]

    def placed_in(self, scopes: Collection[str], limit: int) -> list[Place]:
        """The first VMs of these scopes, by scope and name."""
        return [Place(*row) for row in self._executor.rows(_PLACED_IN, names=list(scopes), limit=limit)]

    def standalone(self, after: str, limit: int, seen: Selector | None = None) -> list[Place]:
        """VMs without a group, by name, beyond the name `after`."""
        query, place = _standalone(seen is not None), STANDALONE_PREFIX + after
        return [Place(*row) for row in self._executor.rows(query, after=place, limit=limit, **patterns(seen))]

    def put(self, vms: Mapping[str, Vm | None]) -> None:
        if not vms:
            return
        kept = [vm for vm in vms.values() if vm]
        # Remove all addresses before adding any: an address may pass from one VM to another.
        self._executor.run(_REMOVE_ADDRESSES, names=list(vms))
        if removed := [name for name, vm in vms.items() if vm is None]:
            self._executor.run(_REMOVE_VMS, names=removed)
        self._executor.upsert(_PUT_VMS, [_VMS.row(vm) for vm in kept])
        self._executor.upsert(_PUT_ADDRESSES, [(identity, vm.name) for vm in kept for identity in vm.known_by])
