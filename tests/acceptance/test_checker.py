"""The checker finds what it is there to find: journals by hand, each with one thing wrong."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.acceptance.checker import check

START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)  # A Monday.
FLEET: dict[str, Any] = {
    "hosts": {"a": {}, "b": {}, "c": {}},
    "groups": {
        "web": {"kind": "availability-set", "policy": {"max_unavailable": "67%", "min_available": 1}},
        "db": {"kind": "availability-set", "policy": {"max_unavailable": 1}},
    },
    "vms": {
        "web-0": {"host": "a", "group": "web", "update_domain": 0},
        "web-1": {"host": "b", "group": "web", "update_domain": 1},
        "web-2": {"host": "c", "group": "web", "update_domain": 0},
        "db-0": {"host": "c", "group": "db"},
        "db-1": {"host": "b", "group": "db"},
        "solo": {"host": "a", "policy": {"windows": ["mon-fri 10:00-20:00 UTC"]}},
    },
}
ON = {"a": ["solo", "web-0"], "b": ["db-1", "web-1"], "c": ["db-0", "web-2"]}
SCOPES = {"web-0": "group:web", "web-1": "group:web", "web-2": "group:web", "solo": "vm:solo"}
SCOPES |= {"db-0": "group:db", "db-1": "group:db"}


class Story:
    """What a service writes down when all goes well, unless it is told otherwise."""

    def __init__(self) -> None:
        self.now = START
        self.journal: list[dict[str, Any]] = []

    def note(self, action: str, **facts: Any) -> "Story":
        places = dict.fromkeys(("scope", "event", "operation", "host", "vm", "rollout"))
        known = {name: facts.pop(name) for name in list(facts) if name in places}
        entry = {"seq": len(self.journal) + 1, "at": self.now.isoformat(), "action": action}
        self.journal.append(entry | places | known | {"data": facts})
        return self

    def later(self, **duration: float) -> "Story":
        self.now += timedelta(**duration)
        return self

    def rollout(self, **options: Any) -> "Story":
        return self.note("rollout.started", rollout="r", **{"hosts": "*", "batch": 1, "windows": []} | options)

    def announce(
        self, host: str, kind: str = "host-update", rollout: str | None = "r", minutes: float = 15, by: Any = None
    ) -> "Story":
        self.note("operation.scheduled", operation=f"on-{host}", host=host, rollout=rollout, kind=kind, vms=ON[host])
        for vm in ON[host]:
            self.note(
                "event.scheduled",
                operation=f"on-{host}",
                event=vm.upper(),
                scope=SCOPES[vm],
                host=host,
                resources=[vm],
                not_before=(self.now + timedelta(minutes=minutes)).isoformat(),
                approved_by=by,
            )
        return self

    def approve(self, host: str) -> "Story":
        for vm in ON[host]:
            self.note("event.approved", operation=f"on-{host}", event=vm.upper(), scope=SCOPES[vm])
        return self

    def start(self, host: str) -> "Story":
        return self.note("operation.started", operation=f"on-{host}", host=host).each(host, "event.started")

    def each(self, host: str, action: str) -> "Story":
        for vm in ON[host]:
            self.note(action, operation=f"on-{host}", event=vm.upper(), scope=SCOPES[vm])
        return self

    def end(self, host: str, how: str = "completed") -> "Story":
        return self.each(host, f"event.{how}").note(f"operation.{how}", operation=f"on-{host}", host=host)

    def whole(self, *hosts: str) -> "Story":
        """One after another."""
        for host in hosts:
            self.announce(host).approve(host).later(seconds=1).start(host).later(seconds=9).end(host)
        return self

    def say(self, action: str) -> "Story":
        return self.note(f"rollout.{action}", rollout="r")

    def found(self, speed: float = 1) -> list[str]:
        return check(self.journal, FLEET, speed=speed)


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    story = Story().rollout().whole("a", "b", "c").say("completed")
    assert story.found() == []


def test_what_is_unusual_is_not_wrong() -> None:
    # Two of one update domain: one approved, one by expiry, after it was put off.
    story = Story().rollout(batch=2).announce("a").announce("c").approve("c").start("c").later(minutes=15)
    for vm in ON["a"]:
        story.note("event.postponed", operation="on-a", event=vm.upper(), to=story.now.isoformat())
    story.start("a").later(seconds=9).end("a").end("c", "failed")
    # One that silence had approved, after a pause.
    story.say("paused").say("resumed").announce("b", by="silence").start("b").later(seconds=5).end("b")
    assert story.say("completed").found() == []
    # A host that has nobody, and a hardware failure, which nobody is asked about.
    story = Story().rollout(hosts="a,c").announce("c", kind="hardware-failure", rollout=None, minutes=0).start("c")
    story.later(minutes=1).end("c").note("rollout.host_skipped", rollout="r", host="c")
    assert story.whole("a").say("completed").found() == []
    # Two that windows put off: one is announced in time, one is cancelled before guests know of it.
    story = Story().note("operation.planned", operation="on-a", host="a").note("operation.planned", operation="on-b")
    story.later(minutes=1).announce("a", rollout=None, by="silence").start("a").later(seconds=9).end("a")
    assert story.note("operation.canceled", operation="on-b", host="b").found() == []
    # A VM that is being moved has left the host before that is updated.
    story = Story().announce("a", rollout=None, by="silence")
    places = {"operation": "moves-solo", "host": "a", "rollout": None}
    story.note("operation.scheduled", **places, kind="redeploy", vms=["solo"]).note("operation.started", **places)
    story.note("event.canceled", event="SOLO", operation="on-a", scope="vm:solo", vm="solo")
    story.note("vm.moved", vm="solo", host="b", source="a").note("operation.started", operation="on-a", host="a")
    assert story.found() == []


def test_notice_is_shortened_by_speed() -> None:
    story = Story().rollout(hosts="a").announce("a", minutes=1.5)
    assert story.found(speed=10) == []
    assert len(story.found(speed=9)) == len(ON["a"])


def _cancel(story: Story) -> Story:
    return story.rollout(hosts="a,c").announce("a").say("canceling").announce("c")


def _move(story: Story, to: str, source: str = "a") -> Story:
    return story.note("vm.moved", vm="web-0", host=to, source=source, scope="group:web", operation="on-a")


def _drop(story: Story, vm: str) -> None:
    story.note("event.resource_dropped", vm=vm, event=vm.upper(), operation="on-b", scope=SCOPES[vm])


def _again(story: Story, action: str) -> Story:
    """The last of that kind."""
    found = next(entry for entry in reversed(story.journal) if entry["action"] == action)
    story.journal.append({**found, "seq": len(story.journal) + 1, "at": story.now.isoformat()})
    return story


def _both_of_db(story: Story) -> None:
    """One of `b` has left it, so that no two update domains are down."""
    story.announce("b", rollout=None, by="silence").announce("c", rollout=None, by="silence").start("c")
    _drop(story, "web-1")
    story.note("event.canceled", event="WEB-1", operation="on-b", scope="group:web")
    story.note("operation.started", operation="on-b", host="b")
    story.note("event.started", event="DB-1", operation="on-b", scope="group:db")


def _policy(story: Story, **policy: Any) -> Story:
    story.note("scope.policy_changed", scope="group:web", policy=policy)
    return story


def _two_of_web(story: Story) -> Story:
    return story.announce("a", rollout=None).announce("c", rollout=None).later(minutes=15).start("a").start("c")


NOON = "2026-01-05 12:00:00+00:00"
BROKEN: dict[str, tuple[Callable[[Story], object], list[str]]] = {
    "two update domains are down": (
        lambda s: s.announce("a", rollout=None).announce("b", rollout=None).later(minutes=15).start("a").start("b"),
        ["update domains 0 and 1 of group:web are down together"],
    ),
    "a rollout announces a second update domain": (
        lambda s: s.rollout().announce("a", rollout=None).announce("b"),
        ["update domain 1 of group:web is announced by a rollout while 0 is Scheduled"],
    ),
    "more are down than a number allows": (
        _both_of_db,
        ["2 of 2 VMs of group:db are down, and max_unavailable is 1"],
    ),
    "more are down than a part allows": (
        lambda s: _two_of_web(_policy(s, max_unavailable="66%")),
        ["2 of 3 VMs of group:web are down, and max_unavailable is 66%"],
    ),
    "fewer are left than must be": (
        lambda s: _two_of_web(_policy(s, min_available=2)),
        ["1 of 3 VMs of group:web are left, and min_available is 2"],
    ),
    "more hosts than a batch": (
        lambda s: s.rollout(batch=1).announce("a").announce("c"),
        ["2 hosts of the rollout are under way, of which it takes 1 at once"],
    ),
    "nobody approved": (
        lambda s: s.rollout().announce("a").later(minutes=14.9).start("a"),
        [
            f"it starts at 2026-01-05 12:14:54+00:00 without approval by {who}, before NotBefore"
            for who in ("vm:solo", "group:web")
        ],
    ),
    "one has not approved": (
        lambda s: (
            s.rollout().announce("a").note("event.approved", event="SOLO", operation="on-a"),
            s.start("a"),
        ),
        [f"it starts at {NOON} without approval by group:web, before NotBefore"],
    ),
    "silence was taken back": (
        lambda s: (
            s.rollout().announce("a", by="silence").note("event.silence_withdrawn", event="SOLO", operation="on-a"),
            s.start("a"),
        ),
        [f"it starts at {NOON} without approval by vm:solo, before NotBefore"],
    ),
    "too little notice": (
        lambda s: s.rollout().announce("a", minutes=14),
        ["the notice is 0:14:00, and 0:15:00 is the least"] * 2,
    ),
    "NotBefore comes nearer": (
        lambda s: s.rollout().announce("a").note("event.postponed", event="SOLO", to=s.now.isoformat()),
        ["NotBefore of SOLO came nearer"],
    ),
    "two operations on one VM": (
        lambda s: (
            s.announce("a", rollout=None, by="silence").start("a"),
            s.note("operation.scheduled", operation="other", host="a", kind="restart", vms=["solo"]),
            s.note("operation.started", operation="other", host="a"),
        ),
        ["solo are acted on by another operation of a"],
    ),
    "an EventId again": (
        lambda s: _again(s.announce("a", rollout=None), "event.scheduled"),
        ["the EventId WEB-0 was used before"],
    ),
    "an operation's id again": (
        lambda s: (
            s.rollout().whole("a"),
            s.note("operation.scheduled", operation="on-a", host="a", kind="restart", vms=[]),
        ),
        ["the operation id on-a was used before"],
    ),
    "an event starts after its end": (
        lambda s: _again(
            s.announce("a", rollout=None, by="silence").start("a").later(seconds=9).end("a"), "event.started"
        ),
        ["WEB-0 was Completed and is Started", "its operation is Completed"],
    ),
    "planned after it was announced": (
        lambda s: s.announce("a", rollout=None).note("operation.planned", operation="on-a", host="a"),
        ["the operation on-a is announced already"],
    ),
    "an operation ends twice": (
        lambda s: _again(s.announce("a", rollout=None).end("a", "canceled"), "operation.canceled"),
        ["on-a was Canceled and is Canceled"],
    ),
    "Started is hardly shown": (
        lambda s: s.announce("a", rollout=None, by="silence").start("a").later(seconds=1.9).end("a"),
        ["Started was shown for 0:00:01.900000 only"],
    ),
    "a host is left out": (
        lambda s: s.rollout().whole("a", "b").say("completed"),
        ["the rollout is completed and c were left out"],
    ),
    "it is completed too soon": (
        lambda s: s.rollout(hosts="a,c,!c").announce("a").say("completed"),
        ["the rollout is completed while a are under way", "the rollout is completed and a were left out"],
    ),
    "a start in a pause": (
        lambda s: s.rollout().announce("a", by="silence").say("paused").start("a"),
        ["a starts though its rollout is paused"],
    ),
    "announced in a pause": (
        lambda s: s.rollout().say("paused").announce("a"),
        ["a is announced by a rollout that is paused"],
    ),
    "announced after it was cancelled": (
        _cancel,
        [
            "c is announced by a rollout that is over",
            "2 hosts of the rollout are under way, of which it takes 1 at once",
        ],
    ),
    "a host twice": (
        lambda s: (
            s.rollout().whole("a"),
            s.note("operation.scheduled", operation="2", host="a", rollout="r", kind="host-update", vms=[]),
        ),
        ["a is announced a second time by its rollout"],
    ),
    "a host that is not meant": (
        lambda s: s.rollout(hosts="*,!a").announce("a"),
        ["a is not one of *,!a"],
    ),
    "a start outside a rollout's windows": (
        lambda s: s.rollout(windows=["mon 12:10-12:20 UTC"]).announce("b", by="silence").start("b"),
        [f"{NOON} is outside the windows of the rollout: mon 12:10-12:20 UTC"],
    ),
    "NotBefore and a start outside a scope's windows": (
        lambda s: s.later(hours=8).announce("a", rollout=None, by="silence").start("a"),
        [
            f"2026-01-05 20:{minute}:00+00:00 is outside the windows of vm:solo: mon-fri 10:00-20:00 UTC"
            for minute in ("15", "00")
        ],
    ),
    "domains share a host": (
        lambda s: (s.announce("a", rollout=None), _move(s, "b")),
        ["web-0 and web-1, of two update domains of group:web, share b"],
    ),
    "a VM moves from where it is not": (
        lambda s: (s.announce("a", rollout=None), _move(s, "c", source="b")),
        ["web-0 moved from b but was on a"],
    ),
    "an operation on a host where its VM is not": (
        lambda s: (
            s.announce("a", rollout=None),
            _move(s, "c"),
            s.later(minutes=1),
            s.note("operation.scheduled", operation="2", host="a", kind="host-update", vms=["web-0"]),
        ),
        ["web-0 is on c, not on a"],
    ),
    "an event of two scopes": (
        lambda s: (
            s.note("operation.scheduled", operation="o", host="a", kind="host-update", vms=ON["a"]),
            s.note(
                "event.scheduled",
                operation="o",
                event="E",
                scope="group:web",
                resources=ON["a"],
                not_before=(s.now + timedelta(hours=1)).isoformat(),
                approved_by=None,
            ),
        ),
        ["solo, web-0 are not of one update domain of group:web on one host"],
    ),
    "time goes backwards": (
        lambda s: s.rollout().later(seconds=-1).say("paused"),
        ["comes before the one before it"],
    ),
    "a VM that nobody knows": (
        lambda s: s.note("vm.added", vm="new", host="a", scope="vm:new"),
        ["new is not in the fleet document: what befalls it cannot be judged"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_it_finds(name: str) -> None:
    tell, words = BROKEN[name]
    story = Story()
    tell(story)
    assert [each.partition("): ")[2] for each in story.found()] == words


@pytest.mark.parametrize(
    ("window", "moment", "opens"),
    [
        ("daily 22:00-04:00 UTC", "2026-01-05T23:59:59Z", True),
        ("daily 22:00-04:00 UTC", "2026-01-05T03:59:59Z", True),
        ("daily 22:00-04:00 UTC", "2026-01-05T04:00:00Z", False),
        ("mon 22:00-04:00 UTC", "2026-01-05T03:00:00Z", False),
        ("sun,mon 22:00-04:00 UTC", "2026-01-05T03:00:00Z", True),
        ("sat-mon 00:00-24:00 UTC", "2026-01-05T12:00:00Z", True),
        ("tue-fri 00:00-24:00 UTC", "2026-01-05T12:00:00Z", False),
        ("mon 08:00-09:00 Europe/Berlin", "2026-01-05T07:30:00Z", True),
        ("mon 08:00-09:00 Europe/Berlin", "2026-07-06T07:30:00Z", False),
    ],
)
def test_it_reads_windows_by_itself(window: str, moment: str, opens: bool) -> None:
    story = Story()
    story.now = datetime.fromisoformat(moment) - timedelta(days=7)
    story.rollout(hosts="b", windows=[window]).announce("b", minutes=7 * 24 * 60).later(days=7).start("b")
    assert (story.found() == []) is opens
