"""Why a rollout is where it is: its pause, its gate, whom its operations wait for, who has not got its turn."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from forenotice.core import explaining, rolling
from forenotice.core.draft import Draft, names
from forenotice.core.explaining import Explanation, moment_told
from forenotice.core.obstacles import ObstacleKind, obstacles
from forenotice.core.operations import Operation, Status
from forenotice.core.rollouts import BEFORE_THE_FIRST, Rollout, RolloutStatus, Stop

SAID = 3
"""Operations and hosts that are told of in words; the facts have more."""


@dataclass(slots=True)
class _Found:
    since: datetime | None
    sentences: list[str] = field(default_factory=list)
    facts: list[Mapping[str, object]] = field(default_factory=list)
    until: datetime | None = None

    def add(self, sentence: str, **facts: object) -> None:
        self.sentences.append(sentence)
        self.facts.append({key: value for key, value in facts.items() if value is not None})


def explain(
    draft: Draft,
    rollout: Rollout,
    live: Sequence[str],
    waiting: Sequence[Stop],
    expiry_from: datetime,
    *,
    more: int = 0,
) -> Explanation:
    """`live` are its operations, but for so many `more`; `waiting` some of the hosts whose turn it is."""
    found = _Found(since=rollout.since)
    match rollout.status:
        case RolloutStatus.PAUSED:
            found.add(
                f"It {_paused(rollout)}. Since {moment_told(rollout.since)} nothing of it starts, until it is resumed.",
                kind="paused",
                why=rollout.why,
                since=rollout.since,
            )
        case RolloutStatus.CANCELING:
            found.add(
                f"It was cancelled at {moment_told(rollout.since)}: what had started goes on to its end.",
                kind="canceling",
                since=rollout.since,
            )
        case RolloutStatus.RUNNING if rollout.opened_at is None:
            _before_turn(draft, rollout, waiting, found)
        case RolloutStatus.RUNNING:
            found.since = rollout.opened_at
        case _:
            found.sentences.append(f"It is over: {rollout.status} at {moment_told(rollout.ended_at)}.")
    _operations(draft, rollout, live, more, expiry_from, found)
    if rollout.status is RolloutStatus.RUNNING and rollout.opened_at is not None:
        _hosts(draft, rollout, len(live) + more, waiting, found)
    if not found.sentences:
        found.sentences.append("Nothing is in the way: it goes on now.")
    return Explanation(
        noun="rollout",
        id=rollout.id,
        sentences=tuple(found.sentences),
        since=found.since,
        until=found.until,
        waiting_for=tuple(found.facts),
    )


def _before_turn(draft: Draft, rollout: Rollout, waiting: Sequence[Stop], found: _Found) -> None:
    verdict = rollout.verdict
    if rollout.turn == BEFORE_THE_FIRST:
        return
    if draft.now < rollout.opens_at:
        found.since = rollout.opens_at - draft.timing.shortened(rollout.options.pause)
        found.until = rollout.opens_at
        found.add(
            f"It pauses before turn {rollout.turn + 1}, until {moment_told(rollout.opens_at)}.",
            kind="pause",
            since=found.since,
            until=rollout.opens_at,
        )
    elif (later := rolling.told_at(draft, rollout)) > draft.now:
        found.since, found.until = rollout.opens_at, later
        hours = "; ".join(map(str, rollout.options.windows))
        found.add(
            f"Turn {rollout.turn + 1} is planned; guests are told from {moment_told(later)} on, because of its window "
            f"({hours}).",
            kind=ObstacleKind.ANNOUNCEMENT.value,
            since=rollout.opens_at,
            until=later,
        )
    elif rollout.options.gate is not None and all(rolling.is_put_off(draft, rollout, stop.host) for stop in waiting):
        found.since = rollout.opens_at
        _hosts(draft, rollout, 0, waiting, found)
    elif rollout.options.gate is not None and not (verdict and verdict.green):
        found.since = rollout.opens_at
        said = f"at {moment_told(verdict.at)} it was red and said {verdict.said!r}" if verdict else "it is being asked"
        gate = rollout.options.told().gate
        found.add(
            f"Turn {rollout.turn + 1} waits for its gate {gate}: {said}.",
            kind="gate",
            gate=gate,
            since=rollout.opens_at,
            said=verdict.said if verdict else None,
        )


def _paused(rollout: Rollout) -> str:
    why = rollout.why.rstrip(".")
    return f"was {why}" if why.startswith(rolling.PAUSED_BY) else f"is paused: {why}"


def _operations(
    draft: Draft, rollout: Rollout, live: Sequence[str], more: int, expiry_from: datetime, found: _Found
) -> None:
    ends: list[datetime | None] = [None] * more
    for number, operation_id in enumerate(live):
        operation = draft.operation(operation_id)
        why = explaining.explain_operation(draft, operation, expiry_from)
        ends.append(why.until)
        found.facts.append(
            {
                "kind": "operation",
                "operation": operation_id,
                "host": operation.host,
                "status": operation.status.value,
                "since": why.since,
                **({"until": why.until} if why.until else {}),
                "waiting_for": list(why.waiting_for),
            }
        )
        if number < SAID:
            found.sentences.append(_of_host(draft, rollout, operation, why, expiry_from))
    known = [end for end in ends if end is not None]
    if known and len(known) == len(ends):
        found.until = max(known)
    if len(live) > SAID:
        found.sentences.append(f"More hosts are under way: {len(live) + more - SAID}.")


def _of_host(draft: Draft, rollout: Rollout, operation: Operation, why: Explanation, expiry_from: datetime) -> str:
    """Without the rollout's own pause, which is told of all of it."""
    said = list(why.sentences)
    if rollout.status is RolloutStatus.PAUSED and operation.status is Status.SCHEDULED:
        others = (each for each in obstacles(draft, operation, expiry_from) if each.kind is not ObstacleKind.ROLLOUT)
        said = explaining.sentences(draft, list(others))
    told = f"{operation.host} is {operation.status}"
    return f"{told}: {_within(' '.join(said))}" if said else f"{told}."


def _within(sentence: str) -> str:
    """After a colon; no sentence of an explanation begins with a name."""
    return sentence[0].lower() + sentence[1:]


def _hosts(draft: Draft, rollout: Rollout, under_way: int, waiting: Sequence[Stop], found: _Found) -> None:
    if under_way >= rollout.options.batch and waiting:
        found.add(
            f"Others of turn {rollout.turn + 1} wait: the batch is {rollout.options.batch}.",
            kind="batch",
            batch=rollout.options.batch,
        )
        return
    hindered = list(_hindered(draft, rollout, waiting))
    if hindered:
        found.until = None
    for host, sentence, facts in hindered:
        found.facts.append({**facts, "host": host})
        said = f"{host} waits for its turn: {_within(sentence)}"
        if len(found.sentences) < 2 * SAID and said not in found.sentences:
            found.sentences.append(said)
    if not hindered and waiting:
        found.sentences.append(f"Next: {names([stop.host for stop in waiting[:SAID]])}.")


def _hindered(
    draft: Draft, rollout: Rollout, waiting: Sequence[Stop]
) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    for stop in waiting:
        found = list(rolling.hindrances(draft, rollout, stop.host))
        put_off = [each for each in found if each.kind is ObstacleKind.ANNOUNCEMENT]
        for obstacle in found:
            said = explaining.sentences(draft, put_off if obstacle in put_off else [obstacle])[0]
            yield stop.host, said, explaining.facts(draft, obstacle)
