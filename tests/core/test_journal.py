"""Whatever is noted is on the list of actions, and nothing else is."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import forenotice
from forenotice.core.journal import ACTIONS, MOST_UNCHANGED, REPEATED, Repeats
from forenotice.core.operations import Status
from forenotice.core.rollouts import RolloutStatus

ROOMS = ("core", "service", "delivery")
STATUSES: Mapping[str, Sequence[Status | RolloutStatus]] = {
    "event": [status for status in Status if not status.live],
    "operation": [status for status in Status if not status.live],
    "rollout": [status for status in RolloutStatus if not status.live],
}
"""With which things end."""


def noted() -> Iterator[str]:
    source = Path(forenotice.__file__).parent
    for room in ROOMS:
        for path in sorted((source / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and _name(node.func) in ("note", "_note", "_noted"):
                    yield from (action for argument in node.args for action in _actions(argument))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _actions(argument: ast.expr) -> Iterator[str]:
    match argument:
        case ast.Constant(value=str(action)):
            yield action
        case ast.IfExp(body=one, orelse=other):
            yield from (*_actions(one), *_actions(other))
        case ast.JoinedStr(values=[ast.Constant(value=str(noun)), ast.FormattedValue()]):
            yield from (f"{noun}{status.lower()}" for status in STATUSES[noun.rstrip(".")])


def test_every_note_is_on_the_list() -> None:
    assert set(noted()) == ACTIONS


def test_what_is_asked_for_in_vain_is_news_once() -> None:
    repeats, now = Repeats(), datetime(2026, 3, 1, tzinfo=UTC)
    assert [repeats.is_news("ada", "approve E", now) for _ in range(3)] == [True, False, False]
    assert repeats.is_news("ada", "approve F", now)
    assert repeats.is_news("bob", "approve E", now)
    assert not repeats.is_news("ada", "approve E", now + REPEATED - timedelta(seconds=1))
    assert repeats.is_news("ada", "approve E", now + REPEATED)


def test_nobody_fills_the_journal_with_ever_other_things() -> None:
    repeats, now = Repeats(), datetime(2026, 3, 1, tzinfo=UTC)
    assert sum(repeats.is_news("ada", number, now) for number in range(3 * MOST_UNCHANGED)) == MOST_UNCHANGED
    assert repeats.is_news("bob", 1, now)
    assert sum(repeats.is_news("ada", number, now + REPEATED) for number in range(3 * MOST_UNCHANGED)) == MOST_UNCHANGED
