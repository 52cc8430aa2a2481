"""Who may do what, as a table."""

from datetime import UTC, datetime

import pytest

from forenotice.core import errors, roles
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
