"""The history as a use case: pages, exports, and what is forgotten."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.service.rig import OPERATOR, START, Rig

from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.service import history, queries
from forenotice.service.calls import Call

DAY = timedelta(days=1)


def test_the_life_of_an_event_is_told_to_its_end(rig: Rig) -> None:
    (operation,) = rig.schedule(Kind.RESTART, "db", reason="new kernel")
    (event,) = operation.events
    rig.approve("db", "vm:db", event.id)
    rig.run(120)
    told = history.page(rig.service, event=event.id.lower()).items
    assert [entry.action for entry in told] == ["event.scheduled", "event.approved", "event.started", "event.completed"]
    assert told[-1].data["results"] == {"db": "done"}
    assert told[0].by == OPERATOR.actor
    of_vm = rig.actions(vm="db", since=START)
    assert set(rig.actions(event=event.id)) < set(of_vm)
    assert {"operation.scheduled", "operation.started", "operation.completed", "vm.added"} <= set(of_vm)


def test_pages_in_both_directions_end(rig: Rig) -> None:
    oldest = history.page(rig.service, limit=10_000).items
    for newest_first in (False, True):
        found: list[Any] = []
        after: Any = None
        while True:
            page = history.page(rig.service, limit=7, newest_first=newest_first, after=after)
            found += page.items
            after = page.next
            if after is None:
                break
        assert found == (oldest[::-1] if newest_first else oldest)


def test_an_export_ends_with_what_was_there_when_it_began(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MANY", 5)
    before = history.page(rig.service, limit=10_000).items
    pages = history.everything(rig.service)
    found = list(next(pages))
    rig.schedule(Kind.RESTART, "db")
    for page in pages:
        found += page
    assert found == before
    assert list(history.everything(rig.service, vm="nobody")) == []


def test_what_is_old_and_over_is_forgotten_everywhere(rig: Rig) -> None:
    (over,) = rig.schedule(Kind.RESTART, "db")
    rig.approve("db", "vm:db", over.events[0].id)
    rig.run(120)
    (live,) = rig.schedule(Kind.DEGRADED_HARDWARE, "host-a")
    rig.clock.advance(days=3)
    before = rig.clock.now() - DAY
    foretold = history.prune(rig.service, OPERATOR, before=before, dry_run=True)
    assert rig.operation(over).status == "Completed"
    pruned = history.prune(rig.service, OPERATOR, before=before)
    assert pruned == replace(foretold, complete=True, dry_run=False)
    assert (pruned.operations, pruned.events, pruned.rollouts) == (1, 1, 0)
    assert pruned.kept == len(rig.actions(until=before)) > 0
    assert {entry.operation for entry in history.page(rig.service, until=before).items} == {live.id}
    with pytest.raises(errors.NotFoundError):
        rig.operation(over)
    assert [each.id for each in queries.operations(rig.service).items] == [live.id]
    assert [each.id for each in queries.events(rig.service, vm="db").items] == []
    started, noted = rig.entries(action="history.")
    assert (started.action, noted.action) == ("history.prune_started", "history.pruned")
    assert noted.by == OPERATOR.actor
    told = msgspec.to_builtins(foretold)
    assert noted.data == {name: told[name] for name in ("before", *history.REMOVED)}


def test_the_last_day_is_never_forgotten(rig: Rig) -> None:
    for moment in (START, START + DAY, START - DAY + timedelta(seconds=1)):
        with pytest.raises(errors.RefusedError, match="the last 24 hours"):
            history.prune(rig.service, OPERATOR, before=moment)
    with pytest.raises(errors.RefusedError, match="zone"):
        history.prune(rig.service, OPERATOR, before=START.replace(tzinfo=None))
    assert history.prune(rig.service, OPERATOR, before=START - DAY).entries == 0


def test_the_same_key_prunes_once(rig: Rig) -> None:
    rig.clock.advance(days=3)
    call = Call(actor="ada", token_id="t1", key="k", digest="d")
    first = history.prune(rig.service, call, before=START + DAY)
    assert first.entries > 0
    assert history.prune(rig.service, call, before=START + DAY) == first
    with pytest.raises(errors.ConflictError):
        history.prune(rig.service, Call(actor="ada", token_id="t1", key="k", digest="other"), before=START)
    assert rig.actions(action="history.pruned") == ["history.pruned"]


def test_what_takes_too_long_is_gone_on_with(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.clock.advance(days=3)
    monkeypatch.setattr("forenotice.store.retention.ENTRIES", 5)
    monkeypatch.setattr(history, "PATIENCE_SECONDS", 0.0)
    foretold = history.prune(rig.service, OPERATOR, before=START + DAY, dry_run=True)
    first = history.prune(rig.service, OPERATOR, before=START + DAY)
    assert (first.entries, first.complete) == (5, False)
    monkeypatch.undo()
    second = history.prune(rig.service, OPERATOR, before=START + DAY)
    assert second.complete
    # The newest entry of those days is no longer the newest of all.
    assert first.entries + second.entries == foretold.entries + 1
