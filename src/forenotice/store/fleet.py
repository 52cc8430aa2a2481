"""Hosts, scopes and VMs in their tables, and when scopes were removed."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from sys import intern
from typing import NamedTuple

import msgspec

from forenotice.core import documents
from forenotice.core import fleet as core
from forenotice.core.fleet import GROUP_PREFIX, STANDALONE_PREFIX, FormerScope, Host, Policy, Scope, Vm
from forenotice.core.selectors import Selector
from forenotice.core.windows import parse_all
from forenotice.store import rows, schema
from forenotice.store.queries import LAST_CHARACTER, Executor, Listed, Listing, Repository, kinds, patterns
from forenotice.store.rows import AMOUNT, Codec, Mapper, Row, json_codec, json_text

TAKES_VMS = f"""hosts.cordoned IS FALSE AND NOT EXISTS (SELECT 1 FROM operations WHERE operations.host = hosts.name
    AND ended_at IS NULL AND status <> 'Planned' AND kind IN {kinds(lambda traits: traits.keeps_others_away)})
    AND NOT EXISTS (SELECT 1 FROM edges WHERE edges.host = hosts.name AND lost_since IS NOT NULL)"""
USED_ON = "SELECT host, sum(coalesce(size, 1)) FROM vms WHERE host IN :names GROUP BY host"
SIZES = "SELECT name, size FROM vms WHERE name IN :names"
_EXISTS_NOW = "EXISTS (SELECT 1 FROM scopes WHERE scopes.key = former_scopes.key)"
# Which edges are lost is asked for once, and for each scope only where there are any.
_UNHEARD = """CASE WHEN EXISTS (SELECT 1 FROM edges WHERE lost_since IS NOT NULL) THEN
    (SELECT min(lost_since) FROM vms JOIN edges ON edges.host = vms.host WHERE vms.scope = scopes.key) END"""
SCOPES = f"SELECT scopes.*, {_UNHEARD} FROM scopes"
_TAG = 8
"""Characters of a scope's own tag; what follows is of the epoch."""


def of_latest(scope: str, moment: str) -> str:
    """Whether something at that moment belongs to the latest scope with its key: `FormerScope.hides`, in SQL."""
    return f"""{moment} > coalesce((SELECT CASE WHEN {_EXISTS_NOW} THEN former_scopes.ended_at
        ELSE former_scopes.ended_before END FROM former_scopes WHERE former_scopes.key = {scope}), -1)"""


_window_texts = msgspec.json.Decoder(list[str]).decode
_WINDOWS = Codec(
    lambda text: parse_all(_window_texts(text)) if text else (),
    lambda windows: json_text([str(window) for window in windows]) if windows else None,
)
_LABELS = json_codec(dict[str, str], empty=dict, nullable=True, cached=True)
_FACTS = json_codec(core.Facts, empty=lambda: core.NO_FACTS, nullable=True, cached=True)
_HOSTS = Mapper(schema.hosts.c, Host, codecs={"labels": _LABELS, "capacity": AMOUNT})
_POLICIES = Mapper(schema.scopes.c, Policy, codecs={"windows": _WINDOWS})
_SCOPES = Mapper(
    schema.scopes.c,
    Scope,
    computed={
        "policy": _POLICIES.shared,
        "unheard_since": lambda row: rows.optional_moment(row[len(schema.scopes.c)]),
    },
)
_VMS = Mapper(schema.vms.c, Vm, codecs={"host": Codec(intern), "scope": Codec(intern), "facts": _FACTS, "size": AMOUNT})
host, scope, vm = _HOSTS.read, _SCOPES.read, _VMS.read


def _scope_row(scope: Scope) -> Row:
    values = dict(zip(_SCOPES.columns, _SCOPES.row(scope), strict=True))
    values.update(zip(_POLICIES.columns, _POLICIES.row(scope.policy), strict=True))
    return tuple([values[column.name] for column in schema.scopes.c])


_targets = msgspec.json.Decoder(dict[str, str]).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode


def moving(executor: Executor) -> dict[str, str]:
    """VMs on their way, and where to."""
    found: dict[str, str] = {}
    for targets, done in executor.rows(
        "SELECT targets, done FROM operations WHERE ended_at IS NULL AND status = 'Started' AND targets IS NOT NULL"
    ):
        arrived = _names(done) if done else ()
        found.update((name, host) for name, host in _targets(targets).items() if name not in arrived)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFilter:
    name: Selector | None = None
    """Of names and labels."""
    cordoned: bool | None = None


