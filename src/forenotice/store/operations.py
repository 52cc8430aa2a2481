"""Operations in their table: what is due, who has claimed it, and the results that drivers sent by callback."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from forenotice.core.driver_calls import Finished
from forenotice.core.operations import Kind, Operation, Status
from forenotice.core.selectors import Selector
from forenotice.store import fleet, rows, schema
from forenotice.store.queries import Listed, Listing, Repository, kinds
from forenotice.store.rows import Codec, Mapper, json_text

_OPERATIONS = Mapper(schema.operations.c, Operation, renamed={"author": "by"})
read = _OPERATIONS.read
SELECT = "SELECT operations.* FROM operations WHERE "
_HELD_ON = "held AND status = 'Scheduled' AND host IN :hosts"


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


class Operations(Listed[Operation, OperationFilter]):
    """Listed by age."""

    _list = Listing(
        schema.operations,
        read,
        by=("created_at", "id"),
        seen="EXISTS (SELECT 1 FROM events WHERE events.operation = {0}.id AND FITS(events.scope, seen) AND "
        + fleet.of_latest("events.scope", "events.created_at")
        + ")",
    )

    def due(self, now: datetime, limit: int) -> list[str]:
        """Ids of live operations due by `now` whose claim, if any, has expired by `now`, by NotBefore, then by age."""
        return self._db.column(
            "SELECT id FROM operations WHERE ended_at IS NULL AND due_at <= :now"
            " AND (claimed_until IS NULL OR claimed_until <= :now) ORDER BY not_before, created_at, id LIMIT :limit",
            now=now,
            limit=limit,
        )

    def next_due(self, now: datetime) -> datetime | None:
        """The earliest moment at which `due` gives something, `now` if it already does; None: nothing is planned."""
        unclaimed = self._db.value(
            "SELECT due_at FROM operations WHERE ended_at IS NULL AND due_at IS NOT NULL AND claimed_until IS NULL"
            " ORDER BY due_at LIMIT 1"
        )
        claimed = self._db.value(
            "SELECT min(CASE WHEN due_at > claimed_until THEN due_at ELSE claimed_until END) FROM operations"
            " WHERE ended_at IS NULL AND due_at IS NOT NULL AND claimed_by IS NOT NULL"
        )
        numbers = [number for number in (unclaimed, claimed) if number is not None]
        return max(now, rows.moment(min(numbers))) if numbers else None

    def moving_to(self, host: str) -> list[str]:
        """Ids of live operations that have chosen this host as a target."""
        # Targets are a JSON object from VM to host, and names hold no character that JSON escapes.
        query = (
            "SELECT id FROM operations WHERE ended_at IS NULL AND replace(targets, :target, '') <> targets ORDER BY id"
        )
        return self._db.column(query, target=":" + json_text(host))

    def announced_hosts(self) -> list[str]:
        """Hosts that no VM moves to because their own maintenance is announced."""
        away = kinds(lambda traits: traits.keeps_others_away)
        return self._db.column(
            f"SELECT DISTINCT host FROM operations WHERE ended_at IS NULL AND status = 'Scheduled' AND kind IN {away}"
        )

    def put(self, operations: Iterable[Operation]) -> None:
        fixed = ("kind", "created_at", "author", "reason", "rollout", "notice", "duration")
        self._db.upsert(schema.operations, [_OPERATIONS.row(operation) for operation in operations], fixed=fixed)

    def wake(self, scopes: Collection[str], now: datetime) -> int:
        """Held Scheduled operations with an event in these scopes are due now. Gives how many were not before."""
        events = "SELECT operation FROM events WHERE scope IN :scopes AND ended_at IS NULL"
        return self._make_due(f"held AND status = 'Scheduled' AND id IN ({events})", now, scopes=scopes)

    def are_held_on(self, hosts: Collection[str]) -> bool:
        """Whether any Scheduled operation of these hosts is held."""
        query = f"SELECT 1 FROM operations WHERE ended_at IS NULL AND {_HELD_ON} LIMIT 1"
        return self._db.value(query, hosts=hosts) is not None

    def wake_on(self, hosts: Collection[str], now: datetime) -> int:
        """Held Scheduled operations of these hosts are due now. Gives how many were not before."""
        return self._make_due(_HELD_ON, now, hosts=hosts)

    def replan(self, scopes: Collection[str], now: datetime) -> int:
        """Planned operations of hosts with VMs of these scopes are due now. Gives how many were not before."""
        hosts = "SELECT host FROM vms WHERE scope IN :scopes"
        return self._make_due(f"status = 'Planned' AND host IN ({hosts})", now, scopes=scopes)

    def wake_held(self, now: datetime) -> int:
        """All held operations are due now. Gives how many were not before."""
        return self._make_due("held", now)

    def _make_due(self, which: str, now: datetime, **parameters: Collection[str]) -> int:
        where = f"ended_at IS NULL AND due_at > :now AND {which}"
        return self._db.run(f"UPDATE operations SET due_at = :now WHERE {where}", now=now, **parameters)

    def withhold(self, by: timedelta, before: datetime) -> None:
        """The clock jumped from `before`: notices and claims that were running then expire later by as much."""
        self._db.run(
            "UPDATE operations SET clock_jumped = clock_jumped + :by"
            " WHERE ended_at IS NULL AND status = 'Scheduled' AND not_before + clock_jumped > :before",
            by=by,
            before=before,
        )
        self._db.run(
            "UPDATE operations SET claimed_until = claimed_until + :by"
            " WHERE claimed_by IS NOT NULL AND claimed_until > :before",
            by=by,
            before=before,
        )

    def renew_claims(self, process: str, ids: Collection[str], until: datetime) -> list[str]:
        """Keep claims of this process. Gives those that were still its own, in no particular order."""
        return self._db.column(
            "UPDATE operations SET claimed_until = :until WHERE claimed_by = :process AND id IN :ids RETURNING id",
            process=process,
            ids=ids,
            until=until,
        )

    def release_claims(self, process: str | None) -> None:
        """Give up all claims of a process; None: of all."""
        whose = "IS NOT NULL" if process is None else "= :process"
        query = f"UPDATE operations SET claimed_by = NULL, claimed_until = NULL WHERE claimed_by {whose}"
        self._db.run(query, process=process)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverResult:
    """The result of one attempt, as a driver sent it by callback."""

    operation: str
    attempt: int
    outcome: Finished
    at: datetime


_OUTCOME = Codec(
    msgspec.json.Decoder(Finished).decode,
    lambda outcome: json_text({"done": outcome.done, "failures": outcome.failures}),
)
_RESULTS = Mapper(schema.driver_answers.c, DriverResult, codecs={"outcome": _OUTCOME})


class DriverResults(Repository):
    def of(self, operations: Collection[str]) -> list[DriverResult]:
        query = "SELECT driver_answers.* FROM driver_answers WHERE operation IN :names"
        return self._all(_RESULTS, query, names=operations)

    def put(self, result: DriverResult) -> None:
        self._db.upsert(schema.driver_answers, [_RESULTS.row(result)])

    def delete_before(self, moment: datetime) -> None:
        """Of operations that have ended."""
        live = "SELECT id FROM operations WHERE ended_at IS NULL"
        self._db.run(f"DELETE FROM driver_answers WHERE at < :moment AND operation NOT IN ({live})", moment=moment)
