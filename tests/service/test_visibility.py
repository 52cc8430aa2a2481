"""Whoever sees some scopes alone is never told of anybody else, whatever happens."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
import pytest
from tests.service.rig import START, Rig

from forenotice.core import errors, explanations, roles, selectors
from forenotice.core.blockers import BlockerKind
from forenotice.core.draft import Draft
from forenotice.core.driver_calls import Finished, Outcome, Task
from forenotice.core.explanations import Explanation
from forenotice.core.fleet import Listening
from forenotice.core.operations import Kind
from forenotice.core.selectors import Selector
from forenotice.service import fleet, history, maintenance, queries, visibility
from forenotice.service.calls import Call
from forenotice.store.database import Store
from forenotice.views.fleet import NewHost, PolicyChange

TENANT = roles.access("tenant", "web")
MINE = Call(actor="tenant:shop", token_id="t2", origin="192.0.2.7", reason="new kernel", access=TENANT)
PLATFORM = Call(actor="operator:pool-admin", token_id="t3", origin="10.9.8.7", reason="pool is sick")
FOREIGN = re.compile(r"\b(pool\w*|db|batch|host-z|10\.9\.8\.7|sick|burn\w*)\b")


class Burning:
    """Fails for everybody, and says more than tenants should hear."""

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        return Finished(failures=dict.fromkeys(task.vms, "pool_0 on host-z is burning"))

    def stop(self) -> None: ...


def everything(rig: Rig, seen: Selector | None) -> dict[str, Any]:
    """All that can be asked, by question."""
    service = rig.service
    lists: dict[str, Callable[..., Any]] = {
        "vms": queries.vms,
        "groups": queries.groups,
        "operations": queries.operations,
        "events": queries.events,
        "history": history.page,
    }
    found = {noun: ask(service, limit=1000, seen=seen) for noun, ask in lists.items()}
    one: dict[str, tuple[Callable[..., Any], ...]] = {
        "vms": (queries.vm,),
        "groups": (queries.group,),
        "operations": (queries.operation, queries.explain_operation),
        "events": (queries.event, queries.explain_event),
    }
    for noun, questions in one.items():
        for item in found[noun].items:
            key = getattr(item, "id", None) or item.name
            found |= {f"{ask.__name__} {key}": ask(service, key, seen=seen) for ask in questions}
    return found


def others(rig: Rig) -> set[str]:
    """Ids of what the tenant was not told of."""
    events = queries.events(rig.service, limit=1000).items
    mine = {event.operation for event in events if event.scope == "group:web"}
    foreign = {event.id for event in events if event.scope != "group:web"}
    return foreign | {each.id for each in queries.operations(rig.service, limit=1000).items} - mine


def test_nobody_else_is_named_from_the_announcement_to_the_end(store: Store) -> None:
    rig = Rig(store, driver=Burning()).settle_demo()
    fleet.add_host(rig.service, PLATFORM, NewHost(name="host-z", cordoned=True))
    rig.schedule(Kind.HOST_UPDATE, "host-a", call=PLATFORM)
    rig.schedule(Kind.LIVE_MIGRATION, "host-b", call=PLATFORM)
    rig.schedule(Kind.RESTART, "db", call=PLATFORM)
    rig.schedule(Kind.RESTART, "web-2", call=MINE)
    fleet.set_policy(
        rig.service, PLATFORM, "group:web", PolicyChange(listening=Listening.ALWAYS, max_user_operations=9)
    )
    said: set[str] = set()
    for _ in range(12):
        shown = everything(rig, TENANT.scopes)
        told = msgspec.json.encode(shown).decode()
        assert not FOREIGN.search(told), FOREIGN.findall(told)
        assert not [name for name in others(rig) if name in told]
        said |= {view.sentence for view in shown.values() if hasattr(view, "sentence")}
        said |= {entry.action for entry in shown["history"].items}
        if waiting := [each for each in rig.live_events() if not each.approved_at]:
            maintenance.approve(rig.service, PLATFORM, waiting[0].id)
        rig.run(30, step=5)
    assert any("somebody else's approval" in sentence for sentence in said)
    assert any("your approval" in sentence for sentence in said)
    assert {"event.scheduled", "event.approved", "event.started", "event.failed", "scope.policy_changed"} <= said
    assert FOREIGN.search(msgspec.json.encode(everything(rig, None)).decode())


def test_what_tenants_did_is_told_with_from_where_and_why(rig: Rig) -> None:
    [operation] = rig.schedule(Kind.RESTART, "web-0", call=MINE)
    assert (operation.by, operation.reason) == ("tenant:shop", "new kernel")
    [entry] = rig.entries(action="event.scheduled", seen=TENANT.scopes)
    assert (entry.by, entry.origin, entry.reason) == ("tenant:shop", "192.0.2.7", "new kernel")
    maintenance.approve(rig.service, PLATFORM, operation.events[0].id)
    [entry] = rig.entries(action="event.approved", seen=TENANT.scopes)
    assert (entry.by, entry.origin, entry.reason) == ("operator", "", "")
    assert entry.data["approved_by"] == "operator"
    [entry] = rig.entries(action="event.approved")
    assert (entry.by, entry.origin, entry.reason) == (PLATFORM.actor, PLATFORM.origin, PLATFORM.reason)


def test_what_is_not_shown_cannot_be_filtered_for(rig: Rig) -> None:
    [operation] = rig.schedule(Kind.RESTART, "web-0", call=PLATFORM)
    for filters in ({"by": PLATFORM.actor}, {"rollout": "r"}, {"scope": "group:pool"}, {"vm": "db"}):
        assert history.page(rig.service, seen=TENANT.scopes, **filters).items == []  # type: ignore[arg-type]
        assert list(history.everything(rig.service, seen=TENANT.scopes, **filters)) == []
    assert history.page(rig.service, by=PLATFORM.actor).items
    shown = history.page(rig.service, by="operator", seen=TENANT.scopes).items
    assert {(entry.action, entry.by) for entry in shown} == {("event.scheduled", "operator")}
    assert history.page(rig.service, operation=operation.id, seen=TENANT.scopes).items


Ask = Callable[[Rig, str], Any]


@pytest.mark.parametrize(
    ("ask", "foreign"),
    [
        (lambda rig, name: queries.vm(rig.service, name, TENANT.scopes), "db"),
        (lambda rig, name: queries.group(rig.service, name, TENANT.scopes), "pool"),
        (lambda rig, name: maintenance.schedule(rig.service, MINE, kind=Kind.RESTART, names=[name]), "db"),
        (lambda rig, name: maintenance.schedule(rig.service, MINE, kind=Kind.REDEPLOY, names=["web-0", name]), "db"),
        (lambda rig, name: maintenance.approve(rig.service, MINE, name), "event"),
        (lambda rig, name: maintenance.cancel_event(rig.service, MINE, name), "event"),
        (lambda rig, name: queries.event(rig.service, name, TENANT.scopes), "event"),
        (lambda rig, name: queries.explain_event(rig.service, name, TENANT.scopes), "event"),
        (lambda rig, name: queries.operation(rig.service, name, TENANT.scopes), "operation"),
        (lambda rig, name: queries.explain_operation(rig.service, name, TENANT.scopes), "operation"),
        (lambda rig, name: maintenance.cancel_operation(rig.service, MINE, name), "operation"),
    ],
)
def test_what_is_somebody_elses_is_missing_like_what_does_not_exist(rig: Rig, ask: Ask, foreign: str) -> None:
    [operation] = rig.schedule(Kind.RESTART, "db")
    name = {"operation": operation.id, "event": operation.events[0].id}.get(foreign, foreign)
    before = history.page(rig.service, limit=1000)
    refusals = []
    for each in (name, "nonesuch"):
        with pytest.raises(errors.NotFoundError) as refused:
            ask(rig, each)
        refusals.append(json.dumps([refused.value.message, dict(refused.value.facts)]).replace(each, "NAME"))
    assert refusals[0] == refusals[1]
    assert history.page(rig.service, limit=1000) == before


def test_a_tenant_acts_on_its_own(rig: Rig) -> None:
    [restart] = rig.schedule(Kind.RESTART, "web-0", call=MINE)
    assert maintenance.cancel_operation(rig.service, MINE, restart.id).status == "Canceled"
    [redeploy] = rig.schedule(Kind.REDEPLOY, "web-1", call=MINE)
    approved = maintenance.approve(rig.service, MINE, redeploy.events[0].id)
    assert approved.approved_by == "tenant:shop"
    [update] = rig.schedule(Kind.HOST_UPDATE, "host-a")
    [ordered] = rig.schedule(Kind.RESTART, "web-2")
    [mine] = [event.id for event in update.events if event.scope == "group:web"]
    for refused in (
        lambda: maintenance.cancel_operation(rig.service, MINE, update.id),
        lambda: maintenance.cancel_event(rig.service, MINE, mine),
        lambda: maintenance.cancel_operation(rig.service, MINE, ordered.id),
        lambda: rig.schedule(Kind.DELETION, "web-0", call=MINE),
        lambda: rig.schedule(Kind.HOST_UPDATE, "host-b", call=MINE),
    ):
        with pytest.raises(errors.ForbiddenError, match="needs the role platform or admin"):
            refused()
    assert rig.cancel(update).status == "Canceled"


def test_whose_reasons_are_whose(rig: Rig) -> None:
    [mine] = rig.schedule(Kind.RESTART, "web-0", call=MINE)
    [other] = rig.schedule(Kind.RESTART, "db")
    with rig.service.store.read() as reader:
        world = reader.worlds.load(vms=["web-0", "db"], operations=[mine.id, other.id])
    draft = Draft(world, now=START, timing=rig.service.timing, new_id=str)
    own, foreign = mine.events[0].id, other.events[0].id
    for facts, said in (
        (
            {"kind": "approval", "scope": "group:web", "event": own, "until": START},
            "your approval (web) until 2026-01-05 12",
        ),
        ({"kind": "approval", "scope": "vm:db", "event": foreign}, "somebody else's approval"),
        ({"kind": "approval", "event": foreign}, "somebody else's approval"),
        ({"kind": "vm-busy", "vm": "web-0", "operation": mine.id}, "another operation on web-0 to end"),
        ({"kind": "vm-busy", "vm": "db", "operation": other.id}, "another operation on a VM"),
        ({"kind": "target-host", "vm": "gone-db"}, "a host that can take a VM"),
        ({"kind": "budget", "scope": "group:web", "size": 3}, "your group web to have enough VMs left"),
        ({"kind": "window", "scope": "group:pool", "window": "pool's"}, "a maintenance window"),
        ({"kind": "driver", "vms": ["db"], "failures": {"db": "burning"}}, "the driver to carry it out"),
        ({"kind": "rollout", "rollout": "pool"}, "the platform"),
        ({"kind": "of-tomorrow", "db": "db"}, "the platform"),
    ):
        found = Explanation(noun="event", id=own, sentences=("pool",), since=None, until=None, waiting_for=(facts,))
        shown = visibility.explanation(draft, found, TENANT.scopes)
        assert shown.sentence.startswith(f"It waits for {said}"), shown.sentence
        assert not FOREIGN.search(str(shown)), shown
        assert other.id not in str(shown)
        assert foreign not in str(shown)
        assert visibility.explanation(draft, found, None) is found
    waiting = [{"kind": "approval", "scope": scope} for scope in ("group:web", "vm:db", "group:pool", "vm:batch")]
    found = Explanation(noun="event", id=own, sentences=(), since=None, until=None, waiting_for=tuple(waiting))
    shown = visibility.explanation(draft, found, selectors.of_scopes("web,vm:batch"))
    assert shown.sentences == (
        "It waits for your approval (web).",
        "It waits for somebody else's approval.",
        "It waits for your approval (batch).",
    )
    assert [facts.get("scope") for facts in shown.waiting_for] == ["group:web", None, "vm:batch"]
    ends = {"kind": "approval", "scope": "group:web", "until": START}
    both = replace(found, waiting_for=(ends, {"kind": "budget", "scope": "group:pool"}))
    shown = visibility.explanation(draft, both, TENANT.scopes)
    assert shown.sentences[0] == "It waits for a group to have enough VMs left."
    assert set(BlockerKind) <= set(explanations.PHRASES)
