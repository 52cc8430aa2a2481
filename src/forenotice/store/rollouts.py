"""Rollouts and their hosts in their tables."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from forenotice.core.operations import Kind, Operation
from forenotice.core.rollouts import Options, Rollout, RolloutHost, RolloutHostStatus, RolloutStatus, Tally
from forenotice.core.windows import parse_all
from forenotice.store import operations, rows, schema
from forenotice.store.queries import Listed, Listing, kinds
from forenotice.store.rows import Codec, Mapper, json_text

AWAITING = f"""
SELECT host FROM operations WHERE ended_at IS NULL
    AND (status = 'Planned' OR kind IN {kinds(lambda traits: traits.maintenance and traits.moves)})
UNION SELECT host FROM stops WHERE status = 'Waiting'
    AND rollout IN (SELECT id FROM rollouts WHERE ended_at IS NULL)
"""
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


_OPTIONS = Codec(_read_options, _write_options)
_DOMAINS = Codec(_domains, lambda domains: ",".join(map(str, domains)))
_ROLLOUTS = Mapper(schema.rollouts.c, Rollout, renamed={"author": "by"}, codecs={"options": _OPTIONS})
_HOSTS = Mapper(schema.stops.c, RolloutHost, codecs={"update_domains": _DOMAINS})


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    live: bool | None = None
    status: RolloutStatus | None = None


class Rollouts(Listed[Rollout, RolloutFilter]):
    """Listed by age."""

    _list = Listing(schema.rollouts, _ROLLOUTS.read, by=("created_at", "id"))

    def named(self, ids: Collection[str]) -> dict[str, Rollout]:
        """Those that exist."""
        return self._rollouts("id IN :names", names=ids) if ids else {}

    def live(self) -> dict[str, Rollout]:
        return self._rollouts("ended_at IS NULL")

    def due(self, now: datetime, limit: int) -> list[str]:
        query = "SELECT id FROM rollouts WHERE due_at <= :now ORDER BY due_at, created_at LIMIT :limit"
        return self._db.column(query, now=now, limit=limit)

    def next_due(self) -> datetime | None:
        return rows.optional_moment(self._db.value("SELECT min(due_at) FROM rollouts"))

    def under_way(self, rollout: str) -> int:
        """How many hosts are under way, including those whose operation has just ended."""
        query = "SELECT count(*) FROM stops WHERE rollout = :rollout AND status = 'Under way'"
        return int(self._db.value(query, rollout=rollout))

    def ended(self, rollout: str) -> list[tuple[RolloutHost, Operation]]:
        """Hosts that count as under way though their operation has ended, in that order."""
        found = self._db.rows(
            "SELECT stops.*, operations.* FROM stops JOIN operations ON operations.id = stops.operation"
            " WHERE stops.rollout = :rollout AND stops.status = 'Under way' AND operations.ended_at IS NOT NULL"
            " ORDER BY operations.ended_at, stops.host",
            rollout=rollout,
        )
        return [(_HOSTS.read(row), operations.read(row[len(schema.stops.c) :])) for row in found]

    def next_wave(self, rollout: str) -> int | None:
        """The first wave in which hosts wait."""
        query = "SELECT min(wave) FROM stops WHERE rollout = :rollout AND status = 'Waiting'"
        found: int | None = self._db.value(query, rollout=rollout)
        return found

    def waiting(self, rollout: str, wave: int, after: str, limit: int) -> list[RolloutHost]:
        """Of one wave, by host, beyond the host `after`."""
        where = "status = 'Waiting' AND wave = :wave"
        return self._hosts(where, rollout=rollout, wave=wave, after=after, limit=limit)

    def hosts(self, rollout: str, after: str, limit: int, status: RolloutHostStatus | None) -> list[RolloutHost]:
        """By host, beyond the host `after`."""
        where = "TRUE" if status is None else "status = :status"
        return self._hosts(where, rollout=rollout, after=after, limit=limit, status=status)

    def tally(self, rollout: str) -> list[Tally]:
        """How many hosts are where."""
        found = self._db.rows(
            "SELECT wave, status, update_domains, count(*) FROM stops WHERE rollout = :rollout"
            " GROUP BY wave, status, update_domains",
            rollout=rollout,
        )
        return [
            Tally(wave=wave, status=RolloutHostStatus(status), update_domains=_domains(domains), hosts=count)
            for wave, status, domains, count in found
        ]

    def counts(self, rollouts: Collection[str]) -> dict[str, list[Tally]]:
        """How many hosts of each of them are where, without their update domains: an index tells."""
        found: dict[str, list[Tally]] = {rollout: [] for rollout in rollouts}
        query = (
            "SELECT rollout, status, wave, count(*) FROM stops WHERE rollout IN :names GROUP BY rollout, status, wave"
        )
        for rollout, status, wave, count in self._db.rows(query, names=rollouts) if rollouts else ():
            found[rollout].append(Tally(wave=wave, status=RolloutHostStatus(status), update_domains=(), hosts=count))
        return found

    def awaited(self, kind: Kind, hosts: Collection[str]) -> tuple[str, str] | None:
        """A live rollout of this kind, and one of these hosts that it has not finished."""
        row = self._db.row(
            "SELECT rollout, host FROM stops WHERE host IN :hosts AND status IN ('Waiting', 'Under way') AND rollout IN"
            " (SELECT id FROM rollouts WHERE ended_at IS NULL AND kind = :kind AND status <> 'Canceling')"
            " ORDER BY rollout, host LIMIT 1",
            kind=kind,
            hosts=hosts,
        )
        return None if row is None else (row[0], row[1])

    def live_operations(self, rollout: str) -> list[str]:
        """In the order in which they may start."""
        return self._db.column(
            "SELECT id FROM operations WHERE rollout = :rollout AND ended_at IS NULL"
            " ORDER BY not_before, created_at, host",
            rollout=rollout,
        )

    def put(self, rollouts: Iterable[Rollout]) -> None:
        fixed = ("kind", "hosts", "options", "created_at", "author", "reason")
        self._db.upsert(schema.rollouts, [_ROLLOUTS.row(rollout) for rollout in rollouts], fixed=fixed)

    def put_hosts(self, hosts: Iterable[RolloutHost]) -> None:
        self._db.upsert(schema.stops, [_HOSTS.row(host) for host in hosts], fixed=("wave", "update_domains"))

    def change_hosts(self, rollout: str, before: RolloutHostStatus, after: RolloutHostStatus, why: str) -> int:
        """All hosts of one status get another; gives how many."""
        return self._db.run(
            "UPDATE stops SET status = :after, why = :why, operation = NULL"
            " WHERE rollout = :rollout AND status = :before",
            rollout=rollout,
            before=before,
            after=after,
            why=why,
        )

    def set_back(self, by: timedelta) -> None:
        self._db.run(
            "UPDATE rollouts SET opens_at = opens_at - :by, opened_at = opened_at - :by WHERE ended_at IS NULL", by=by
        )

    def make_due(self, now: datetime) -> None:
        """All that have a due time are due now: the process that was asking their gates is gone."""
        self._db.run("UPDATE rollouts SET due_at = :now WHERE due_at > :now", now=now)

    def wake(self, now: datetime) -> int:
        """Those in the middle of a wave are due now: something has ended somewhere. Gives how many were not before."""
        where = "ended_at IS NULL AND due_at > :now AND opened_at IS NOT NULL"
        return self._db.run(f"UPDATE rollouts SET due_at = :now WHERE {where}", now=now)

    def _rollouts(self, where: str, **parameters: Any) -> dict[str, Rollout]:
        found = self._db.rows(f"SELECT rollouts.* FROM rollouts WHERE {where}", **parameters)
        return {row[0]: _ROLLOUTS.read(row) for row in found}

    def _hosts(self, where: str, **parameters: Any) -> list[RolloutHost]:
        of = f"rollout = :rollout AND host > :after AND {where}"
        return self._all(_HOSTS, f"SELECT stops.* FROM stops WHERE {of} ORDER BY host LIMIT :limit", **parameters)
