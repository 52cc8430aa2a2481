"""Hosts, scopes and VMs in their tables."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from sys import intern
from typing import Any

import msgspec
from sqlalchemy import BigInteger, bindparam, case, delete, exists, func, or_, select, update

from forenotice.core import documents
from forenotice.core.fleet import GROUP_PREFIX, NO_FACTS, Facts, Host, Listening, Policy, Scope, ScopeKind, Vm
from forenotice.core.operations import Kind, Status
from forenotice.core.windows import parse_all
from forenotice.store import moments, schema
from forenotice.store.pages import LAST_CHARACTER, Listing, equal, named
from forenotice.store.queries import Among, Executor, Matching, Query, Row, Upsert

_H, _S, _V, _A = schema.hosts.c, schema.scopes.c, schema.vms.c, schema.vm_addresses.c

HOSTS = Query(select(schema.hosts))
HOSTS_NAMED = Query(select(schema.hosts).where(Among(_H.name, "names")))
SCOPES = Query(select(schema.scopes))
SCOPES_NAMED = Query(select(schema.scopes).where(Among(_S.key, "names")).order_by(_S.key))
SCOPES_AFTER = Query(
    select(schema.scopes).where(_S.key > bindparam("after")).order_by(_S.key).limit(bindparam("limit"))
)
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
DOMAINS_IN = Query(
    select(_V.scope, _V.host, _V.update_domain, _V.fault_domain, func.count())
    .where(Among(_V.scope, "names"))
    .group_by(_V.scope, _V.host, _V.update_domain, _V.fault_domain)
)
EMPTIER = Query(
    select(_H.name)
    .where(_H.cordoned.is_(False), ~_MAINTAINED)
    .order_by(case((exists(select(_V.name).where(_V.host == _H.name)), 1), else_=0), _H.name)
    .limit(bindparam("limit"))
)

_PUT_HOSTS, _PUT_SCOPES, _PUT_VMS = Upsert(schema.hosts), Upsert(schema.scopes), Upsert(schema.vms)
_PUT_ADDRESSES = Upsert(schema.vm_addresses)
_REMOVE_HOSTS = Query(delete(schema.hosts).where(Among(_H.name, "names")))
_REMOVE_SCOPES = Query(delete(schema.scopes).where(Among(_S.key, "names")))
_REMOVE_VMS = Query(delete(schema.vms).where(Among(_V.name, "names")))
_REMOVE_ADDRESSES = Query(delete(schema.vm_addresses).where(Among(_A.vm, "names")))
_SET_HEARD = Query(
    update(schema.scopes)
    .where(_S.key == bindparam("scope"), func.coalesce(_S.last_heard, bindparam("heard") - 1) < bindparam("heard"))
    .values(last_heard=bindparam("heard"))
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
        incarnation=case((bindparam("epoch") < _RAISED, _RAISED), else_=bindparam("epoch")),
        tag=func.substr(_S.tag, 1, _TAG) + bindparam("suffix", type_=schema.NAME),
    )
)

_KINDS = {kind.value: kind for kind in ScopeKind}
_LISTENING = {listening.value: listening for listening in Listening}
_addresses = msgspec.json.Decoder(tuple[str, ...])
_facts = msgspec.json.Decoder(Facts)
_labels = msgspec.json.Decoder(dict[str, str])
_windows = msgspec.json.Decoder(list[str])
_encode = msgspec.json.Encoder().encode


def host(row: Row) -> Host:
    name, cordoned, labels, capacity, *_ = row
    return Host(
        name=name,
        cordoned=bool(cordoned),
        labels=_decode_labels(labels) if labels else {},
        capacity=amount(capacity),
    )


def scope(row: Row) -> Scope:
    key, kind, tag, incarnation, *policy, last_heard = row
    return Scope(
        key=key,
        kind=_KINDS[kind],
        tag=tag,
        incarnation=incarnation,
        policy=_policy(*policy),
        last_heard=moments.optional(last_heard),
    )


# Fleets have few different policies and sets of facts; VMs that have the same share one object.
@lru_cache(maxsize=1024)
def _policy(
    listening: str,
    auto_approve_restart: bool,
    auto_approve_redeploy: bool,
    terminate_notice: int | None,
    max_user_operations: int | None,
    max_unavailable: str | None,
    min_available: int | None,
    windows: str | None,
) -> Policy:
    return Policy(
        listening=_LISTENING[listening],
        auto_approve_restart=bool(auto_approve_restart),
        auto_approve_redeploy=bool(auto_approve_redeploy),
        terminate_notice=moments.to_duration(terminate_notice),
        max_user_operations=max_user_operations,
        max_unavailable=max_unavailable,
        min_available=min_available,
        windows=parse_all(_windows.decode(windows)) if windows else (),
    )


@lru_cache(maxsize=1024)
def _decode_labels(text: str) -> dict[str, str]:
    return _labels.decode(text)


@lru_cache(maxsize=1024)
def _decode_facts(text: str) -> Facts:
    return _facts.decode(text)


def vm(row: Row) -> Vm:
    name, vm_id, host, scope, update_domain, fault_domain, spot, addresses, facts, size = row
    return Vm(
        name=name,
        vm_id=vm_id,
        host=intern(host),
        scope=intern(scope),
        update_domain=update_domain,
        fault_domain=fault_domain,
        spot=bool(spot),
        addresses=_addresses.decode(addresses) if addresses else (),
        facts=_decode_facts(facts) if facts else NO_FACTS,
        size=amount(size),
    )


def amount(value: float | None) -> float | None:
    """Whole numbers as such, as they were given."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def put_hosts(executor: Executor, hosts: Mapping[str, Host | None]) -> None:
    executor.upsert(_PUT_HOSTS, [_host_row(host) for host in hosts.values() if host])
    if removed := [name for name, host in hosts.items() if host is None]:
        executor.run(_REMOVE_HOSTS, names=removed)