class Hosts(Listed[tuple[Host, int], HostFilter]):
    """The list has the number of VMs on each."""

    _list = Listing(
        schema.hosts,
        lambda row: (host(row), int(row[-1])),
        by=("name",),
        more=", (SELECT count(*) FROM vms WHERE vms.host = hosts.name)",
        labels=", {0}.labels",
    )

    def emptier(self, limit: int) -> list[str]:
        """Some that are not cordoned: those without any VM first."""
        has_vms = "CASE WHEN EXISTS (SELECT 1 FROM vms WHERE vms.host = hosts.name) THEN 1 ELSE 0 END"
        return self._db.column(
            f"SELECT name FROM hosts WHERE {TAKES_VMS} ORDER BY {has_vms}, name LIMIT :limit", limit=limit
        )

    def used(self, hosts: Collection[str]) -> dict[str, float]:
        """What the VMs on each of these hosts, and those on their way to it, take of its capacity."""
        taken = Counter(dict.fromkeys(hosts, 0))
        coming = {name: host for name, host in moving(self._db).items() if host in taken}
        for host, size in self._db.rows(USED_ON, names=hosts) if hosts else ():
            taken[host] += core.taken_by(size)
        for name, size in self._db.rows(SIZES, names=coming) if coming else ():
            taken[coming[name]] += core.taken_by(size)
        return {host: core.amount(thousandths) for host, thousandths in taken.items()}

    def among(self, names: Collection[str]) -> set[str]:
        """Those of these names that are hosts."""
        return set(self._db.column("SELECT name FROM hosts WHERE name IN :names", names=names)) if names else set()

    def watched(self) -> list[Host]:
        """Those that have an inventory."""
        return self._all(_HOSTS, "SELECT hosts.* FROM hosts WHERE inventory IS NOT NULL ORDER BY name")

    def put(self, hosts: Mapping[str, Host | None]) -> None:
        """None: it is removed; so it is for scopes and VMs."""
        self._db.upsert(schema.hosts, [_HOSTS.row(host) for host in hosts.values() if host])
        if removed := [name for name, host in hosts.items() if host is None]:
            self._db.run("DELETE FROM hosts WHERE name IN :names", names=removed)
            self._db.run("DELETE FROM edges WHERE host IN :names", names=removed)
        if unwatched := [name for name, host in hosts.items() if host is None or host.inventory is None]:
            self._db.run("DELETE FROM drift WHERE host IN :names", names=unwatched)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    name: Selector | None = None
    """Of keys of scopes."""
    seen: Selector | None = None
    """Those of these scopes only, as in all filters."""


_GROUPS = Listing(
    schema.scopes,
    lambda row: (scope(row), int(row[-1])),
    by=("key",),
    more=f", {_UNHEARD}, (SELECT count(*) FROM vms WHERE vms.scope = scopes.key)",
    where=f"scopes.key >= '{GROUP_PREFIX}' AND scopes.key < '{GROUP_PREFIX}{LAST_CHARACTER}'"
    " AND scopes.kind <> 'standalone'",
    seen="FITS({0}.key, seen)",
)


