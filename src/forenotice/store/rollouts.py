"""Rollouts and their stops in their tables."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from functools import cache, lru_cache

import msgspec
from sqlalchemy import bindparam, func, or_, select, union, update

from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.rollouts import GateResult, Options, Rollout, RolloutStatus, Stop, StopStatus, Tally
from forenotice.core.windows import parse_all
from forenotice.store import moments, schema
from forenotice.store.operations import operation
from forenotice.store.pages import Listing, equal, living
from forenotice.store.queries import Among, Executor, Query, Row, Upsert

_R, _S, _O = schema.rollouts.c, schema.stops.c, schema.operations.c
_LIVE = _R.ended_at.is_(None)

_NAMED = Query(select(schema.rollouts).where(Among(_R.id, "names")))
_ALL_LIVE = Query(select(schema.rollouts).where(_LIVE))
_DUE = Query(
    select(_R.id).where(_R.due_at <= bindparam("now")).order_by(_R.due_at, _R.created_at).limit(bindparam("limit"))
)
_NEXT_DUE = Query(select(func.min(_R.due_at)))
_WAKE = Query(
    update(schema.rollouts).where(_LIVE, _R.due_at > bindparam("now"), _R.opened_at.is_not(None))
    .values(due_at=bindparam("now"))
)  # fmt: skip
_SET_BACK = Query(
    update(schema.rollouts)
    .where(_LIVE)
    .values(opens_at=_R.opens_at - bindparam("by"), opened_at=_R.opened_at - bindparam("by"))
)
_MAKE_DUE = Query(
    update(schema.rollouts).where(_R.due_at > bindparam("now")).values(due_at=bindparam("now"))
)  # fmt: skip
_PUT = Upsert(schema.rollouts, fixed=("kind", "hosts", "options", "created_at", "author", "reason"))
_PUT_STOPS = Upsert(schema.stops, fixed=("wave", "update_domains"))
_UNDER_WAY = Query(
    select(func.count()).where(_S.rollout == bindparam("rollout"), _S.status == StopStatus.UNDER_WAY.value)
)
_ENDED = Query(
    select(schema.stops, schema.operations)
    .where(_S.rollout == bindparam("rollout"), _S.status == StopStatus.UNDER_WAY.value)
    .where(_O.id == _S.operation, _O.ended_at.is_not(None))
    .order_by(_O.ended_at, _S.host)
)
_NEXT_WAVE = Query(
    select(func.min(_S.wave)).where(_S.rollout == bindparam("rollout"), _S.status == StopStatus.WAITING.value)
)
_WAITING = Query(
    select(schema.stops)
    .where(_S.rollout == bindparam("rollout"), _S.status == StopStatus.WAITING.value, _S.wave == bindparam("wave"))
    .where(_S.host > bindparam("after"))
    .order_by(_S.host)
    .limit(bindparam("limit"))
)
_TALLY = Query(
    select(_S.wave, _S.status, _S.update_domains, func.count())
    .where(_S.rollout == bindparam("rollout"))
    .group_by(_S.wave, _S.status, _S.update_domains)
)
_COUNTS = Query(
    select(_S.rollout, _S.status, _S.wave, func.count())
    .where(Among(_S.rollout, "names"))
    .group_by(_S.rollout, _S.status, _S.wave)
)
_AWAITED = Query(
    select(_S.rollout, _S.host)
    .where(
        _S.rollout.in_(
            select(_R.id).where(_LIVE, _R.kind == bindparam("kind"), _R.status != RolloutStatus.CANCELING.value)
        ),
        Among(_S.host, "names"),
    )
    .where(or_(_S.status == StopStatus.WAITING.value, _S.status == StopStatus.UNDER_WAY.value))
    .order_by(_S.rollout, _S.host)
    .limit(bindparam("limit"))
)
_CHANGE = Query(
    update(schema.stops)
    .where(_S.rollout == bindparam("rollout"), _S.status == bindparam("before"))
    .values(status=bindparam("after"), why=bindparam("because"), operation=None)
)
_OPERATIONS = Query(
    select(_O.id)
    .where(_O.rollout == bindparam("rollout"), _O.ended_at.is_(None))
    .order_by(_O.not_before, _O.created_at, _O.host)
)

AWAITING = Query(
    union(
        select(_O.host).where(
            _O.ended_at.is_(None),
            or_(
                _O.status == Status.PLANNED.value,
                *(_O.kind == kind.value for kind in Kind if kind.traits.planned and kind.traits.moves),
            ),
        ),
        select(_S.host).where(_S.status == StopStatus.WAITING.value, _S.rollout.in_(select(_R.id).where(_LIVE))),
    )
)
"""Hosts that are being emptied, have maintenance planned, or wait in a rollout."""


class _Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """As the column `options` has them; durations in microseconds."""

    notice: int | None = None
    batch: int = 1
    pause: int = 0
    gate: str | None = None
    max_failures: int = 1
    windows: tuple[str, ...] = ()


_STOP_COLUMNS = len(schema.stops.c)
_encode = msgspec.json.Encoder().encode
_options = msgspec.json.Decoder(_Options)
_gate_result = msgspec.json.Decoder(GateResult)


class Rollouts:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def named(self, ids: Collection[str]) -> dict[str, Rollout]:
        """Those that exist."""
        rows = self._executor.rows(_NAMED, names=list(ids)) if ids else ()
        return {row[0]: _rollout(row) for row in rows}

    def live(self) -> dict[str, Rollout]:
        return {row[0]: _rollout(row) for row in self._executor.rows(_ALL_LIVE)}

    def due(self, now: datetime, limit: int) -> list[str]:
        return [row[0] for row in self._executor.rows(_DUE, now=moments.to_number(now), limit=limit)]

    def next_due(self) -> datetime | None:
        row = self._executor.row(_NEXT_DUE)
        return moments.optional(row[0]) if row else None

    def page(
        self,
        after: str | None,
        limit: int,
        live: bool | None,
        *,
        descending: bool = True,
        status: RolloutStatus | None = None,
        kind: Kind | None = None,
    ) -> list[Rollout]:
        """Newest first, or not `descending`, beyond the rollout with id `after`; `live` None: ended ones too."""
        how = {"status": status, "kind": kind, **living(live)}
        rows = _LISTING.page(self._executor, after=after, limit=limit, descending=descending, **how)
        return [_rollout(row) for row in rows]

    def under_way(self, rollout: str) -> int:
        """How many hosts are; those whose operation has just ended among them."""
        row = self._executor.row(_UNDER_WAY, rollout=rollout)
        return row[0] if row else 0

    def ended(self, rollout: str) -> list[tuple[Stop, Operation]]:
        """Hosts that count as under way though their operation has ended, in that order."""
        rows = self._executor.rows(_ENDED, rollout=rollout)
        return [(_stop(row), operation(row[_STOP_COLUMNS:])) for row in rows]

    def next_wave(self, rollout: str) -> int | None:
        """The first wave in which hosts wait."""
        row = self._executor.row(_NEXT_WAVE, rollout=rollout)
        return row[0] if row else None

    def waiting(self, rollout: str, wave: int, after: str, limit: int) -> list[Stop]:
        """Of one wave, by host, beyond the host `after`."""
        rows = self._executor.rows(_WAITING, rollout=rollout, wave=wave, after=after, limit=limit)
        return [_stop(row) for row in rows]

    def stops(self, rollout: str, after: str, limit: int, status: StopStatus | None) -> list[Stop]:
        """By host, beyond the host `after`."""
        query = _stops(status is not None)
        rows = self._executor.rows(
            query, rollout=rollout, after=after, limit=limit, status=status.value if status else None
        )
        return [_stop(row) for row in rows]

    def tally(self, rollout: str) -> list[Tally]:
        """How many hosts are where."""
        rows = self._executor.rows(_TALLY, rollout=rollout)
        return [
            Tally(wave=wave, status=StopStatus(status), update_domains=_domains(domains), hosts=count)
            for wave, status, domains, count in rows
        ]

    def counts(self, rollouts: Collection[str]) -> dict[str, list[Tally]]:
        """How many hosts of each of them are where, without their update domains: an index tells."""
        found: dict[str, list[Tally]] = {rollout: [] for rollout in rollouts}
        for rollout, status, wave, count in self._executor.rows(_COUNTS, names=list(rollouts)) if rollouts else ():
            found[rollout].append(Tally(wave=wave, status=StopStatus(status), update_domains=(), hosts=count))
        return found

    def awaited(self, kind: Kind, hosts: Collection[str]) -> tuple[str, str] | None:
        """A rollout of this kind that goes on, and one of these hosts that it has still to see to."""
        row = self._executor.row(_AWAITED, kind=kind.value, names=list(hosts), limit=1)
        return None if row is None else (row[0], row[1])

    def live_operations(self, rollout: str) -> list[str]:
        """In the order in which they may start."""
        return [row[0] for row in self._executor.rows(_OPERATIONS, rollout=rollout)]

    def put(self, rollouts: Iterable[Rollout]) -> None:
        self._executor.upsert(_PUT, [_row(rollout) for rollout in rollouts])

    def put_stops(self, stops: Iterable[Stop]) -> None:
        self._executor.upsert(_PUT_STOPS, [_stop_row(stop) for stop in stops])

    def change_stops(self, rollout: str, before: StopStatus, after: StopStatus, why: str) -> int:
        """All stops of one status get another; gives how many."""
        return self._executor.run(_CHANGE, rollout=rollout, before=before.value, after=after.value, because=why)

    def set_back(self, by: timedelta) -> None:
        self._executor.run(_SET_BACK, by=moments.duration_to_number(by))

    def make_due(self, now: datetime) -> None:
        """All that are to be looked at some time are due now: whoever was asking their gates is gone."""
        self._executor.run(_MAKE_DUE, now=moments.to_number(now))

    def wake(self, now: datetime) -> int:
        """Those in the middle of a wave are due now: something has ended somewhere. Gives how many were not before."""
        return self._executor.run(_WAKE, now=moments.to_number(now))


_LISTING = Listing(
    select(schema.rollouts),
    schema.rollouts,
    by=("created_at", "id"),
    filters={
        "live": lambda columns: columns.ended_at.is_(None),
        "ended": lambda columns: columns.ended_at.is_not(None),
        "status": equal("status", "status"),
        "kind": equal("kind", "kind"),
    },
)


@cache
def _stops(by_status: bool) -> Query:
    query = select(schema.stops).where(_S.rollout == bindparam("rollout"), _S.host > bindparam("after"))
    if by_status:
        query = query.where(_S.status == bindparam("status"))
    return Query(query.order_by(_S.host).limit(bindparam("limit")))


def _rollout(row: Row) -> Rollout:
    return Rollout(
        id=row[0],
        kind=Kind(row[1]),
        hosts=row[2],
        options=_read_options(row[3]),
        status=RolloutStatus(row[4]),
        wave=row[5],
        failures=row[6],
        why=row[7],
        opens_at=moments.required(row[8]),
        opened_at=moments.optional(row[9]),
        gate_result=_gate_result.decode(row[10]) if row[10] else None,
        created_at=moments.required(row[11]),
        ended_at=moments.optional(row[12]),
        due_at=moments.optional(row[13]),
        by=row[14],
        reason=row[15],
        since=moments.required(row[16]),
    )


def _row(rollout: Rollout) -> Row:
    return (
        rollout.id,
        rollout.kind.value,
        rollout.hosts,
        _write_options(rollout.options),
        rollout.status.value,
        rollout.wave,
        rollout.failures,
        rollout.why,
        moments.to_number(rollout.opens_at),
        moments.to_number(rollout.opened_at),
        _encode(rollout.gate_result).decode() if rollout.gate_result else None,
        moments.to_number(rollout.created_at),
        moments.to_number(rollout.ended_at),
        moments.to_number(rollout.due_at),
        rollout.by,
        rollout.reason,
        moments.to_number(rollout.since),
    )


@cache
def _read_options(text: str) -> Options:
    kept = _options.decode(text)
    return Options(
        notice=moments.to_duration(kept.notice),
        batch=kept.batch,
        pause=moments.to_duration(kept.pause) or timedelta(0),
        gate=kept.gate,
        max_failures=kept.max_failures,
        windows=parse_all(kept.windows),
    )


def _write_options(options: Options) -> str:
    kept = _Options(
        notice=moments.duration_to_number(options.notice),
        batch=options.batch,
        pause=moments.duration_to_number(options.pause) or 0,
        gate=options.gate,
        max_failures=options.max_failures,
        windows=tuple(map(str, options.windows)),
    )
    return _encode(kept).decode()


def _stop(row: Row) -> Stop:
    return Stop(
        rollout=row[0],
        host=row[1],
        wave=row[2],
        status=StopStatus(row[3]),
        operation=row[4],
        why=row[5],
        update_domains=_domains(row[6]),
    )


def _stop_row(stop: Stop) -> Row:
    domains = ",".join(map(str, stop.update_domains))
    return (stop.rollout, stop.host, stop.wave, stop.status.value, stop.operation, stop.why, domains)


@lru_cache(maxsize=1024)
def _domains(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()
