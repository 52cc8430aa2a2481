"""Bearer tokens."""

from datetime import datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from tests.service.rig import OPERATOR, START, Rig

from forenotice.core import errors, roles
from forenotice.service import calls, history, sessions, tokens
from forenotice.settings.spans import NEVER


def test_a_token_is_shown_once_and_kept_as_a_digest(rig: Rig) -> None:
    call = calls.Call(actor="ada", token_id="t1", key="k", digest="d")
    made = tokens.create(rig.service, call, name="bot")
    assert tokens.authenticate(rig.service, str(made.token)) == tokens.Caller(
        id=made.id, name="bot", access=roles.EVERYTHING, expires_at=START + tokens.LIFETIME
    )
    assert tokens.create(rig.service, call, name="bot") == replace(made, token=None)
    (listed,) = tokens.list_all(rig.service).items
    assert not hasattr(listed, "token")
    assert listed.last_used_at is not None
    assert str(made.token) not in str(history.page(rig.service, limit=1000))


def test_one_is_found_by_its_id(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot")
    [listed] = tokens.list_all(rig.service).items
    assert tokens.show(rig.service, made.id) == listed
    with pytest.raises(errors.NotFoundError, match="there is no token 'ghost'"):
        tokens.show(rig.service, "ghost")


def test_a_revoked_token_is_refused_at_once(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot")
    assert tokens.revoke(rig.service, OPERATOR, made.id).revoked_at is not None
    for secret in (made.token, "fn_wrong", ""):
        with pytest.raises(errors.UnauthorizedError):
            tokens.authenticate(rig.service, str(secret))
    with pytest.raises(errors.NotFoundError):
        tokens.revoke(rig.service, OPERATOR, made.id)


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
        {"name": "bot", "networks": ["10.0.0.1/8"]},
        {"name": "bot", "networks": ["here"]},
        {"name": "bot", "networks": ["10.0.0.1"] * 33},
    ):
        with pytest.raises(errors.RefusedError):
            tokens.create(rig.service, OPERATOR, **wrong)
    assert tokens.list_all(rig.service).items == []


def test_a_name_is_given_once_while_it_is_valid(rig: Rig) -> None:
    first = tokens.create(rig.service, OPERATOR, name="bot", role="viewer", expires_in=timedelta(hours=1))
    with pytest.raises(errors.ConflictError, match=f"there is already a token 'bot': .* or revoke {first.id}") as no:
        tokens.create(rig.service, OPERATOR, name="bot")
    assert no.value.facts["role"] == "viewer"
    rig.clock.advance(hours=1)
    second = tokens.create(rig.service, OPERATOR, name="bot")
    tokens.revoke(rig.service, OPERATOR, second.id)
    tokens.create(rig.service, OPERATOR, name="bot")


def test_a_token_carries_a_role_and_its_scopes(rig: Rig) -> None:
    made = tokens.create(
        rig.service, OPERATOR, name="shop", role="tenant", scopes="web-*,vm:db", expires_in=timedelta(days=90)
    )
    caller = tokens.authenticate(rig.service, str(made.token))
    assert (caller.access, caller.actor) == (roles.access("tenant", "web-*,vm:db"), "tenant:shop")
    [listed] = tokens.list_all(rig.service).items
    assert (listed.role, listed.scopes, listed.expires_at) == (
        "tenant",
        "web-*,vm:db",
        datetime.fromisoformat("2026-04-05T12:00:00Z"),
    )
    [entry] = history.page(rig.service, action="token.created").items
    assert entry.data["scopes"] == "web-*,vm:db"
    assert entry.by == "ada"


def test_an_expired_token_is_refused_and_only_its_holder_is_told_why(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot", expires_in=timedelta(hours=1))
    rig.clock.advance(minutes=59)
    tokens.authenticate(rig.service, str(made.token))
    rig.clock.advance(minutes=1)
    with pytest.raises(errors.UnauthorizedError, match="this token expired at 2026-01-05 13:00 UTC"):
        tokens.authenticate(rig.service, str(made.token))
    with pytest.raises(errors.UnauthorizedError) as stranger:
        tokens.authenticate(rig.service, str(made.token) + "x")
    assert "expired" not in stranger.value.message
    tokens.revoke(rig.service, OPERATOR, made.id)
    with pytest.raises(errors.UnauthorizedError) as revoked:
        tokens.authenticate(rig.service, str(made.token))
    assert "expired" not in revoked.value.message


def test_a_token_lasts_ninety_days_unless_somebody_says_otherwise(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot")
    never = tokens.create(rig.service, OPERATOR, name="old", expires_in=NEVER)
    assert (made.expires_at, never.expires_at) == (
        datetime.fromisoformat("2026-04-05T12:00:00Z"),
        None,
    )
    assert tokens.never_expiring(rig.service) == ["old"]
    rig.clock.advance(days=90)
    assert tokens.authenticate(rig.service, str(never.token)).expires_at is None
    with pytest.raises(errors.UnauthorizedError, match="expired"):
        tokens.authenticate(rig.service, str(made.token))
    with pytest.raises(errors.NotFoundError):
        tokens.rotate(rig.service, OPERATOR, made.id)


def test_a_rotated_token_has_two_secrets_for_a_while(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot", role="tenant", scopes="vm:db", networks=["127.0.0.0/8"])
    rig.clock.advance(days=80)
    call = calls.Call(actor="ada", token_id="t1", key="k", digest="d")
    rotated = tokens.rotate(rig.service, call, made.id)
    assert tokens.rotate(rig.service, call, made.id) == replace(rotated, token=None)
    shown, told = msgspec.to_builtins(tokens.show(rig.service, made.id)), msgspec.to_builtins(rotated)
    changed = {"expires_at", "previous_until", "token"}
    assert {key: told[key] for key in told.keys() - changed} == {key: shown[key] for key in shown.keys() - changed}
    assert (rotated.expires_at, rotated.previous_until) == (
        datetime.fromisoformat("2026-06-24T12:00:00Z"),
        datetime.fromisoformat("2026-03-26T13:00:00Z"),
    )
    old, new = (tokens.authenticate(rig.service, secret) for secret in (str(made.token), str(rotated.token)))
    assert old == new
    rig.clock.advance(hours=1)
    with pytest.raises(errors.UnauthorizedError, match="was rotated") as no:
        tokens.authenticate(rig.service, str(made.token))
    assert no.value.token == made.id
    tokens.authenticate(rig.service, str(rotated.token))
    [entry] = history.page(rig.service, action="token.rotated").items
    assert entry.data["name"] == "bot"
    assert "fn_" not in str(entry)


def test_a_rotation_can_end_the_old_secret_at_once_with_its_sessions(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot", expires_in=NEVER)
    session, _ = sessions.begin(rig.service, str(made.token), "192.0.2.7")
    tokens.rotate(rig.service, OPERATOR, made.id, overlap=timedelta(minutes=1))
    sessions.resume(rig.service, session)
    rotated = tokens.rotate(rig.service, OPERATOR, made.id, overlap=timedelta(0))
    assert (rotated.expires_at, rotated.previous_until) == (None, None)
    with pytest.raises(errors.UnauthorizedError):
        tokens.authenticate(rig.service, str(made.token))
    with pytest.raises(errors.UnauthorizedError):
        sessions.resume(rig.service, session)
    again = tokens.rotate(rig.service, OPERATOR, made.id, expires_in=timedelta(days=1))
    assert again.expires_at == datetime.fromisoformat("2026-01-06T12:00:00Z")
    for wrong in ({"overlap": timedelta(days=8)}, {"overlap": timedelta(-1)}, {"expires_in": timedelta(0)}):
        with pytest.raises(errors.RefusedError):
            tokens.rotate(rig.service, OPERATOR, made.id, **wrong)


def test_the_token_file_follows_a_rotation_of_its_token(rig: Rig, tmp_path: Path) -> None:
    file = rig.service.token_file = tmp_path / "admin.token"
    admin, other = (tokens.create(rig.service, OPERATOR, name=name) for name in ("admin", "other"))
    tokens.rotate(rig.service, OPERATOR, admin.id)
    assert not file.exists()
    held = tokens.rotate(rig.service, OPERATOR, admin.id).token
    file.write_text(f"{held}\n")
    tokens.rotate(rig.service, OPERATOR, other.id)
    assert file.read_text() == f"{held}\n"
    call = calls.Call(actor="ada", token_id="t1", key="k", digest="d")
    rotated = tokens.rotate(rig.service, call, admin.id, overlap=timedelta(0))
    tokens.rotate(rig.service, call, admin.id, overlap=timedelta(0))
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{rotated.token}\n", 0o600)
    file.unlink()
    file.mkdir()
    with capture_logs() as logs:
        tokens.rotate(rig.service, OPERATOR, admin.id)
    assert [entry["action"] for entry in logs if "token" in entry["action"]] == ["token.not_kept"]


def test_a_rotation_does_not_lengthen_a_lifetime(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot", expires_in=timedelta(days=2))
    for day in (7, 8):
        rig.clock.advance(days=1)
        assert tokens.rotate(rig.service, OPERATOR, made.id).expires_at == datetime.fromisoformat(
            f"2026-01-0{day + 1}T12:00:00Z"
        )
    changed = tokens.rotate(rig.service, OPERATOR, made.id, expires_in=timedelta(hours=1))
    rig.clock.advance(minutes=30)
    again = tokens.rotate(rig.service, OPERATOR, made.id)
    assert (changed.expires_at, again.expires_at) == (
        datetime.fromisoformat("2026-01-07T13:00:00Z"),
        datetime.fromisoformat("2026-01-07T13:30:00Z"),
    )


def test_a_token_is_refused_from_elsewhere(rig: Rig) -> None:
    made = tokens.create(rig.service, OPERATOR, name="bot", networks=["10.0.0.0/8", "2001:db8::/48", "10.0.0.0/8"])
    assert made.networks == ["10.0.0.0/8", "2001:db8::/48"]
    for origin in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7"):
        tokens.authenticate(rig.service, str(made.token), origin)
    session, _ = sessions.begin(rig.service, str(made.token), "10.1.2.3")
    # Whoever comes over a socket of this machine comes from 127.0.0.1.
    for origin in ("192.0.2.7", "2001:db8:1::", ""):
        with pytest.raises(errors.ForbiddenError, match="may not be used from") as no:
            tokens.authenticate(rig.service, str(made.token), origin)
        assert no.value.token == made.id
        with pytest.raises(errors.ForbiddenError):
            sessions.resume(rig.service, session, origin=origin)
    sessions.resume(rig.service, session, origin="10.1.2.3")
    here = tokens.create(rig.service, OPERATOR, name="here", networks=["127.0.0.1"])
    tokens.authenticate(rig.service, str(here.token))
