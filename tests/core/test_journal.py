"""Whatever is noted is on the list of actions, and nothing else is."""

import ast
import re
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
ACTION = re.compile(rf"({'|'.join({action.partition('.')[0] for action in ACTIONS})})\.[a-z_]+")


def _actions(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(action)):
            yield action
        case ast.IfExp(body=one, orelse=other):
            yield from (*_actions(one), *_actions(other))
        case ast.JoinedStr(values=[ast.Constant(value=str(noun)), ast.FormattedValue()]) if noun[:-1] in STATUSES:
            yield from (f"{noun}{status.lower()}" for status in STATUSES[noun[:-1]])


def test_every_note_is_on_the_list_and_nothing_else() -> None:
    noted, mentioned = set[str](), set[str]()
    source = Path(forenotice.__file__).parent
    paths = [path for room in ROOMS for path in (source / room).rglob("*.py") if path.name != "journal.py"]
    for node in (node for path in paths for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.Call):
            noted.update(action for argument in node.args for action in _actions(argument) if ACTION.fullmatch(action))
        if isinstance(node, ast.expr):
            mentioned.update(_actions(node))
    assert noted <= ACTIONS <= mentioned


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
