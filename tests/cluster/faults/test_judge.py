"""The judge finds what it is there to find: histories by hand, each with one thing wrong."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.cluster.faults.history import Acknowledged, Document, History, Restore
from tests.cluster.faults.judge import IN_FLIGHT, violations

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC).timestamp()
PATIENCE = 60.0
NOTICE = 15 * 60.0
FLEET: dict[str, Any] = {
    "hosts": {"a": {}, "b": {}},
    "groups": {},
    "vms": {"one": {"host": "a"}, "two": {"host": "b"}},
}


class Story:
    """A restart of `one` on host `a`; times are seconds since it was scheduled."""

    def __init__(self) -> None:
        self.history = History()
        self.journal: list[dict[str, Any]] = []
        self.incarnation = 1

    def note(self, at: float, action: str, **facts: Any) -> "Story":
        when = datetime.fromtimestamp(START + at, UTC).isoformat()
        entry = {"seq": len(self.journal) + 1, "at": when, "action": action}
        places = {"operation": "o", "host": "a", "vm": None, "rollout": None, "scope": "vm:one"}
        self.journal.append(entry | places | {"event": "E" if action.startswith("event.") else None, "data": facts})
        return self

    def schedule(self, by: str | None = None) -> "Story":
        self.note(0, "operation.scheduled", kind="restart", vms=["one"])
        not_before = datetime.fromtimestamp(START + NOTICE, UTC).isoformat()
        return self.note(0, "event.scheduled", resources=["one"], not_before=not_before, approved_by=by)

    def approve(self, at: float, **sent: Any) -> "Story":
        return self.post(at, **sent).note(at, "event.approved")

    def start(self, at: float) -> "Story":
        return self.note(at, "operation.started").note(at, "event.started")

    def end(self, at: float) -> "Story":
        return self.note(at, "event.completed").note(at, "operation.completed")

    def post(self, at: float, status: int = 200, event: str = "E") -> "Story":
        self.history.sent.add(event)
        if status == 200:
            self.history.acknowledged.append(Acknowledged(START + at, "one", "a", event))
        return self

    def poll(
        self,
        at: float,
        *events: str,
        incarnation: int = 0,
        edge: str = "a",
        vm: str = "one",
        tag: str = "tag",
        took: float = 0.1,
        body: bytes = b"",
    ) -> "Story":
        """The incarnation is the next one unless it is given."""
        self.incarnation = incarnation or self.incarnation + 1
        content = body or f"{self.incarnation} {events}".encode()
        document = Document(tag, self.incarnation, content, frozenset(events))
        self.history.add(vm, edge, document, START + at, START + at + took)
        return self

    def restore(self, kept: float, at: float) -> "Story":
        self.history.restores.append(Restore(START + kept, START + at, epoch=0))
        return self

    def found(self) -> list[str]:
        return violations(self.history, self.journal, FLEET, speed=1, patience=PATIENCE)


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    story = Story().schedule().poll(-1).poll(1, "E").approve(2).poll(3, "E", incarnation=3).start(4)
    assert story.poll(5, "E").end(9).poll(10).found() == []


def test_what_is_unusual_is_not_wrong() -> None:
    # It moves, and the other edge is ahead; another guest's answers there overlap with its own.
    story = Story().poll(1, "E").poll(2, "E", incarnation=7, edge="b").poll(2, "E", incarnation=7, edge="b", vm="two")
    story.poll(3, incarnation=8, edge="b", took=2).poll(4, "E", incarnation=7, edge="b", vm="two", took=2)
    assert story.found() == []
    # An approval that is under way while it starts by expiry, and one of what has ended.
    story = Story().schedule().poll(1, "E").post(NOTICE - 1).start(NOTICE).end(NOTICE + 5).post(NOTICE + 60)
    assert story.found() == []
    # An approval that was answered with 503 and counts all the same, and one that silence had given before.
    assert Story().schedule().poll(1, "E").approve(2, status=503).start(3).found() == []
    assert Story().schedule(by="silence").poll(1, "E").post(2).found() == []
    # It starts although the edge has not shown it: nobody can know that of a guest that does not poll.
    assert Story().schedule().poll(-1).start(NOTICE).found() == []
    # The edge has not shown it, and patience has come to its end.
    assert Story().schedule().start(NOTICE + PATIENCE).poll(NOTICE + PATIENCE + 1).found() == []
    # The edge shows it as soon as it has heard of it, which is when it starts.
    assert Story().schedule().start(NOTICE + 9).poll(NOTICE + 9, "E").found() == []


def test_a_restore_takes_away_what_came_after_the_backup() -> None:
    # Approved, and gone, after the backup; then it is back, in an epoch of its own.
    story = Story().schedule().poll(1, "E").post(5).poll(6).restore(kept=4, at=9)
    story.poll(10, "E", incarnation=100, tag="tag.64").poll(12, "E", incarnation=1000, tag="tag.3e8")
    # Approved while the edge had not heard of the restore; the event was made after the backup.
    assert story.post(11, event="LOST").found() == []


def _gone(story: Story) -> Story:
    return story.poll(1, "E").poll(2).poll(3, "E")


BROKEN: dict[str, tuple[Callable[[Story], Story], list[str]]] = {
    "an incarnation falls": (
        lambda story: story.poll(1, incarnation=5).poll(2, incarnation=4),
        [
            "one at a and then at a: the incarnation of tag fell from 5 to 4",
            "guests at a: the incarnation of tag fell from 5 to 4",
        ],
    ),
    "an incarnation falls with a move": (
        lambda story: story.poll(1, incarnation=5).poll(2, incarnation=4, edge="b"),
        ["one at a and then at b: the incarnation of tag fell from 5 to 4"],
    ),
    "an incarnation falls for another guest": (
        lambda story: story.poll(1, incarnation=5).poll(2, incarnation=4, vm="two"),
        ["guests at a: the incarnation of tag fell from 5 to 4"],
    ),
    "an epoch goes back": (
        lambda story: story.restore(kept=-9, at=0).poll(1, tag="tag.a", incarnation=5).poll(2, incarnation=6),
        [
            "one at a and then at a: the epoch went back from tag.a to tag",
            "guests at a: the epoch went back from tag.a to tag",
        ],
    ),
    "an epoch begins by itself": (
        lambda story: story.poll(1).poll(2, tag="tag.a"),
        ["epoch 10 began at 12:00:02.100000, and no backup was restored"],
    ),
    "an epoch begins long after the restore": (
        lambda story: story.poll(1).restore(kept=1, at=2).poll(3 + IN_FLIGHT, tag="tag.a"),
        ["epoch 10 began at 12:00:23.100000, and no backup was restored"],
    ),
    "bytes differ": (
        lambda story: story.poll(1, incarnation=5, body=b"x").poll(1, incarnation=5, vm="two", edge="b", body=b"y"),
        ["incarnation 5 of tag is b'x' to one at a and b'y' to two at b"],
    ),
    "an event reappears": (
        _gone,
        [
            "one: event E was gone at 12:00:02.100000 and was there again at 12:00:03.000000",
            "guests at a: event E was gone at 12:00:02.100000 and was there again at 12:00:03.000000",
        ],
    ),
    "an event reappears with a move": (
        lambda story: story.poll(1, "E").poll(2).poll(3, "E", edge="b"),
        ["one: event E was gone at 12:00:02.100000 and was there again at 12:00:03.000000"],
    ),
    "an event reappears for another guest": (
        lambda story: story.poll(1, "E").poll(2).poll(3, "E", vm="two"),
        ["guests at a: event E was gone at 12:00:02.100000 and was there again at 12:00:03.000000"],
    ),
    "an event reappears in the epoch of a restore": (
        lambda story: _gone(story.restore(kept=-9, at=0)),
        [
            "one: event E was gone at 12:00:02.100000 and was there again at 12:00:03.000000",
            "guests at a: event E was gone at 12:00:02.100000 and was there again at 12:00:03.000000",
        ],
    ),
    "an approval is lost": (
        lambda story: story.schedule().post(5),
        ["the approval of E by one at a, 200 at 12:00:05.000000, was lost"],
    ),
    "an approval is lost, and it starts by expiry": (
        lambda story: story.schedule().poll(1, "E").post(5).start(NOTICE),
        ["the approval of E by one at a, 200 at 12:00:05.000000, was lost"],
    ),
    "an approval is lost of what silence had approved": (
        lambda story: story.schedule(by="silence").note(1, "event.silence_withdrawn").post(5),
        ["the approval of E by one at a, 200 at 12:00:05.000000, was lost"],
    ),
    "an approval of what nobody knows": (
        lambda story: story.post(5),
        ["the approval of E by one at a, 200 at 12:00:05.000000, was lost"],
    ),
    "an approval before a backup is lost": (
        lambda story: story.schedule().post(5).restore(kept=6, at=9),
        ["the approval of E by one at a, 200 at 12:00:05.000000, was lost"],
    ),
    "an approval after a restore is lost": (
        lambda story: story.schedule().restore(kept=1, at=4).post(5),
        ["the approval of E by one at a, 200 at 12:00:05.000000, was lost"],
    ),
    "an approval counts twice": (
        lambda story: story.schedule().approve(5).note(6, "event.approved"),
        ["event E was approved 2 times"],
    ),
    "an approval comes from nowhere": (
        lambda story: story.schedule().note(6, "event.approved"),
        ["nobody has sent the approval of E"],
    ),
    "it starts early": (
        lambda story: story.schedule().poll(1, "E").start(NOTICE - 1),
        [
            "entry 3 (operation.started): it starts at 2026-01-05 12:14:59+00:00 without approval by vm:one, "
            "before NotBefore"
        ],
    ),
    "it starts by expiry before the edge has shown it": (
        lambda story: story.schedule().poll(-1).start(NOTICE).poll(NOTICE + 1),
        [
            "operation o started at 12:15:00.000000 without the approval of E, which the edge of a did not show "
            "even at 12:15:01.100000"
        ],
    ),
    "the edge shows it too late": (
        lambda story: story.schedule().start(NOTICE).poll(NOTICE + 1).poll(NOTICE + 2, "E"),
        [
            "operation o started at 12:15:00.000000 without the approval of E, which the edge of a did not show "
            "even at 12:15:01.100000"
        ],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_violation_is_found(name: str) -> None:
    break_it, expected = BROKEN[name]
    assert break_it(Story()).found() == expected
