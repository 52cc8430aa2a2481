"""What drivers' outside has told by itself of a try, until the operation is over and long after."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import msgspec
from sqlalchemy import bindparam, delete, select

from forenotice.core.driver_calls import Finished
from forenotice.store import moments, schema
from forenotice.store.queries import Among, Executor, Query, Row, Upsert

_A, _O = schema.driver_answers.c, schema.operations.c


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverResult:
    operation: str
    attempt: int
    outcome: Finished
    at: datetime


_PUT = Upsert(schema.driver_answers)
_OF = Query(select(schema.driver_answers).where(Among(_A.operation, "names")))
_FORGET = Query(
    delete(schema.driver_answers).where(
        _A.at < bindparam("moment"), _A.operation.not_in(select(_O.id).where(_O.ended_at.is_(None)))
    )
)
_outcome = msgspec.json.Decoder(Finished)
_encode = msgspec.json.Encoder().encode


class DriverResults:
    """What is read is of one moment; what writes is for transactions alone."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def of(self, operations: Collection[str]) -> list[DriverResult]:
        return [_answer(row) for row in self._executor.rows(_OF, names=list(operations))]

    def put(self, answer: DriverResult) -> None:
        outcome = _encode({"done": answer.outcome.done, "failures": answer.outcome.failures}).decode()
        self._executor.upsert(_PUT, [(answer.operation, answer.attempt, outcome, moments.to_number(answer.at))])

    def forget_before(self, moment: datetime) -> None:
        """Of operations that have ended."""
        self._executor.run(_FORGET, moment=moments.to_number(moment))


def _answer(row: Row) -> DriverResult:
    return DriverResult(operation=row[0], attempt=row[1], outcome=_outcome.decode(row[2]), at=moments.required(row[3]))
