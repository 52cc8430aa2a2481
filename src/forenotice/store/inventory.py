"""How watched hosts differ from the fleet, and VMs as their hosts last described them."""

from collections.abc import Collection, Mapping
from datetime import datetime

from forenotice.core.fleet import Drift
from forenotice.store import schema
from forenotice.store.queries import Repository
from forenotice.store.rows import Mapper, number

_DRIFT = Mapper(schema.drift.c, Drift)
_SELECT = "SELECT drift.* FROM drift"


class Drifts(Repository):
    """A host or VM that is removed, and a host that is no longer watched, takes its drift with it."""

    def page(self, limit: int, *, host: str | None = None, vm: str | None = None) -> list[Drift]:
        """The first, by host and name."""
        wanted = [clause for clause, value in (("host = :host", host), ("name = :vm", vm)) if value is not None]
        where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
        return self._all(_DRIFT, f"{_SELECT}{where} ORDER BY host, name LIMIT :limit", host=host, vm=vm, limit=limit)

    def of_vms(self, names: Collection[str]) -> dict[str, list[Drift]]:
        found: dict[str, list[Drift]] = {}
        for drift in self._all(_DRIFT, f"{_SELECT} WHERE name IN :names ORDER BY host", names=names) if names else ():
            found.setdefault(drift.name, []).append(drift)
        return found

    def missing(self, names: Collection[str]) -> set[str]:
        """Those of these VMs that are."""
        query = "SELECT name FROM drift WHERE kind = 'missing' AND name IN :names"
        return set(self._db.column(query, names=names)) if names else set()

    def on(self, host: str) -> list[Drift]:
        return self._all(_DRIFT, f"{_SELECT} WHERE host = :host", host=host)

    def counts(self, hosts: Collection[str]) -> dict[str, int]:
        """How many each of these hosts has."""
        query = "SELECT host, count(*) FROM drift WHERE host IN :names GROUP BY host"
        return dict(self._db.rows(query, names=hosts)) if hosts else {}

    def counts_by_kind(self) -> dict[str, int]:
        return dict(self._db.rows("SELECT kind, count(*) FROM drift GROUP BY kind"))

    def hosts(self) -> list[str]:
        """Those that have any."""
        return self._db.column("SELECT DISTINCT host FROM drift ORDER BY host")

    def put(self, drift: Mapping[tuple[str, str], Drift | None]) -> None:
        """None: it is settled."""
        self._db.upsert(schema.drift, [_DRIFT.row(each) for each in drift.values() if each])
        if settled := [{"host": host, "name": name} for (host, name), each in drift.items() if each is None]:
            self._db.run_each("DELETE FROM drift WHERE host = :host AND name = :name", settled)


class Definitions(Repository):
    def get(self, vm: str) -> str | None:
        xml: str | None = self._db.value("SELECT xml FROM definitions WHERE vm = :vm", vm=vm)
        return xml

    def of(self, vms: Collection[str]) -> dict[str, str]:
        query = "SELECT vm, xml FROM definitions WHERE vm IN :names"
        return dict(self._db.rows(query, names=vms)) if vms else {}

    def stamps(self, vms: Collection[str]) -> dict[str, int]:
        """Which differ whenever one is put again."""
        query = "SELECT vm, at FROM definitions WHERE vm IN :names"
        return dict(self._db.rows(query, names=vms)) if vms else {}

    def put(self, definitions: Mapping[str, str], at: datetime) -> None:
        """Of VMs that are in the fleet."""
        self._db.upsert(schema.definitions, [(vm, xml, number(at)) for vm, xml in definitions.items()])
