"""Bearer tokens."""

import pytest
from tests.service.rig import OPERATOR, Rig

from notbefore.core import errors, roles
from notbefore.service import calls, history, tokens


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


def test_a_revoked_token_is_refused_at_once(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot")
    assert tokens.revoke(rig.service, OPERATOR, made["id"])["revoked_at"] is not None
    for secret in (made["token"], "nb_wrong", ""):
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


@pytest.mark.parametrize(("name", "role"), [("", "admin"), ("a b", "admin"), ("bot", "emperor")])
def test_a_token_needs_a_name_and_a_role(rig: Rig, name: str, role: str) -> None:
    with pytest.raises(errors.RefusedError):
        tokens.create(rig.service, OPERATOR, name=name, role=role)
