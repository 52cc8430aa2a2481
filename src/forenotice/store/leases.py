"""Leases: of several processes on one database, one alone does something, and how far it has got."""

from dataclasses import dataclass
from datetime import datetime

from forenotice.store import schema
from forenotice.store.queries import Repository
from forenotice.store.rows import EPOCH, Mapper, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    name: str
    holder: str = ""
    """A process; empty: nobody."""
    until: datetime = EPOCH
    position: int | None = None
    """Of the journal: how far holders have got, for those whose work follows it."""


_LEASES = Mapper(schema.leases.c, Lease)


class Leases(Repository):
    def get(self, name: str) -> Lease:
        query = "SELECT leases.* FROM leases WHERE name = :name"
        return self._find(_LEASES, query, name=name) or Lease(name=name)

    def put(self, name: str, holder: str, until: datetime) -> None:
        """Its position stays."""
        self._db.upsert(schema.leases, [(name, holder, number(until), None)], fixed=("position",))

    def advance(self, name: str, holder: str, position: int) -> bool:
        """Keep how far the holder has got. False: it is not the holder."""
        query = "UPDATE leases SET position = :position WHERE name = :name AND holder = :holder"
        return self._db.run(query, position=position, name=name, holder=holder) > 0

    def release(self, name: str, holder: str) -> None:
        """If it holds it."""
        query = "UPDATE leases SET holder = '', until = 0 WHERE name = :name AND holder = :holder"
        self._db.run(query, name=name, holder=holder)

    def release_all(self) -> None:
        self._db.run("UPDATE leases SET holder = '', until = 0")
