"""Bearer tokens of operators, and sessions of the portal: how they begin, what ends them."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.service.rig import OPERATOR, START, Rig, moment

from forenotice.core import errors, journal, roles
from forenotice.service import housekeeping, sessions, tokens
from forenotice.settings.values import NEVER
from forenotice.store import database

HERE = "127.0.0.7"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
KEYED = replace(OPERATOR, key="k", digest="d")


def create(rig: Rig, name: str = "bot", **fields: Any) -> Any:
    return tokens.create(rig.service, OPERATOR, name=name, **fields)


def rotate(rig: Rig, token: Any, **fields: Any) -> Any:
    return tokens.rotate(rig.service, OPERATOR, token.id, **fields)


def authenticate(rig: Rig, token: Any, origin: str = "") -> tokens.Caller:
    return tokens.authenticate(rig.service, str(token.token), origin)


def test_a_token_is_shown_once_and_kept_as_a_digest(rig: Rig) -> None:
    made = tokens.create(rig.service, KEYED, name="bot")
    assert authenticate(rig, made) == tokens.Caller(
        id=made.id, name="bot", access=roles.EVERYTHING, expires_at=START + tokens.LIFETIME
    )
    assert tokens.create(rig.service, KEYED, name="bot") == msgspec.structs.replace(made, token=None)
    (listed,) = tokens.list_all(rig.service).items
    assert not hasattr(listed, "token")
    assert listed.last_used_at is not None
    assert str(made.token) not in str(rig.entries())
    assert tokens.show(rig.service, made.id) == listed
    with pytest.raises(errors.NotFoundError, match="there is no token 'ghost'"):
        tokens.show(rig.service, "ghost")


def test_a_revoked_token_is_refused_at_once(rig: Rig) -> None:
    made = create(rig)
    assert tokens.revoke(rig.service, OPERATOR, made.id).revoked_at is not None
    for secret in (made.token, "fn_wrong", ""):
        with pytest.raises(errors.UnauthorizedError):
            tokens.authenticate(rig.service, secret)
    with pytest.raises(errors.NotFoundError):
        tokens.revoke(rig.service, OPERATOR, made.id)


def test_the_first_token_is_made_once_and_kept_before_it_counts(rig: Rig) -> None:
    kept: list[str] = []
    with pytest.raises(OSError, match="disk"):
        tokens.create_first(rig.service, lambda _: (_ for _ in ()).throw(OSError("disk full")))
    assert tokens.create_first(rig.service, kept.append)
    assert not tokens.create_first(rig.service, kept.append)
    assert tokens.authenticate(rig.service, kept[0]).name == "admin"


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a b"},
        {"role": "emperor"},
        {"role": "tenant"},
        {"scopes": "web"},
        {"expires_in": timedelta(0)},
        {"expires_in": timedelta(seconds=-1)},
        {"networks": ["10.0.0.1/8"]},
        {"networks": ["here"]},
        {"networks": ["10.0.0.1"] * 33},
    ],
)
def test_what_no_token_can_be(rig: Rig, wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.RefusedError):
        create(rig, **wrong)
    assert tokens.list_all(rig.service).items == []


def test_a_name_is_given_once_while_it_is_valid(rig: Rig) -> None:
    first = create(rig, role="viewer", expires_in=HOUR)
    with pytest.raises(errors.ConflictError, match=f"there is already a token 'bot': .* or revoke {first.id}") as no:
        create(rig)
    assert no.value.facts["role"] == "viewer"
    rig.clock.advance(hours=1)
    tokens.revoke(rig.service, OPERATOR, create(rig).id)
    create(rig)


def test_a_token_carries_a_role_and_its_scopes(rig: Rig) -> None:
    made = create(rig, "shop", role="tenant", scopes="web-*,vm:db", expires_in=90 * DAY)
    caller = authenticate(rig, made)
    assert (caller.access, caller.actor) == (roles.access("tenant", "web-*,vm:db"), "tenant:shop")
    [listed] = tokens.list_all(rig.service).items
    assert (listed.role, listed.scopes) == ("tenant", "web-*,vm:db")
    assert listed.expires_at == moment("2026-04-05T12:00")
    [entry] = rig.entries(action="token.created")
    assert (entry.data["scopes"], entry.by) == ("web-*,vm:db", "ada")


def test_an_expired_token_is_refused_and_only_its_holder_is_told_why(rig: Rig) -> None:
    made = create(rig, expires_in=HOUR)
    rig.clock.advance(minutes=59)
    authenticate(rig, made)
    rig.clock.advance(minutes=1)
    with pytest.raises(errors.UnauthorizedError, match="this token expired at 2026-01-05 13:00 UTC"):
        authenticate(rig, made)
    with pytest.raises(errors.UnauthorizedError) as stranger:
        tokens.authenticate(rig.service, f"{made.token}x")
    tokens.revoke(rig.service, OPERATOR, made.id)
    with pytest.raises(errors.UnauthorizedError) as revoked:
        authenticate(rig, made)
    assert "expired" not in stranger.value.message + revoked.value.message


def test_a_token_lasts_ninety_days_unless_the_operator_says_otherwise(rig: Rig) -> None:
    made, never = create(rig), create(rig, "old", expires_in=NEVER)
    assert (made.expires_at, never.expires_at) == (moment("2026-04-05T12:00"), None)
    assert tokens.never_expiring(rig.service) == ["old"]
    rig.clock.advance(days=90)
    assert authenticate(rig, never).expires_at is None
    with pytest.raises(errors.UnauthorizedError, match="expired"):
        authenticate(rig, made)
    with pytest.raises(errors.NotFoundError):
        rotate(rig, made)


def test_a_rotated_token_has_two_secrets_for_a_while(rig: Rig) -> None:
    made = create(rig, role="tenant", scopes="vm:db", networks=["127.0.0.0/8"])
    rig.clock.advance(days=80)
    rotated = tokens.rotate(rig.service, KEYED, made.id)
    assert tokens.rotate(rig.service, KEYED, made.id) == msgspec.structs.replace(rotated, token=None)
    shown, told = msgspec.to_builtins(tokens.show(rig.service, made.id)), msgspec.to_builtins(rotated)
    changed = {"expires_at", "previous_until", "token"}
    assert {key: told[key] for key in told.keys() - changed} == {key: shown[key] for key in shown.keys() - changed}
    assert (rotated.expires_at, rotated.previous_until) == (moment("2026-06-24T12:00"), moment("2026-03-26T13:00"))
    assert authenticate(rig, made) == authenticate(rig, rotated)
    rig.clock.advance(hours=1)
    with pytest.raises(errors.UnauthorizedError, match="was rotated") as no:
        authenticate(rig, made)
    assert no.value.token == made.id
    authenticate(rig, rotated)
    [entry] = rig.entries(action="token.rotated")
    assert entry.data["name"] == "bot"
    assert "fn_" not in str(entry)


def test_a_rotation_can_end_the_old_secret_at_once_with_its_sessions(rig: Rig) -> None:
    made = create(rig, expires_in=NEVER)
    session = begin(rig, made)
    rotate(rig, made, overlap=timedelta(minutes=1))
    sessions.resume(rig.service, session)
    rotated = rotate(rig, made, overlap=timedelta(0))
    assert (rotated.expires_at, rotated.previous_until) == (None, None)
    with pytest.raises(errors.UnauthorizedError):
        authenticate(rig, made)
    assert is_over(rig, session)
    assert rotate(rig, made, expires_in=DAY).expires_at == START + DAY
    for wrong in ({"overlap": 8 * DAY}, {"overlap": timedelta(-1)}, {"expires_in": timedelta(0)}):
        with pytest.raises(errors.RefusedError):
            rotate(rig, made, **wrong)


def test_the_token_file_follows_a_rotation_of_its_token(rig: Rig, tmp_path: Path) -> None:
    file = rig.service.token_file = tmp_path / "admin.token"
    admin, other = create(rig, "admin"), create(rig, "other")
    rotate(rig, admin)
    assert not file.exists()
    held = rotate(rig, admin).token
    file.write_text(f"{held}\n")
    rotate(rig, other)
    assert file.read_text() == f"{held}\n"
    rotated, _ = (tokens.rotate(rig.service, KEYED, admin.id, overlap=timedelta(0)) for _ in range(2))
    assert (file.read_text(), file.stat().st_mode & 0o777) == (f"{rotated.token}\n", 0o600)
    file.unlink()
    file.mkdir()
    with capture_logs() as logs:
        rotate(rig, admin)
    assert [entry["action"] for entry in logs if "token" in entry["action"]] == ["token.not_kept"]


def test_a_rotation_does_not_lengthen_a_lifetime(rig: Rig) -> None:
    made = create(rig, expires_in=2 * DAY)
    for day in (8, 9):
        rig.clock.advance(days=1)
        assert rotate(rig, made).expires_at == moment(f"2026-01-0{day}T12:00")
    assert rotate(rig, made, expires_in=HOUR).expires_at == moment("2026-01-07T13:00")
    rig.clock.advance(minutes=30)
    assert rotate(rig, made).expires_at == moment("2026-01-07T13:30")


def test_a_token_is_refused_from_elsewhere(rig: Rig) -> None:
    made = create(rig, networks=["10.0.0.0/8", "2001:db8::/48", "10.0.0.0/8"])
    assert made.networks == ["10.0.0.0/8", "2001:db8::/48"]
    for origin in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7"):
        authenticate(rig, made, origin)
    session, _ = sessions.begin(rig.service, str(made.token), "10.1.2.3")
    # A request over a unix socket of this machine comes from 127.0.0.1.
    for origin in ("192.0.2.7", "2001:db8:1::", ""):
        with pytest.raises(errors.ForbiddenError, match="may not be used from") as no:
            authenticate(rig, made, origin)
        assert no.value.token == made.id
        with pytest.raises(errors.ForbiddenError):
            sessions.resume(rig.service, session, origin=origin)
    sessions.resume(rig.service, session, origin="10.1.2.3")
    authenticate(rig, create(rig, "here", networks=["127.0.0.1"]))


# Sessions


def begin(rig: Rig, token: Any) -> str:
    return sessions.begin(rig.service, str(token.token), HERE)[0]


def is_over(rig: Rig, secret: str) -> bool:
    try:
        sessions.resume(rig.service, secret)
    except errors.UnauthorizedError:
        return True
    return False


def kept(rig: Rig, digest: str) -> Any:
    with rig.service.store.read() as reader:
        return reader.sessions.find(digest)


def test_a_session_stands_for_its_token_in_every_process_and_only_its_digest_is_kept(rig: Rig) -> None:
    made = create(rig, "shop", role="tenant", scopes="web-*")
    secret, caller = sessions.begin(rig.service, made.token, HERE)
    assert (caller.id, caller.actor, caller.expires_at) == (made.id, "tenant:shop", START + sessions.LASTS)
    assert secret != made.token
    for service in (rig.service, Rig(rig.service.store, clock=rig.clock).service):
        assert sessions.resume(service, secret) == caller
    digest = tokens.digest_of(secret)
    assert (kept(rig, secret), kept(rig, digest) is not None) == (None, True)
    assert is_over(rig, digest)


@pytest.mark.parametrize("secret", ["", "unknown", "fn_wrong", "wröng\x00"])
def test_unknown_secrets(rig: Rig, secret: str) -> None:
    create(rig)
    with pytest.raises(errors.UnauthorizedError):
        sessions.begin(rig.service, secret, HERE)
    with pytest.raises(errors.UnauthorizedError, match="sign in again"):
        sessions.resume(rig.service, secret)
    sessions.end(rig.service, secret)
    assert rig.actions(action="token.") == ["token.created"]


def test_a_session_ends_after_twelve_hours_however_much_it_is_used(rig: Rig) -> None:
    secret = begin(rig, create(rig))
    for _ in range(22):
        rig.clock.advance(minutes=30)
        assert sessions.resume(rig.service, secret, used=True).expires_at == START + sessions.LASTS
    rig.clock.advance(minutes=59)
    assert not is_over(rig, secret)
    rig.clock.advance(minutes=1)
    with pytest.raises(errors.UnauthorizedError, match="signed in for long"):
        sessions.resume(rig.service, secret)


def test_an_unused_session_ends_after_an_hour(rig: Rig) -> None:
    secret = begin(rig, create(rig))
    rig.clock.advance(minutes=50)
    sessions.resume(rig.service, secret, used=True)
    rig.clock.advance(minutes=50)
    # As by a page's live updates.
    sessions.resume(rig.service, secret)
    rig.clock.advance(minutes=9, seconds=59)
    assert not is_over(rig, secret)
    rig.clock.advance(seconds=1)
    with pytest.raises(errors.UnauthorizedError, match="not used this session for an hour"):
        sessions.resume(rig.service, secret, used=True)


def test_a_sign_in_drops_expired_sessions_and_not_one_that_was_just_used(rig: Rig) -> None:
    """That it was used is not in the database yet."""
    token = create(rig)
    used, unused = begin(rig, token), begin(rig, token)
    rig.clock.advance(minutes=59, seconds=55)
    sessions.resume(rig.service, used, used=True)
    rig.clock.advance(seconds=15)
    begin(rig, token)
    assert not is_over(rig, used)
    rig.clock.advance(minutes=1)
    begin(rig, token)
    assert kept(rig, tokens.digest_of(unused)) is None


def test_a_session_never_outlives_its_token(rig: Rig) -> None:
    expiring, revoked = create(rig, expires_in=HOUR), create(rig, "revoked")
    secret, caller = sessions.begin(rig.service, expiring.token, HERE)
    assert caller.expires_at == START + HOUR
    other = begin(rig, revoked)
    tokens.revoke(rig.service, OPERATOR, revoked.id)
    assert is_over(rig, other)
    sessions.end(rig.service, other)
    assert kept(rig, tokens.digest_of(other)) is None
    rig.clock.advance(hours=1)
    assert is_over(rig, secret)


def test_signing_out_ends_one_session_for_good(rig: Rig) -> None:
    token = create(rig, "ada")
    one, other = begin(rig, token), begin(rig, token)
    for _ in range(2):
        sessions.end(rig.service, one, HERE)
    assert (is_over(rig, one), is_over(rig, other)) == (True, False)
    entries = [entry for entry in rig.entries(action="token.") if "signed" in entry.action]
    assert [entry.action for entry in entries] == ["token.signed_in", "token.signed_in", "token.signed_out"]
    assert {(entry.by, entry.origin) for entry in entries} == {("operator:ada", HERE)}
    assert all(entry.data == {"id": token.id, "name": "ada"} for entry in entries)
    assert one not in str(entries)
    # That it was used meanwhile does not bring it back.
    with rig.service.store.write() as transaction:
        transaction.sessions.prolong(tokens.digest_of(one), START + timedelta(hours=2))
    assert kept(rig, tokens.digest_of(one)) is None


def test_the_oldest_of_many_make_way(rig: Rig) -> None:
    token = create(rig)
    others = begin(rig, create(rig, "bob"))
    made = []
    for _ in range(sessions.MOST_OF_ONE + 2):
        rig.clock.advance(seconds=1)
        made.append(begin(rig, token))
    assert [is_over(rig, secret) for secret in made] == [True, True] + [False] * sessions.MOST_OF_ONE
    assert not is_over(rig, others)


def test_reading_waits_for_no_writer(rig: Rig) -> None:
    made = create(rig)
    secret = begin(rig, made)
    rig.clock.advance(minutes=30)
    begun = monotonic()
    with rig.service.store.writer.turn():
        authenticate(rig, made)
        sessions.resume(rig.service, secret, used=True)
    assert monotonic() - begun < database.PATIENCE_SECONDS / 2
    assert tokens.show(rig.service, made.id).last_used_at == rig.clock.now()
    housekeeping.run(rig.service)
    assert (rig.service.used, rig.service.prolonged) == ({}, {})
    with rig.service.store.read() as reader:
        token = reader.tokens.by_id(made.id)
    assert token
    assert token.last_used_at == rig.clock.now()
    assert kept(rig, tokens.digest_of(secret)).expires_at == rig.clock.now() + sessions.IDLE


def test_of_many_sign_ins_with_one_token_some_are_noted(rig: Rig) -> None:
    token = create(rig)
    for _ in range(journal.MOST_UNCHANGED + 5):
        begin(rig, token)
    assert len(rig.actions(action="token.signed_in")) == journal.MOST_UNCHANGED
