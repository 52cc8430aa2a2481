"""Callers with limited scopes are never told of others, nor of whoever had a name of theirs before."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.service.rig import OPERATOR, START, Rig

from forenotice.core import errors, explanations, roles, selectors
from forenotice.core.blockers import BlockerKind
from forenotice.core.draft import Draft, UserLimits
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.explanations import Explanation
from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.core.roles import Access, Role
from forenotice.core.selectors import Selector
from forenotice.service import fleet, history, maintenance, overview, queries, tokens, visibility
from forenotice.service.calls import Call
from forenotice.store.database import Store
from forenotice.store.journal import JournalFilter
from forenotice.views.fleet import NewGroup, NewHost, PolicyChange

TENANT = roles.access("tenant", "web")
MINE = Call(actor="tenant:shop", token_id="t2", origin="192.0.2.7", reason="new kernel", access=TENANT)
PLATFORM = Call(actor="operator:pool-admin", token_id="t3", origin="10.9.8.7", reason="pool is sick")
FOREIGN = re.compile(r"\b(pool\w*|db|batch|host-z|10\.9\.8\.7|sick|burn\w*)\b")


class Burning:
    """Waits, then fails for everybody, and says more than tenants should hear."""

    def __init__(self) -> None:
        self.waited: set[str] = set()

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        if task.operation not in self.waited:
            self.waited.add(task.operation)
            again_at = now + timedelta(seconds=35)
            return NotYet(again_at=again_at, waiting=dict.fromkeys(task.vms, "pool_0 on host-z is burning"))
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
    }
    found = {noun: ask(service, limit=1000, seen=seen) for noun, ask in lists.items()}
    found["history"] = history.page(service, JournalFilter(seen=seen), limit=1000)
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
    assert any("an approval that is not yours" in sentence for sentence in said)
    assert any("your approval" in sentence for sentence in said)
    assert {"event.scheduled", "event.approved", "event.started", "event.failed", "scope.policy_changed"} <= said
    assert rig.entries(action="driver.waiting")
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
        wanted = JournalFilter(seen=TENANT.scopes, **filters)  # type: ignore[arg-type]
        assert history.page(rig.service, wanted).items == []
        assert list(history.everything(rig.service, wanted)) == []
    assert history.page(rig.service, JournalFilter(by=PLATFORM.actor)).items
    shown = history.page(rig.service, JournalFilter(by="operator", seen=TENANT.scopes)).items
    assert {(entry.action, entry.by) for entry in shown} == {("event.scheduled", "operator")}
    assert history.page(rig.service, JournalFilter(operation=operation.id, seen=TENANT.scopes)).items


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
        ({"kind": "approval", "scope": "vm:db", "event": foreign}, "an approval that is not yours"),
        ({"kind": "approval", "event": foreign}, "an approval that is not yours"),
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
        "It waits for an approval that is not yours.",
        "It waits for your approval (batch).",
    )
    assert [facts.get("scope") for facts in shown.waiting_for] == ["group:web", None, "vm:batch"]
    ends = {"kind": "approval", "scope": "group:web", "until": START}
    both = replace(found, waiting_for=(ends, {"kind": "budget", "scope": "group:pool"}))
    shown = visibility.explanation(draft, both, TENANT.scopes)
    assert shown.sentences[0] == "It waits for a group to have enough VMs left."
    assert set(BlockerKind) <= set(explanations.PHRASES)


SECRET = Call(actor="tenant:old", token_id="t9", origin="192.0.2.77", reason="old-secret")


def token(rig: Rig, name: str, scopes: str) -> str:
    rig.clock.advance(seconds=1)
    made = tokens.create(rig.service, OPERATOR, name=name, role="tenant", scopes=scopes)
    rig.clock.advance(seconds=1)
    return str(made.token)


def seen(rig: Rig, secret: str) -> Selector:
    scopes = tokens.authenticate(rig.service, secret).access.scopes
    assert scopes is not None
    return scopes


def lived(rig: Rig) -> tuple[str, str]:
    """An event in the life of `db`, which is then removed: ids of it and its operation."""
    [operation] = rig.schedule(Kind.RESTART, "db", call=SECRET)
    rig.clock.advance(seconds=1)
    rig.cancel(operation)
    rig.clock.advance(seconds=1)
    fleet.remove_vm(rig.service, SECRET, "db")
    rig.clock.advance(seconds=1)
    return operation.events[0].id, operation.id


def add(rig: Rig) -> Any:
    added = rig.add_vm("db", "host-b")
    rig.set_policy("vm:db", listening=Listening.ALWAYS)
    rig.clock.advance(seconds=1)
    return added


def told(rig: Rig, scopes: Selector) -> str:
    """All that somebody with these scopes can be told."""
    exported = [each for some in history.everything(rig.service, JournalFilter(seen=scopes)) for each in some]
    access = Access(role=Role.TENANT, scopes=scopes)
    picture = overview.now(rig.service, access, since=rig.clock.now() - timedelta(days=1), most=100)
    return msgspec.json.encode([everything(rig, scopes), exported, picture]).decode()


def test_a_successor_is_shown_nothing_of_whoever_had_the_name(rig: Rig) -> None:
    old, pattern = token(rig, "old", "vm:db"), token(rig, "pattern", "vm:d*")
    event, operation = lived(rig)
    # What is gone is told on to those it was told to.
    for secret in (old, pattern):
        assert event in told(rig, seen(rig, secret))
        assert "old-secret" in told(rig, seen(rig, secret))
    between = token(rig, "between", "vm:db")
    assert event not in told(rig, seen(rig, between))
    assert add(rig).warnings == [
        "vm:db was used before, until 2026-01-05 12:00:06 UTC: the old history is shown only to those who see all "
        "scopes, and older tokens that name vm:db do not match the new one"
    ]
    new = token(rig, "new", "vm:db")
    rig.schedule(Kind.RESTART, "db", call=Call(actor="tenant:new", token_id="t8", reason="of my own"))
    for secret in (between, new, pattern):
        mine = seen(rig, secret)
        assert "of my own" in told(rig, mine)
        for former in (event, operation, "old-secret", "192.0.2.77"):
            assert former not in told(rig, mine)
        access = tokens.authenticate(rig.service, secret).access
        with pytest.raises(errors.NotFoundError):
            overview.of_event(rig.service, event, access)
        with pytest.raises(errors.NotFoundError):
            maintenance.approve(rig.service, Call(actor="tenant:new", token_id="t8", access=access), event)
    assert '"name": "db"' not in told(rig, seen(rig, old))
    with pytest.raises(errors.NotFoundError):
        queries.vm(rig.service, "db", seen(rig, old))
    assert event in msgspec.json.encode(everything(rig, None)).decode()


def test_one_who_is_gone_hides_those_before(rig: Rig) -> None:
    pattern = token(rig, "pattern", "vm:*")
    first, _ = lived(rig)
    add(rig)
    # Nor can a guest approve what was its predecessor's.
    assert isinstance(rig.approve("db", "vm:db", first), errors.RefusedError)
    second, _ = lived(rig)
    assert first not in told(rig, seen(rig, pattern))
    assert second in told(rig, seen(rig, pattern))


def test_who_only_changes_groups_stays_the_same(rig: Rig) -> None:
    mine = token(rig, "mine", "vm:db")
    before = told(rig, seen(rig, mine))
    rig.set_vm("db", group="pool", update_domain=1, fault_domain=1)
    rig.set_vm("db", group=None)
    assert '"name":"db"' in before
    assert '"name":"db"' in told(rig, seen(rig, mine))
    # A VM that is removed from a group takes with it what it was when it was alone.
    rig.set_vm("db", group="pool", update_domain=1, fault_domain=1)
    rig.remove_vm("db")
    rig.clock.advance(seconds=1)
    add(rig)
    assert '"name": "db"' not in told(rig, seen(rig, mine))


def test_groups_and_whole_fleets(rig: Rig) -> None:
    kind = ScopeKind.AVAILABILITY_SET
    assert (
        fleet.add_group(rig.service, OPERATOR, NewGroup(name="shop", kind=kind, policy=PolicyChange())).warnings == []
    )
    old = token(rig, "old", "shop")
    fleet.remove_group(rig.service, OPERATOR, "shop")
    rig.remove_vm("db")
    rig.clock.advance(seconds=1)
    file = fleet.parse(
        b'{"groups": {"shop": {"kind": "availability-set"}, "fresh": {"kind": "availability-set"}},'
        b' "vms": {"db": {"host": "host-b"}, "new": {"host": "host-b"}}}',
        "json",
    )
    for dry_run in (True, False):
        applied = fleet.apply(rig.service, OPERATOR, file, prune=False, dry_run=dry_run)
        assert [each.partition(" ")[0] for each in applied.warnings] == ["group:shop", "vm:db"]
    assert queries.groups(rig.service, seen=seen(rig, old)).items == []
    [shop] = queries.groups(rig.service, seen=seen(rig, token(rig, "new", "shop"))).items
    assert shop.name == "shop"
    # In a group it is the group's, whatever it is called.
    rig.remove_vm("new")
    spec = VmSpec(name="new", host="host-b", group="shop")
    assert fleet.add_vm(rig.service, OPERATOR, spec).warnings == []


def tenant(name: str, key: str | None = None) -> Call:
    access = Access(role=Role.TENANT, scopes=selectors.of_scopes("pool,vm:db"))
    return Call(actor=f"tenant:{name}", token_id=name, access=access, key=key, digest=key or "")


def test_operations_of_each_tenant_and_of_all_users_are_limited(rig: Rig) -> None:
    rig.service.limits = UserLimits(fleet=3, tenant=2)
    made = rig.schedule(Kind.RESTART, "pool_0", "pool_1", call=tenant("a", "once"))
    for refuse in (maintenance.preview, maintenance.schedule):
        with pytest.raises(errors.ConflictError, match=r"^tenant:a may have 2 operations at a time"):
            refuse(rig.service, tenant("a"), kind=Kind.REDEPLOY, names=["db"])
        with pytest.raises(errors.ConflictError, match=r"^the fleet allows 3 users' operations at a time"):
            refuse(rig.service, tenant("b"), kind=Kind.RESTART, names=["pool_2", "pool_3"])
    # What was done is done once, and told again.
    assert rig.schedule(Kind.RESTART, "pool_0", "pool_1", call=tenant("a", "once")) == made
    [other] = rig.schedule(Kind.RESTART, "db", call=tenant("b"))
    with pytest.raises(errors.ConflictError, match=r"^the fleet allows 3"):
        rig.schedule(Kind.DELETION, "batch")
    rig.schedule(Kind.HOST_UPDATE, "host-a")
    maintenance.cancel_operation(rig.service, tenant("b"), other.id)
    rig.schedule(Kind.RESTART, "web-0")
