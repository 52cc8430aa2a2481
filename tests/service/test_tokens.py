"""Bearer tokens."""

from datetime import timedelta

import pytest
from tests.service.rig import OPERATOR, Rig

from forenotice.core import errors, roles
from forenotice.service import calls, history, tokens


def test_a_token_is_shown_once_and_kept_as_a_digest(rig: Rig) -> None:
    call = calls.Call(actor="ada", token_id="t1", key="k", digest="d")
    made = tokens.create(rig.service, call, name="bot")
    assert tokens.authenticate(rig.service, made["token"]) == tokens.Caller(
        id=made["id"], name="bot", access=roles.EVERYTHING
    )
    assert tokens.create(rig.service, call, name="bot") == {**made, "token": None}
    (listed,) = tokens.list_all(rig.service)["items"]
    assert "token" not in listed
    assert listed["last_used_at"] is not None
    assert made["token"] not in str(history.page(rig.service, limit=1000))


def test_one_is_found_by_its_id(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot")
    [listed] = tokens.list_all(rig.service)["items"]
    assert tokens.show(rig.service, made["id"]) == listed
    with pytest.raises(errors.NotFoundError, match="there is no token 'ghost'"):
        tokens.show(rig.service, "ghost")


def test_a_revoked_token_is_refused_at_once(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot")
    assert tokens.revoke(rig.service, OPERATOR, made["id"])["revoked_at"] is not None
    for secret in (made["token"], "fn_wrong", ""):
        with pytest.raises(errors.UnauthorizedError):
            tokens.authenticate(rig.service, secret)
    with pytest.raises(errors.NotFoundError):
        tokens.revoke(rig.service, OPERATOR, made["id"])


def test_the_first_token_is_made_once_and_kept_before_it_counts(rig: Rig) -> None:
    kept: list[str] = []
    with pytest.raises(OSError, match="disk"):
        tokens.create_first(rig.service, lambda _: (_ for _ in ()).throw(OSError("disk full")))
    assert tokens.create_first(rig.service, kept.append)
    assert not tokens.create_first(rig.service, kept.append)
    assert tokens.authenticate(rig.service, kept[0]).name == "admin"


def test_what_no_token_can_be(rig: Rig) -> None:
    for wrong in (
        {"name": ""},
        {"name": "a b"},
        {"name": "bot", "role": "emperor"},
        {"name": "bot", "role": "tenant"},
        {"name": "bot", "scopes": "web"},
        {"name": "bot", "expires_in": timedelta(0)},
        {"name": "bot", "expires_in": timedelta(seconds=-1)},
    ):
        with pytest.raises(errors.RefusedError):
            tokens.create(rig.service, OPERATOR, **wrong)
    assert tokens.list_all(rig.service)["items"] == []


def test_a_name_is_given_once_while_it_is_valid(rig: Rig) -> None:
    first = tokens.create(rig.service, OPERATOR, name="bot", role="viewer", expires_in=timedelta(hours=1))
    with pytest.raises(errors.ConflictError, match=f"there is already a token 'bot': .* or revoke {first['id']}") as no:
        tokens.create(rig.service, OPERATOR, name="bot")
    assert no.value.facts["role"] == "viewer"
    rig.clock.advance(hours=1)
    second = tokens.create(rig.service, OPERATOR, name="bot")
    tokens.revoke(rig.service, OPERATOR, second["id"])
    tokens.create(rig.service, OPERATOR, name="bot")


def test_a_token_carries_a_role_and_its_scopes(rig: Rig) -> None:
    made = tokens.create(
        rig.service, OPERATOR, name="shop", role="tenant", scopes="web-*,vm:db", expires_in=timedelta(days=90)
    )
    caller = tokens.authenticate(rig.service, made["token"])
    assert (caller.access, caller.actor) == (roles.access("tenant", "web-*,vm:db"), "tenant:shop")
    [listed] = tokens.list_all(rig.service)["items"]
    assert (listed["role"], listed["scopes"], listed["expires_at"]) == ("tenant", "web-*,vm:db", "2026-04-05T12:00:00Z")
    [entry] = history.page(rig.service, action="token.created")["items"]
    assert entry["data"]["scopes"] == "web-*,vm:db"
    assert entry["by"] == "ada"


def test_an_expired_token_is_refused_and_only_its_holder_is_told_why(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot", expires_in=timedelta(hours=1))
    rig.clock.advance(minutes=59)
    tokens.authenticate(rig.service, made["token"])
    rig.clock.advance(minutes=1)
    with pytest.raises(errors.UnauthorizedError, match="this token expired at 2026-01-05 13:00 UTC"):
        tokens.authenticate(rig.service, made["token"])
    with pytest.raises(errors.UnauthorizedError) as stranger:
        tokens.authenticate(rig.service, made["token"] + "x")
    assert "expired" not in stranger.value.message
    tokens.revoke(rig.service, OPERATOR, made["id"])
    with pytest.raises(errors.UnauthorizedError) as revoked:
        tokens.authenticate(rig.service, made["token"])
    assert "expired" not in revoked.value.message
