"""Operations in their table: what is due, who has claimed it, and the results that drivers sent by callback."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from sqlalchemy import ColumnElement, bindparam, case, delete, exists, func, or_, select, update

from forenotice.core.driver_calls import Finished
from forenotice.core.operations import Kind, Operation, Source, Status
from forenotice.core.selectors import Selector
from forenotice.store import fleet, rows, schema
from forenotice.store.pages import Listing
from forenotice.store.queries import Among, Matching, Query, Repository, Upsert, given
from forenotice.store.rows import Codec, Mapper, json_text

_O, _E, _V = schema.operations.c, schema.events.c, schema.vms.c
_LIVE = _O.ended_at.is_(None)

NAMED = Query(select(schema.operations).where(Among(_O.id, "names")))
LIVE = Query(select(schema.operations).where(_LIVE))
ASKED_BY = Query(
    select(_O.author, func.count())
    .where(_LIVE, or_(*(_O.kind == kind.value for kind in Kind if kind.traits.source is Source.USER)))
    .group_by(_O.author)
)
LIVE_ON = Query(select(schema.operations).where(Among(_O.host, "names"), _LIVE))
STARTED_ON = Query(select(schema.operations).where(Among(_O.host, "names"), _LIVE, _O.status == Status.STARTED.value))
# Targets are a JSON object from VM to host, and names hold no character that JSON escapes.
_MOVING_TO = Query(
    select(_O.id)
    .where(_LIVE, func.replace(_O.targets, bindparam("target", type_=schema.NAME), "") != _O.targets)
    .order_by(_O.id)
)

_ANNOUNCED_HOSTS = Query(
    select(_O.host)
    .where(_LIVE, _O.status == Status.SCHEDULED.value)
    .where(or_(*(_O.kind == kind.value for kind in Kind if kind.traits.keeps_others_away)))
    .distinct()
)

_PUT = Upsert(schema.operations, fixed=("kind", "created_at", "author", "reason", "rollout", "notice"))
_DUE = Query(
    select(_O.id)
    .where(_LIVE, _O.due_at <= given.now)
    .where(_O.claimed_until.is_(None) | (_O.claimed_until <= given.now))
    .order_by(_O.not_before, _O.created_at, _O.id)
    .limit(given.limit)
)
_NEXT_UNCLAIMED = Query(
    select(_O.due_at)
    .where(_LIVE, _O.due_at.is_not(None), _O.claimed_until.is_(None))
    .order_by(_O.due_at)
    .limit(given.limit)
)
_NEXT_CLAIMED = Query(
    select(func.min(case((_O.due_at > _O.claimed_until, _O.due_at), else_=_O.claimed_until))).where(
        _LIVE, _O.due_at.is_not(None), _O.claimed_by.is_not(None)
    )
)
_WAKE = Query(
    update(schema.operations)
    .where(_LIVE, _O.held, _O.status == Status.SCHEDULED.value, _O.due_at > given.now)
    .where(_O.id.in_(select(_E.operation).where(Among(_E.scope, "names"), _E.ended_at.is_(None))))
    .values(due_at=given.now)
)
_REPLAN = Query(
    update(schema.operations)
    .where(_LIVE, _O.status == Status.PLANNED.value, _O.due_at > given.now)
    .where(_O.host.in_(select(_V.host).where(Among(_V.scope, "names"))))
    .values(due_at=given.now)
)
_WAKE_HELD = Query(update(schema.operations).where(_LIVE, _O.held, _O.due_at > given.now).values(due_at=given.now))
_RENEW = Query(
    update(schema.operations)
    .where(_O.claimed_by == given.process, Among(_O.id, "names"))
    .values(claimed_until=given.until)
    .returning(_O.id)
)
_FREE = {"claimed_by": None, "claimed_until": None}
_RELEASE = Query(update(schema.operations).where(_O.claimed_by == given.process).values(_FREE))
_RELEASE_ALL = Query(update(schema.operations).where(_O.claimed_by.is_not(None)).values(_FREE))

_ANNOUNCED = _O.not_before + _O.clock_jumped > given.before
_WITHHOLD = Query(
    update(schema.operations)
    .where(_LIVE, _O.status == Status.SCHEDULED.value, _ANNOUNCED)
    .values(clock_jumped=_O.clock_jumped + given.by)
)
_PROLONG = Query(
    update(schema.operations)
    .where(_O.claimed_by.is_not(None), _O.claimed_until > given.before)
    .values(claimed_until=_O.claimed_until + given.by)
)

_OPERATIONS = Mapper(_O, Operation, renamed={"author": "by"})
read = _OPERATIONS.read


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFilter:
    live: bool | None = None
    """False: those that have ended; None: both, as in all filters."""
    status: Status | None = None
    host: str | None = None
    kind: Kind | None = None
    rollout: str | None = None
    seen: Selector | None = None
    """Those with an event in one of these scopes."""


def _tells(operation: ColumnElement[str]) -> ColumnElement[bool]:
    told = schema.events.alias()
    is_of_latest = fleet.of_latest(told.c.scope, told.c.created_at)
    return exists(select(told.c.id).where(told.c.operation == operation, Matching(told.c.scope), is_of_latest))


_LIST = Listing(
    select(schema.operations),
    schema.operations,
    read,
    by=("created_at", "id"),
    seen=lambda columns: _tells(columns.id),
)


class Operations(Repository):
    def page(
        self, after: str | None, limit: int, wanted: OperationFilter | None = None, *, descending: bool = False
    ) -> list[Operation]:
        """Oldest first, or `descending`, beyond the one with id `after`."""
        return _LIST.page(self._executor, after, limit, wanted, descending=descending)

    def due(self, now: datetime, limit: int) -> list[str]:
        """Ids of live operations due by `now` whose claim, if any, has expired by `now`, by NotBefore, then by age."""
        return self._executor.column(_DUE, now=rows.number(now), limit=limit)

    def next_due(self, now: datetime) -> datetime | None:
        """The earliest moment at which `due` gives something, `now` if it already does; None: nothing is planned."""
        found = (self._executor.value(_NEXT_UNCLAIMED, limit=1), self._executor.value(_NEXT_CLAIMED))
        numbers = [number for number in found if number is not None]
        return max(now, rows.moment(min(numbers))) if numbers else None

    def moving_to(self, host: str) -> list[str]:
        """Ids of live operations that have chosen this host as a target."""
        return self._executor.column(_MOVING_TO, target=":" + json_text(host))

    def announced_hosts(self) -> list[str]:
        """Hosts that no VM moves to because their own maintenance is announced."""
        return self._executor.column(_ANNOUNCED_HOSTS)

    def put(self, operations: Iterable[Operation]) -> None:
        self._executor.upsert(_PUT, [_OPERATIONS.row(operation) for operation in operations])

    def wake(self, scopes: Collection[str], now: datetime) -> int:
        """Held Scheduled operations with an event in these scopes are due now. Gives how many were not before."""
        return self._executor.run(_WAKE, names=list(scopes), now=rows.number(now))

    def replan(self, scopes: Collection[str], now: datetime) -> int:
        """Planned operations of hosts with VMs of these scopes are due now. Gives how many were not before."""
        return self._executor.run(_REPLAN, names=list(scopes), now=rows.number(now))

    def wake_held(self, now: datetime) -> int:
        """All held operations are due now. Gives how many were not before."""
        return self._executor.run(_WAKE_HELD, now=rows.number(now))

    def withhold(self, by: timedelta, before: datetime) -> None:
        """The clock jumped from `before`: notices and claims that were running then expire later by as much."""
        bound = {"by": rows.microseconds(by), "before": rows.number(before)}
        self._executor.run(_WITHHOLD, **bound)
        self._executor.run(_PROLONG, **bound)

    def renew_claims(self, process: str, ids: Collection[str], until: datetime) -> list[str]:
        """Keep claims of this process. Gives those that were still its own, in no particular order."""
        return self._executor.column(_RENEW, process=process, names=list(ids), until=rows.number(until))

    def release_claims(self, process: str | None) -> None:
        """Give up all claims of a process; None: of all."""
        if process is None:
            self._executor.run(_RELEASE_ALL)
        else:
            self._executor.run(_RELEASE, process=process)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverResult:
    """The result of one attempt, as a driver sent it by callback."""

    operation: str
    attempt: int
    outcome: Finished
    at: datetime


_A = schema.driver_answers.c
_OUTCOME = Codec(
    msgspec.json.Decoder(Finished).decode,
    lambda outcome: json_text({"done": outcome.done, "failures": outcome.failures}),
)
_RESULTS = Mapper(_A, DriverResult, codecs={"outcome": _OUTCOME})
_PUT_RESULT = Upsert(schema.driver_answers)
_RESULTS_OF = Query(select(schema.driver_answers).where(Among(_A.operation, "names")))
_DELETE_RESULTS = Query(
    delete(schema.driver_answers).where(
        _A.at < given.moment, _A.operation.not_in(select(_O.id).where(_O.ended_at.is_(None)))
    )
)


class DriverResults(Repository):
    def of(self, operations: Collection[str]) -> list[DriverResult]:
        return self._all(_RESULTS, _RESULTS_OF, names=list(operations))

    def put(self, result: DriverResult) -> None:
        self._executor.upsert(_PUT_RESULT, [_RESULTS.row(result)])

    def delete_before(self, moment: datetime) -> None:
        """Of operations that have ended."""
        self._executor.run(_DELETE_RESULTS, moment=rows.number(moment))
