"""Every kind of entry has words, and they say what happened."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from forenotice.core.journal import ACTIONS
from forenotice.views import wording
from forenotice.views.history import Entry

NOTHING = Entry(
    seq=1,
    at=datetime(2026, 1, 31, tzinfo=UTC),
    action="",
    by="",
    origin="",
    reason="",
    **dict.fromkeys(("scope", "event", "operation", "host", "vm", "rollout")),
    data={},
)
AT = "2026-01-31T12:00:00Z"


def said(action: str, data: dict[str, Any] | None = None, **named: str) -> str:
    return wording.sentence(msgspec.structs.replace(NOTHING, action=action, **named, data=data or {}))


def test_no_action_is_without_words() -> None:
    assert set(wording.WORDS) == ACTIONS
    assert {action.partition(".")[0] for action in ACTIONS} == set(wording.NOUNS)
    offered = [action for actions in wording.kinds().values() for action in actions]
    assert sorted(offered) == sorted(ACTIONS)


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_an_entry_that_tells_little_has_a_sentence_all_the_same(action: str) -> None:
    """As those see it from whom most is kept back."""
    told = said(action)
    assert told[0].isupper()
    assert told.endswith(".")
    assert "None" not in told
    assert "{" not in told


def test_titles_differ_within_their_noun() -> None:
    for actions in wording.kinds().values():
        assert len(set(actions.values())) == len(actions)


@pytest.mark.parametrize(
    ("action", "data", "named", "expected"),
    [
        (
            "event.scheduled",
            {"type": "Reboot", "resources": ["web-0"], "not_before": AT, "approved_by": None},
            {},
            "Reboot of web-0 was announced, not before 2026-01-31 12:00:00 UTC.",
        ),
        (
            "event.scheduled",
            {"type": "Freeze", "resources": ["a", "b"], "not_before": AT, "approved_by": "silence"},
            {},
            "Freeze of a and b was announced, not before 2026-01-31 12:00:00 UTC."
            " It was approved at once by silence, because its scope is not listening.",
        ),
        ("event.approved", {"approved_by": "web-0"}, {}, "The event was approved by its guest web-0."),
        (
            "event.approved",
            {"approved_by": "operator:admin", "late": True},
            {},
            "The event was approved by operator admin in its guests' place, after NotBefore.",
        ),
        (
            "event.failed",
            {"type": "Reboot", "resources": ["web-1"], "results": {"web-0": "done", "web-1": "no answer"}},
            {},
            "Reboot of web-1 failed: web-1 (no answer).",
        ),
        ("event.completed", {"type": "Reboot", "resources": ["web-0"]}, {}, "Reboot of web-0 completed."),
        ("event.started", {}, {"scope": "group:web"}, "Maintenance of group web started."),
        ("event.canceled", {}, {"vm": "db"}, "The event was cancelled, because db has left its host."),
        (
            "operation.held",
            {"because": ["budget", "budget", "window"]},
            {},
            "The operation could not start yet: it waits for a group to have enough VMs left and a maintenance window.",
        ),
        (
            "operation.planned",
            {
                "kind": "host-update",
                "vms": ["a"],
                "announce_at": "2026-03-01T21:44:00Z",
                "not_before": "2026-03-01T22:00:00Z",
            },
            {"host": "host-a"},
            "An operation was planned: host update of a on host-a, not before 2026-03-01 22:00:00 UTC; "
            "guests are told at 2026-03-01 21:44:00 UTC.",
        ),
        (
            "operation.scheduled",
            {"kind": "host-update", "vms": ["a"]},
            {"host": "host-a"},
            "An operation was scheduled: host update of a on host-a.",
        ),
        (
            "driver.failed",
            {"failures": {"a": "timed out", "c": "timed out"}, "done": ["b"], "attempt": 2},
            {},
            "The driver failed for a and c (timed out), try 2; it has finished with b.",
        ),
        (
            "driver.finished",
            {"done": ["a"], "calls": [{"vms": ["a"], "seconds": 3.1}]},
            {},
            "The driver has finished with a.",
        ),
        (
            "driver.finished",
            {
                "done": ["a", "b"],
                "calls": [{"vms": ["a"], "paused_seconds": 0.384}, {"vms": ["b"], "paused_seconds": 9.0}],
            },
            {},
            "The driver has finished with a and b; paused: a for 0.384 s and b for 9 s.",
        ),
        (
            "driver.waiting",
            {"waiting": {"a": "host b does not answer", "c": "host b does not answer", "d": "no fence"}, "attempt": 1},
            {},
            "The driver waits: host b does not answer (a and c); no fence (d).",
        ),
        (
            "scope.policy_changed",
            {
                "policy": {
                    "listening": "always",
                    "auto_approve_restart": True,
                    "max_unavailable": "25%",
                    "windows": ["a", "b"],
                }
            },
            {"scope": "group:web"},
            "The policy of group web was changed: listening always, approves restarts by itself,"
            " at most 25% of its VMs down at once, windows a; b.",
        ),
        ("vm.moved", {"source": "host-a"}, {"vm": "db", "host": "host-b"}, "VM db has moved from host-a to host-b."),
        ("vm.left", {}, {"vm": "db", "scope": "vm:db"}, "VM db has left VM db."),
        (
            "rollout.started",
            {"kind": "host-update", "stops": 1, "waves": 1},
            {},
            "A rollout began: host update of 1 host, in 1 wave.",
        ),
        ("rollout.paused", {"why": "a gate was red"}, {}, "The rollout was paused: a gate was red."),
        (
            "subscription.tested",
            {"name": "s", "taken": True},
            {},
            "The subscription s was tested: its receiver took the message.",
        ),
        ("clock.jumped", {"seconds": 3600}, {}, "The clock jumped ahead by 3600 seconds."),
        ("token.created", {"name": "t", "role": "viewer"}, {}, "The token t was created, with the role viewer."),
    ],
)
def test_sentences(action: str, data: dict[str, Any], named: dict[str, str], expected: str) -> None:
    assert said(action, data, **named) == expected


def test_many_names_are_counted() -> None:
    assert wording.several(f"vm-{number}" for number in range(48)).endswith("vm-5 and 42 more")
    assert wording.several(["one"]) == "one"


def test_somebody_elses_name_is_not_guessed() -> None:
    """Those who see some scopes alone are told of operators by their role."""
    assert wording.approved_by("operator") == "by an operator in its guests' place"
    assert wording.approved_by("tenant:web") == "by tenant web in its guests' place"
    assert wording.approved_by(None) == "by an approver that is not shown"
