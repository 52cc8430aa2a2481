"""Entries of the journal in words."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.cli.samples import history, sample

from forenotice.cli.history import row

MOMENT = "2026-01-31T12:00:00Z"
ENTRY = sample(history.Entry, by="", origin="", reason="", scope="group:web", event="E1", operation=None, host=None)
ENTRY = replace(ENTRY, vm=None, rollout=None)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"results": {"web-0": "done", "web-1": "no power"}}, "web-0: done, web-1: no power"),
        ({"attempt": 2, "done": ["web-0"], "failures": {"web-1": "late"}}, "attempt: 2, done: web-0, web-1: late"),
        ({"failures": {"web-1": "late", "db": "gone", "web-2": "late"}}, "web-1, web-2: late, db: gone"),
        (
            {"type": "Freeze", "resources": ["a", "b"], "not_before": MOMENT},
            "Freeze of a, b, not before 2026-01-31 12:00:00 UTC",
        ),
        ({"kind": "host-update", "vms": [], "reason": "why"}, "host-update of no VM"),
        ({"because": ["budget", "window"]}, "because of budget, window"),
        ({"approved_by": "vm:a", "late": True}, "after NotBefore"),
        ({"approved_by": "vm:a", "late": False}, ""),
        ({"source": "host-a"}, "source: host-a"),
        ({"before": MOMENT, "entries": 3}, "before 2026-01-31 12:00:00 UTC, entries: 3"),
        ({"to": MOMENT}, "to 2026-01-31 12:00:00 UTC"),
        ({"to": "Paused", "failures": 3, "done": 7, "results": None}, "to Paused, failures: 3, done: 7"),
    ],
)
def test_details(data: dict[str, Any], said: str) -> None:
    assert row(replace(ENTRY, data=data))[3] == said


def test_who_and_why() -> None:
    assert row(replace(ENTRY, data={"approved_by": "vm:a", "reason": "old"}))[4:] == ("vm:a", "", "old")
    told = replace(ENTRY, by="operator:ada", origin="10.0.0.1", reason="kernel", vm="web-0", rollout="r", data={})
    assert row(told)[2:] == ("vm web-0, event E1, rollout r", "", "operator:ada", "10.0.0.1", "kernel")
