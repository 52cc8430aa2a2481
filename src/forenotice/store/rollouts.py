"""Rollouts and their hosts in their tables."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any

import msgspec
from sqlalchemy import func, or_, select, union, update

from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.rollouts import Options, Rollout, RolloutHost, RolloutHostStatus, RolloutStatus, Tally
from forenotice.core.windows import parse_all
from forenotice.store import operations, rows, schema
from forenotice.store.pages import Listing
from forenotice.store.queries import Among, Query, Repository, Upsert, given
from forenotice.store.rows import Codec, Mapper, json_text

_R, _S, _O = schema.rollouts.c, schema.stops.c, schema.operations.c
_LIVE = _R.ended_at.is_(None)

_NAMED = Query(select(schema.rollouts).where(Among(_R.id, "names")))
_ALL_LIVE = Query(select(schema.rollouts).where(_LIVE))
_DUE = Query(select(_R.id).where(_R.due_at <= given.now).order_by(_R.due_at, _R.created_at).limit(given.limit))
_NEXT_DUE = Query(select(func.min(_R.due_at)))
_WAKE = Query(
    update(schema.rollouts).where(_LIVE, _R.due_at > given.now, _R.opened_at.is_not(None))
    .values(due_at=given.now)
)  # fmt: skip
_SET_BACK = Query(
    update(schema.rollouts).where(_LIVE).values(opens_at=_R.opens_at - given.by, opened_at=_R.opened_at - given.by)
)
_MAKE_DUE = Query(
    update(schema.rollouts).where(_R.due_at > given.now).values(due_at=given.now)
)  # fmt: skip
_PUT = Upsert(schema.rollouts, fixed=("kind", "hosts", "options", "created_at", "author", "reason"))
_PUT_HOSTS = Upsert(schema.stops, fixed=("wave", "update_domains"))
_UNDER_WAY = Query(
    select(func.count()).where(_S.rollout == given.rollout, _S.status == RolloutHostStatus.UNDER_WAY.value)
)
_ENDED = Query(
    select(schema.stops, schema.operations)
    .where(_S.rollout == given.rollout, _S.status == RolloutHostStatus.UNDER_WAY.value)
    .where(_O.id == _S.operation, _O.ended_at.is_not(None))
    .order_by(_O.ended_at, _S.host)
)
_NEXT_WAVE = Query(
    select(func.min(_S.wave)).where(_S.rollout == given.rollout, _S.status == RolloutHostStatus.WAITING.value)
)
_WAITING = Query(
    select(schema.stops)
    .where(_S.rollout == given.rollout, _S.status == RolloutHostStatus.WAITING.value, _S.wave == given.wave)
    .where(_S.host > given.after)
    .order_by(_S.host)
    .limit(given.limit)
)
_TALLY = Query(
    select(_S.wave, _S.status, _S.update_domains, func.count())
    .where(_S.rollout == given.rollout)
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
        _S.rollout.in_(select(_R.id).where(_LIVE, _R.kind == given.kind, _R.status != RolloutStatus.CANCELING.value)),
        Among(_S.host, "names"),
    )
    .where(or_(_S.status == RolloutHostStatus.WAITING.value, _S.status == RolloutHostStatus.UNDER_WAY.value))
    .order_by(_S.rollout, _S.host)
    .limit(given.limit)
)
_CHANGE = Query(
    update(schema.stops)
    .where(_S.rollout == given.rollout, _S.status == given.before)
    .values(status=given.after, why=given.because, operation=None)
)
_OPERATIONS = Query(
    select(_O.id)
    .where(_O.rollout == given.rollout, _O.ended_at.is_(None))
    .order_by(_O.not_before, _O.created_at, _O.host)
)

AWAITING = Query(
    union(
        select(_O.host).where(
            _O.ended_at.is_(None),
            or_(
                _O.status == Status.PLANNED.value,
                *(_O.kind == kind.value for kind in Kind if kind.traits.maintenance and kind.traits.moves),
            ),
        ),
        select(_S.host).where(_S.status == RolloutHostStatus.WAITING.value, _S.rollout.in_(select(_R.id).where(_LIVE))),
    )
)
"""Hosts that are being emptied, have maintenance planned, or wait in a rollout."""


_options = msgspec.json.Decoder(dict[str, Any]).decode


@lru_cache(maxsize=1024)
def _read_options(text: str) -> Options:
    kept = _options(text)
    for name, read in (("notice", rows.duration), ("pause", rows.duration), ("windows", parse_all)):
        if name in kept:
            kept[name] = read(kept[name])
    return Options(**kept)


def _write_options(options: Options) -> str:
    """Durations in microseconds."""
    kept = {each.name: getattr(options, each.name) for each in fields(options)}
    durations = {name: rows.microseconds(kept[name]) for name in ("notice", "pause")}
    return json_text(kept | durations | {"windows": list(map(str, options.windows))})


@lru_cache(maxsize=1024)
def _domains(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


_ROLLOUTS = Mapper(_R, Rollout, renamed={"author": "by"}, codecs={"options": Codec(_read_options, _write_options)})
_HOSTS = Mapper(
    _S, RolloutHost, codecs={"update_domains": Codec(_domains, lambda domains: ",".join(map(str, domains)))}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    live: bool | None = None
    status: RolloutStatus | None = None


_LIST = Listing(select(schema.rollouts), schema.rollouts, _ROLLOUTS.read, by=("created_at", "id"))


@cache
def _hosts(by_status: bool) -> Query:
    query = select(schema.stops).where(_S.rollout == given.rollout, _S.host > given.after)
    if by_status:
        query = query.where(_S.status == given.status)
    return Query(query.order_by(_S.host).limit(given.limit))


class Rollouts(Repository):
    def named(self, ids: Collection[str]) -> dict[str, Rollout]:
        """Those that exist."""
        found = self._executor.rows(_NAMED, names=list(ids)) if ids else ()
        return {row[0]: _ROLLOUTS.read(row) for row in found}

    def live(self) -> dict[str, Rollout]:
        return {row[0]: _ROLLOUTS.read(row) for row in self._executor.rows(_ALL_LIVE)}

    def due(self, now: datetime, limit: int) -> list[str]:
        return self._executor.column(_DUE, now=rows.number(now), limit=limit)

    def next_due(self) -> datetime | None:
        return rows.optional_moment(self._executor.value(_NEXT_DUE))

    def page(
        self, after: str | None, limit: int, wanted: RolloutFilter | None = None, *, descending: bool = True
    ) -> list[Rollout]:
        """Newest first, or not `descending`, beyond the rollout with id `after`."""
        return _LIST.page(self._executor, after, limit, wanted, descending=descending)

    def under_way(self, rollout: str) -> int:
        """How many hosts are under way, including those whose operation has just ended."""
        return int(self._executor.value(_UNDER_WAY, rollout=rollout))

    def ended(self, rollout: str) -> list[tuple[RolloutHost, Operation]]:
        """Hosts that count as under way though their operation has ended, in that order."""
        found = self._executor.rows(_ENDED, rollout=rollout)
        return [(_HOSTS.read(row), operations.read(row[len(_S) :])) for row in found]

    def next_wave(self, rollout: str) -> int | None:
        """The first wave in which hosts wait."""
        found: int | None = self._executor.value(_NEXT_WAVE, rollout=rollout)
        return found

    def waiting(self, rollout: str, wave: int, after: str, limit: int) -> list[RolloutHost]:
        """Of one wave, by host, beyond the host `after`."""
        return self._all(_HOSTS, _WAITING, rollout=rollout, wave=wave, after=after, limit=limit)

    def hosts(self, rollout: str, after: str, limit: int, status: RolloutHostStatus | None) -> list[RolloutHost]:
        """By host, beyond the host `after`."""
        query = _hosts(status is not None)
        return self._all(
            _HOSTS, query, rollout=rollout, after=after, limit=limit, status=status.value if status else None
        )

    def tally(self, rollout: str) -> list[Tally]:
        """How many hosts are where."""
        found = self._executor.rows(_TALLY, rollout=rollout)
        return [
            Tally(wave=wave, status=RolloutHostStatus(status), update_domains=_domains(domains), hosts=count)
            for wave, status, domains, count in found
        ]

    def counts(self, rollouts: Collection[str]) -> dict[str, list[Tally]]:
        """How many hosts of each of them are where, without their update domains: an index tells."""
        found: dict[str, list[Tally]] = {rollout: [] for rollout in rollouts}
        for rollout, status, wave, count in self._executor.rows(_COUNTS, names=list(rollouts)) if rollouts else ():
            found[rollout].append(Tally(wave=wave, status=RolloutHostStatus(status), update_domains=(), hosts=count))
        return found

    def awaited(self, kind: Kind, hosts: Collection[str]) -> tuple[str, str] | None:
        """A live rollout of this kind, and one of these hosts that it has not finished."""
        row = self._executor.row(_AWAITED, kind=kind.value, names=list(hosts), limit=1)
        return None if row is None else (row[0], row[1])

    def live_operations(self, rollout: str) -> list[str]:
        """In the order in which they may start."""
        return self._executor.column(_OPERATIONS, rollout=rollout)

    def put(self, rollouts: Iterable[Rollout]) -> None:
        self._executor.upsert(_PUT, [_ROLLOUTS.row(rollout) for rollout in rollouts])

    def put_hosts(self, hosts: Iterable[RolloutHost]) -> None:
        self._executor.upsert(_PUT_HOSTS, [_HOSTS.row(host) for host in hosts])

    def change_hosts(self, rollout: str, before: RolloutHostStatus, after: RolloutHostStatus, why: str) -> int:
        """All hosts of one status get another; gives how many."""
        return self._executor.run(_CHANGE, rollout=rollout, before=before.value, after=after.value, because=why)

    def set_back(self, by: timedelta) -> None:
        self._executor.run(_SET_BACK, by=rows.microseconds(by))

    def make_due(self, now: datetime) -> None:
        """All that have a due time are due now: the process that was asking their gates is gone."""
        self._executor.run(_MAKE_DUE, now=rows.number(now))

    def wake(self, now: datetime) -> int:
        """Those in the middle of a wave are due now: something has ended somewhere. Gives how many were not before."""
        return self._executor.run(_WAKE, now=rows.number(now))
