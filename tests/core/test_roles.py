"""Who may do what, as a table."""

from datetime import UTC, datetime, timedelta

import pytest

from forenotice.core import errors, roles, selectors
from forenotice.core.fleet import FormerScope
from forenotice.core.operations import Event, EventType, Kind, Operation, Source, Status
from forenotice.core.roles import Access, Need, Role

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("role", "scopes", "granted"),
    [
        ("viewer", None, "see oversee"),
        ("viewer", "web", "see"),
        ("tenant", "web", "see operate"),
        ("platform", None, "see oversee operate manage"),
        ("admin", None, "see oversee operate manage administer"),
    ],
)
def test_what_each_is_granted(role: str, scopes: str | None, granted: str) -> None:
    access = roles.access(role, scopes)
    assert {need for need in Need if access.may(need)} == set(granted.split())
    for need in set(Need) - set(granted.split()):
        with pytest.raises(errors.ForbiddenError):
            access.require(need)


@pytest.mark.parametrize(("role", "scopes", "most"), [("tenant", "web", 1_000), ("platform", None, 10_000)])
def test_how_many_each_may_name_in_one_command(role: str, scopes: str | None, most: int) -> None:
    access = roles.access(role, scopes)
    access.require_names(["vm"] * most)
    with pytest.raises(errors.RefusedError, match=f"the role {role} may give {most:,} at a time") as refused:
        access.require_names(["vm"] * (most + 1))
    assert refused.value.facts == {"names": most + 1, "most": most}


def test_a_tenant_keeps_others_from_writing_for_less_time() -> None:
    assert roles.access("tenant", "web").write_seconds < roles.EVERYTHING.write_seconds


@pytest.mark.parametrize("access", [roles.EVERYTHING, Access(role=Role.VIEWER)])
def test_what_is_not_declared_is_for_nobody(access: Access) -> None:
    with pytest.raises(errors.ForbiddenError, match="declares no role"):
        access.require(None)


@pytest.mark.parametrize(
    ("access", "need", "sentence"),
    [
        (
            roles.access("tenant", "web-*"),
            Need.OVERSEE,
            "this needs the role viewer of all scopes, platform or admin: the token's is tenant of web-*",
        ),
        (
            roles.access("viewer", None),
            Need.OPERATE,
            "this needs the role tenant, platform or admin: the token's is viewer",
        ),
        (roles.access("platform", None), Need.ADMINISTER, "this needs the role admin: the token's is platform"),
    ],
)
def test_the_sentence_names_the_role_needed(access: Access, need: Need, sentence: str) -> None:
    with pytest.raises(errors.ForbiddenError) as refused:
        access.require(need)
    assert refused.value.message == sentence


@pytest.mark.parametrize(
    ("role", "scopes", "said"),
    [
        ("king", None, "there is no role 'king': give viewer, tenant, platform, admin"),
        ("tenant", None, "a tenant's token is for some scopes"),
        ("platform", "web", "the role platform is for all scopes"),
        ("admin", "*", "the role admin is for all scopes"),
        ("tenant", "a b", "'a b' is not a name or pattern"),
        ("viewer", "", "name from 1 to"),
        ("tenant", "!web, !vm:db", "says only whom it is not for"),
    ],
)
def test_what_cannot_be(role: str, scopes: str | None, said: str) -> None:
    with pytest.raises(errors.RefusedError, match=said):
        roles.access(role, scopes)


def test_a_tenant_restarts_and_redeploys_and_no_more() -> None:
    tenant = roles.access("tenant", "web")
    for kind in Kind:
        roles.EVERYTHING.require_kind(kind)
        if kind in (Kind.RESTART, Kind.REDEPLOY):
            tenant.require_kind(kind)
        else:
            with pytest.raises(errors.ForbiddenError, match="platform or admin"):
                tenant.require_kind(kind)


