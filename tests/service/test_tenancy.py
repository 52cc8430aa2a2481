"""A name that passes from one VM or group to another passes on neither history nor tokens."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.service.rig import OPERATOR, Rig
from tests.service.test_visibility import everything

from forenotice.core import errors, selectors
from forenotice.core.draft import UserLimits
from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.core.roles import Access, Role
from forenotice.core.selectors import Selector
from forenotice.service import fleet, history, maintenance, overview, queries, tokens
from forenotice.service.calls import Call
from forenotice.views.fleet import NewGroup, PolicyChange

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
    exported = [each for some in history.everything(rig.service, seen=scopes) for each in some]
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
    second, _ = lived(rig)
    assert first not in told(rig, seen(rig, pattern))
    assert second in told(rig, seen(rig, pattern))


def test_a_guest_cannot_approve_what_was_its_predecessors(rig: Rig) -> None:
    event, _ = lived(rig)
    add(rig)
    assert isinstance(rig.approve("db", "vm:db", event), errors.RefusedError)


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