class Scopes(Repository):
    def groups(
        self, after: str | None, limit: int, wanted: GroupFilter | None = None, *, descending: bool = False
    ) -> list[tuple[Scope, int]]:
        """By name, as hosts, each with the number of its VMs."""
        key = None if after is None else GROUP_PREFIX + after
        return _GROUPS.page(self._db, key, limit, wanted, descending=descending)

    def named(self, keys: Collection[str]) -> dict[str, Scope]:
        """Those that exist."""
        found = self._db.rows(f"{SCOPES} WHERE key IN :names ORDER BY key", names=keys)
        return {row[0]: scope(row) for row in found}

    def former(self, keys: Collection[str]) -> dict[str, FormerScope]:
        """Which of these scope keys were removed at least once."""
        query = f"SELECT former_scopes.*, {_EXISTS_NOW} FROM former_scopes WHERE former_scopes.key IN :names"
        return {
            key: FormerScope(ended_at=rows.moment(ended_at), before=rows.optional_moment(before), exists=bool(exists))
            for key, ended_at, before, exists in (self._db.rows(query, names=keys) if keys else ())
        }

    def put(self, scopes: Mapping[str, Scope | None], now: datetime | None) -> None:
        """Those that are removed were there until `now`, if it is given."""
        self._db.upsert(schema.scopes, [_scope_row(scope) for scope in scopes.values() if scope])
        if removed := [key for key, scope in scopes.items() if scope is None]:
            self._db.run("DELETE FROM scopes WHERE key IN :names", names=removed)
            if now is not None:
                self._db.run("UPDATE former_scopes SET ended_before = ended_at WHERE key IN :names", names=removed)
                former = [(key, rows.number(now), None) for key in removed]
                self._db.upsert(schema.former_scopes, former, fixed=("ended_before",))

    def set_heard(self, heard: Mapping[str, datetime]) -> None:
        """When scopes were last heard. Never goes back; unknown scopes are passed over."""
        self._db.run_each(
            "UPDATE scopes SET last_heard = :heard WHERE key = :key AND coalesce(last_heard, :heard - 1) < :heard",
            [{"key": key, "heard": moment} for key, moment in heard.items()],
        )

    def shift_heard(self, by: timedelta) -> None:
        """Move every `last_heard`: our own downtime does not count as silence."""
        self._db.run("UPDATE scopes SET last_heard = last_heard + :by WHERE last_heard IS NOT NULL", by=by)

    def raise_epoch(self, epoch: int) -> None:
        """Give every scope a tag of this epoch and an incarnation that goes on from there."""
        self._db.run(
            "UPDATE scopes SET tag = substr(tag, 1, :own) || :suffix, incarnation ="
            " CASE WHEN :epoch < incarnation + :more THEN incarnation + :more ELSE :epoch END",
            epoch=epoch,
            own=_TAG,
            suffix=documents.epoch_suffix(epoch),
            more=documents.STEP,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VmFilter:
    name: Selector | None = None
    host: str | None = None
    scope: str | None = None
    spot: bool | None = None
    seen: Selector | None = None


class Place(NamedTuple):
    """Where a VM is. A page of the fleet shows thousands."""

    vm: str
    host: str
    scope: str
    update_domain: int


class Vms(Listed[Vm, VmFilter]):
    _list = Listing(schema.vms, vm, by=("name",), seen="FITS({0}.scope, seen)")

    def placed_on(self, hosts: Collection[str], limit: int) -> list[Place]:
        """The first VMs of these hosts, by host and name."""
        return self._places("host IN :names ORDER BY host, name", names=hosts, limit=limit)

    def placed_in(self, scopes: Collection[str], limit: int) -> list[Place]:
        """The first VMs of these scopes, by scope and name."""
        return self._places("scope IN :names ORDER BY scope, name", names=scopes, limit=limit)

    def standalone(self, after: str, limit: int, seen: Selector | None = None) -> list[Place]:
        """VMs without a group, by name, beyond the name `after`."""
        # By scope, whose index has them together; their keys have the order of their names.
        fits = "" if seen is None else " AND FITS(vms.scope, seen)"
        where = f"scope > :after AND scope < :end{fits} ORDER BY scope"
        after, end = STANDALONE_PREFIX + after, STANDALONE_PREFIX + LAST_CHARACTER
        return self._places(where, after=after, end=end, limit=limit, **patterns(seen))

    def _places(self, where: str, **parameters: object) -> list[Place]:
        query = f"SELECT name, host, scope, update_domain FROM vms WHERE {where} LIMIT :limit"
        return [Place(*row) for row in self._db.rows(query, **parameters)]

    def whereabouts(self, name: str) -> set[str]:
        """The host of a VM, and those that it is on its way to."""
        under_way = """SELECT targets FROM operations WHERE ended_at IS NULL AND status = 'Started'
            AND targets IS NOT NULL AND id IN (SELECT operation FROM vm_operations WHERE vm = :vm)"""
        found = set(self._db.column("SELECT host FROM vms WHERE name = :vm", vm=name))
        return found | {
            host for text in self._db.column(under_way, vm=name) if (host := _targets(text).get(name)) is not None
        }

    def known_by(self, identities: Collection[str]) -> dict[str, str]:
        """By address or vmId in lower case, the name of the VM."""
        query = "SELECT address, vm FROM vm_addresses WHERE address IN :names"
        return dict(self._db.rows(query, names=identities)) if identities else {}

    def put(self, vms: Mapping[str, Vm | None]) -> None:
        if not vms:
            return
        kept = [vm for vm in vms.values() if vm]
        # Remove all addresses before adding any: an address may pass from one VM to another.
        self._db.run("DELETE FROM vm_addresses WHERE vm IN :names", names=vms)
        if removed := [name for name, vm in vms.items() if vm is None]:
            self._db.run("DELETE FROM vms WHERE name IN :names", names=removed)
            self._db.run("DELETE FROM drift WHERE name IN :names", names=removed)
            self._db.run("DELETE FROM definitions WHERE vm IN :names", names=removed)
        self._db.upsert(schema.vms, [_VMS.row(vm) for vm in kept])
        self._db.upsert(schema.vm_addresses, [(identity, vm.name) for vm in kept for identity in vm.known_by])