def test_a_tenant_cancels_what_tenants_asked_for_and_only_it_is_told_of() -> None:
    tenant = roles.access("tenant", "web")
    tenant.require_cancel(_operation(Kind.RESTART, "tenant:shop"), [_event("group:web")])
    assert tenant.may_cancel(_operation(Kind.RESTART, "tenant:shop"), [_event("group:web")])
    for kind, by, scopes in [
        (Kind.HOST_UPDATE, "tenant:shop", ["group:web"]),
        (Kind.DELETION, "tenant:shop", ["group:web"]),
        (Kind.RESTART, "operator:admin", ["group:web"]),
        (Kind.RESTART, "tenant:shop", ["group:web", "group:db"]),
    ]:
        events = [_event(scope) for scope in scopes]
        roles.EVERYTHING.require_cancel(_operation(kind, by), events)
        with pytest.raises(errors.ForbiddenError):
            tenant.require_cancel(_operation(kind, by), events)
        assert not tenant.may_cancel(_operation(kind, by), events)
        assert roles.EVERYTHING.may_cancel(_operation(kind, by), events)
    assert tenant.sees("group:web")
    assert not tenant.sees("vm:web")
    assert roles.EVERYTHING.sees("vm:web")


def _operation(kind: Kind, by: str) -> Operation:
    return Operation(
        id="o", kind=kind, host="a", vms=(), status=Status.SCHEDULED, created_at=NOW, not_before=NOW, due_at=NOW, by=by
    )


def _event(scope: str) -> Event:
    return Event(
        id="E",
        operation="o",
        scope=scope,
        resources=("web-0",),
        update_domain=0,
        type=EventType.REBOOT,
        source=Source.USER,
        description="",
        duration=-1,
        status=Status.SCHEDULED,
        created_at=NOW,
        not_before=NOW,
    )


def test_they_are_kept_as_networks_each_once() -> None:
    assert roles.parse_networks(["10.0.0.0/8", " 192.0.2.7", "2001:DB8::/48", "10.0.0.0/8"]) == (
        "10.0.0.0/8",
        "192.0.2.7/32",
        "2001:db8::/48",
    )
    assert roles.parse_networks([]) == ()


@pytest.mark.parametrize("wrong", [["10.0.0.1/8"], ["here"], [""], ["10.0.0.0/8"] * 33])
def test_what_is_no_network(wrong: list[str]) -> None:
    with pytest.raises(errors.RefusedError):
        roles.parse_networks(wrong)


@pytest.mark.parametrize(
    ("origin", "included"),
    [
        ("10.9.8.7", True),
        ("::ffff:10.9.8.7", True),
        ("11.0.0.1", False),
        ("::1", True),
        ("127.0.0.1", False),
        ("", False),
    ],
)
def test_an_address_is_in_one_of_them(origin: str, included: bool) -> None:
    assert roles.in_networks(["10.0.0.0/8", "::1/128"], origin) is included


def test_those_without_an_address_come_from_here() -> None:
    assert roles.in_networks(["127.0.0.0/8"], "")


START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


GONE = FormerScope(ended_at=at(20), exists=False)
GONE_TWICE = FormerScope(ended_at=at(20), before=at(10), exists=False)
SUCCEEDED = FormerScope(ended_at=at(20), before=at(10), exists=True)


@pytest.mark.parametrize(
    ("former", "minute", "hidden", "meant"),
    [
        (GONE, 5, False, True),
        (GONE, 20, False, True),
        (GONE, 21, False, False),
        (GONE_TWICE, 10, True, False),
        (GONE_TWICE, 11, False, True),
        (GONE_TWICE, 21, False, False),
        (SUCCEEDED, 11, True, False),
        (SUCCEEDED, 20, True, False),
        (SUCCEEDED, 21, False, True),
    ],
)
def test_a_name_means_its_bearer_of_that_time_or_the_next(
    former: FormerScope, minute: int, hidden: bool, meant: bool
) -> None:
    assert former.hides(at(minute)) is hidden
    assert former.is_meant(at(minute)) is meant


def test_names_are_bound_and_patterns_are_not() -> None:
    selector = selectors.of_scopes("vm:db,vm:d*,web,!vm:db-1")
    former = {"vm:db": SUCCEEDED, "vm:db-1": SUCCEEDED, "vm:other": SUCCEEDED}
    bound = roles.bound(selector, at(15), former)
    assert bound.wanted == ("vm:d*", "group:web")
    assert (bound.unwanted, bound.text) == (selector.unwanted, selector.text)
    assert "vm:db" in bound
    assert roles.bound(selector, at(25), former) is selector
    nothing = roles.bound(selectors.of_scopes("vm:db"), at(15), former)
    assert "vm:db" not in nothing
