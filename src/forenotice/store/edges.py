"""Which hosts have an edge, and which of these are lost."""

from collections.abc import Collection, Iterable

from forenotice.core.edges import Edge
from forenotice.store import schema
from forenotice.store.queries import Repository
from forenotice.store.rows import Mapper

_EDGES = Mapper(schema.edges.c, Edge)


class Edges(Repository):
    """A host that is removed takes its edge with it."""

    def all(self) -> list[Edge]:
        return self._all(_EDGES, "SELECT edges.* FROM edges ORDER BY host")

    def of(self, hosts: Collection[str]) -> list[Edge]:
        """Of those of these hosts that have one."""
        query = "SELECT edges.* FROM edges WHERE host IN :names ORDER BY host"
        return self._all(_EDGES, query, names=hosts) if hosts else []

    def put(self, edges: Iterable[Edge]) -> None:
        self._db.upsert(schema.edges, [_EDGES.row(edge) for edge in edges])

    def forget(self, host: str) -> None:
        self._db.run("DELETE FROM edges WHERE host = :host", host=host)