def _host_row(host: Host) -> Row:
    return host.name, host.cordoned, _encode(host.labels).decode() if host.labels else None, host.capacity


def put_scopes(executor: Executor, scopes: Mapping[str, Scope | None]) -> None:
    executor.upsert(_PUT_SCOPES, [_scope_row(scope) for scope in scopes.values() if scope])
    if removed := [key for key, scope in scopes.items() if scope is None]:
        executor.run(_REMOVE_SCOPES, names=removed)


def _scope_row(scope: Scope) -> Row:
    policy = scope.policy
    return (
        scope.key,
        scope.kind.value,
        scope.tag,
        scope.incarnation,
        policy.listening.value,
        policy.auto_approve_restart,
        policy.auto_approve_redeploy,
        moments.duration_to_number(policy.terminate_notice),
        policy.max_user_operations,
        policy.max_unavailable,
        policy.min_available,
        _encode([str(window) for window in policy.windows]).decode() if policy.windows else None,
        moments.to_number(scope.last_heard),
    )


def put_vms(executor: Executor, vms: Mapping[str, Vm | None]) -> None:
    if not vms:
        return
    kept = [vm for vm in vms.values() if vm]
    # All before any: an address may pass from one VM to another.
    executor.run(_REMOVE_ADDRESSES, names=list(vms))
    if removed := [name for name, vm in vms.items() if vm is None]:
        executor.run(_REMOVE_VMS, names=removed)
    executor.upsert(_PUT_VMS, [_vm_row(vm) for vm in kept])
    executor.upsert(_PUT_ADDRESSES, _address_rows(kept))


def _vm_row(vm: Vm) -> Row:
    return (
        vm.name,
        vm.vm_id,
        vm.host,
        vm.scope,
        vm.update_domain,
        vm.fault_domain,
        vm.spot,
        _encode(vm.addresses).decode() if vm.addresses else None,
        None if vm.facts is NO_FACTS or vm.facts == NO_FACTS else _encode(vm.facts).decode(),
        vm.size,
    )


def _address_rows(vms: Iterable[Vm]) -> list[Row]:
    return [(identity, vm.name) for vm in vms for identity in vm.known_by]


def set_heard(executor: Executor, heard: Mapping[str, datetime]) -> None:
    executor.run_each(_SET_HEARD, [{"scope": key, "heard": moments.to_number(moment)} for key, moment in heard.items()])


def shift_heard(executor: Executor, by: timedelta) -> None:
    executor.run(_SHIFT_HEARD, by=moments.duration_to_number(by))


def raise_epoch(executor: Executor, epoch: int) -> None:
    executor.run(_RAISE_EPOCH, epoch=epoch, suffix=documents.epoch_suffix(epoch), more=documents.STEP)


def list_hosts(executor: Executor, after: str | None, limit: int, **how: Any) -> list[tuple[Host, int]]:
    return [(host(row), row[-1]) for row in _HOSTS.page(executor, after=after, limit=limit, **how)]


_HOSTS = Listing(
    select(schema.hosts, select(func.count()).where(_V.host == _H.name).scalar_subquery()),
    schema.hosts,
    by=("name",),
    filters={"cordoned": equal("cordoned", "cordoned"), "name": named("name", labels="labels")},
)


def list_groups(executor: Executor, after: str | None, limit: int, **how: Any) -> list[tuple[Scope, int]]:
    place = None if after is None else GROUP_PREFIX + after
    return [(scope(row[:-1]), row[-1]) for row in _GROUPS.page(executor, after=place, limit=limit, **how)]


_GROUPS = Listing(
    select(schema.scopes, select(func.count()).where(_V.scope == _S.key).scalar_subquery()).where(
        _S.key >= GROUP_PREFIX, _S.key < GROUP_PREFIX + LAST_CHARACTER, _S.kind != ScopeKind.STANDALONE.value
    ),
    schema.scopes,
    by=("key",),
    filters={"name": named("key"), "seen": lambda columns: Matching(columns.key)},
)


def list_vms(executor: Executor, after: str | None, limit: int, **how: Any) -> list[Vm]:
    return [vm(row) for row in _VMS.page(executor, after=after, limit=limit, **how)]


_VMS = Listing(
    select(schema.vms),
    schema.vms,
    by=("name",),
    filters={
        "host": equal("host", "host"),
        "scope": equal("scope", "scope"),
        "spot": equal("spot", "spot"),
        "name": named("name"),
        "seen": lambda columns: Matching(columns.scope),
    },
)


def scopes_named(executor: Executor, keys: Collection[str]) -> list[Scope]:
    return [scope(row) for row in executor.rows(SCOPES_NAMED, names=list(keys))]
