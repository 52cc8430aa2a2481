"""Where VMs are, as small rows: a page of the fleet shows thousands."""

from collections.abc import Collection, Iterable
from functools import cache
from typing import NamedTuple

import msgspec
from sqlalchemy import bindparam, select

from forenotice.core.fleet import STANDALONE_PREFIX
from forenotice.core.operations import Status
from forenotice.core.selectors import Selector
from forenotice.store import schema
from forenotice.store.operations import STATUSES
from forenotice.store.pages import LAST_CHARACTER
from forenotice.store.queries import Among, Executor, Matching, Query, Row, patterns

_V, _E, _O = schema.vms.c, schema.events.c, schema.operations.c


class Place(NamedTuple):
    vm: str
    host: str
    scope: str
    update_domain: int


_ROWS = select(_V.name, _V.host, _V.scope, _V.update_domain)
_ON = Query(_ROWS.where(Among(_V.host, "names")).order_by(_V.host, _V.name).limit(bindparam("limit")))
_WITHIN = Query(_ROWS.where(Among(_V.scope, "names")).order_by(_V.scope, _V.name).limit(bindparam("limit")))
_NAMING = Query(select(_E.status, _E.resources).where(Among(_E.scope, "names"), _E.ended_at.is_(None)))
_ON_HOST = Query(
    select(_E.id, _E.operation)
    .join_from(schema.events, schema.operations, _O.id == _E.operation)
    .where(_O.host == bindparam("host"), _O.ended_at.is_(None), _E.ended_at.is_(None))
    .order_by(_O.status.desc(), _O.not_before, _O.created_at, _E.id)
    .limit(bindparam("limit"))
)
_names = msgspec.json.Decoder(tuple[str, ...])


@cache
def _standalone(seen: bool) -> Query:
    # By scope, whose index has them together; their keys have the order of their names.
    rows = _ROWS.where(_V.scope > bindparam("after"), _V.scope < STANDALONE_PREFIX + LAST_CHARACTER)
    rows = rows.where(Matching(_V.scope)) if seen else rows
    return Query(rows.order_by(_V.scope).limit(bindparam("limit")))


class Places:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def on(self, hosts: Collection[str], limit: int) -> list[Place]:
        """The first VMs of these hosts, by host and name."""
        return _places(self._executor.rows(_ON, names=list(hosts), limit=limit))

    def within(self, scopes: Collection[str], limit: int) -> list[Place]:
        """The first VMs of these scopes, by scope and name."""
        return _places(self._executor.rows(_WITHIN, names=list(scopes), limit=limit))

    def standalone(self, after: str, limit: int, seen: Selector | None = None) -> list[Place]:
        """VMs without a group, by name, beyond the name `after`."""
        query = _standalone(seen is not None)
        return _places(self._executor.rows(query, after=STANDALONE_PREFIX + after, limit=limit, **patterns(seen)))

    def naming(self, scopes: Collection[str]) -> list[tuple[Status, tuple[str, ...]]]:
        """The live events of these scopes, each as its status and the VMs that it names."""
        return [(STATUSES[row[0]], _names.decode(row[1])) for row in self._executor.rows(_NAMING, names=list(scopes))]

    def told_on(self, host: str, limit: int) -> dict[str, str]:
        """Ids of live events about what is done to this host or on it, each with its operation's; the started first."""
        return dict(self._executor.rows(_ON_HOST, host=host, limit=limit))


def _places(rows: Iterable[Row]) -> list[Place]:
    return [Place._make(row) for row in rows]
