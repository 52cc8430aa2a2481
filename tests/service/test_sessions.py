"""Sessions of the portal, on both databases: how they begin, what ends them."""

from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from tests.service.rig import OPERATOR, START, Rig

from forenotice.core import errors, journal
from forenotice.service import history, housekeeping, sessions, tokens
from forenotice.store import writer

HERE = "127.0.0.7"


def token(rig: Rig, name: str = "ada", **fields: Any) -> Any:
    return tokens.create(rig.service, OPERATOR, name=name, **fields)


def is_over(rig: Rig, secret: str) -> bool:
    try:
        sessions.resume(rig.service, secret)
    except errors.UnauthorizedError:
        return True
    return False


def test_a_session_stands_for_its_token_in_every_process(rig: Rig) -> None:
    made = token(rig, "shop", role="tenant", scopes="web-*")
    secret, caller = sessions.begin(rig.service, made.token, HERE)
    assert (caller.id, caller.actor, caller.expires_at) == (made.id, "tenant:shop", START + timedelta(hours=12))
    assert secret != made.token
    for service in (rig.service, Rig(rig.service.store, clock=rig.clock).service):
        assert sessions.resume(service, secret) == caller


def test_only_digests_are_kept(rig: Rig) -> None:
    made = token(rig)
    secret, _ = sessions.begin(rig.service, made.token, HERE)
    with rig.service.store.read() as reader:
        assert reader.sessions.find(secret) is None
        assert reader.sessions.find(tokens.digest_of(secret)) is not None
    with pytest.raises(errors.UnauthorizedError):
        sessions.resume(rig.service, tokens.digest_of(secret))


@pytest.mark.parametrize("bearer", ["", "fn_wrong", "fn_wröng\x00"])
def test_no_session_without_a_token(rig: Rig, bearer: str) -> None:
    token(rig)
    with pytest.raises(errors.UnauthorizedError):
        sessions.begin(rig.service, bearer, HERE)
    assert history.page(rig.service, action="token.signed_in").items == []


@pytest.mark.parametrize("secret", ["", "unknown", "wröng\x00"])
def test_unknown_secrets(rig: Rig, secret: str) -> None:
    with pytest.raises(errors.UnauthorizedError, match="sign in again"):
        sessions.resume(rig.service, secret)
    sessions.end(rig.service, secret)
    assert history.page(rig.service, action="token.signed_out").items == []


def test_a_session_ends_after_twelve_hours_however_much_it_is_used(rig: Rig) -> None:
    secret, _ = sessions.begin(rig.service, token(rig).token, HERE)
    for _ in range(11):
        rig.clock.advance(minutes=30)
        sessions.resume(rig.service, secret, used=True)
        rig.clock.advance(minutes=30)
        assert sessions.resume(rig.service, secret, used=True).expires_at == START + sessions.LASTS
    rig.clock.advance(minutes=59)
    assert not is_over(rig, secret)
    rig.clock.advance(minutes=1)
    with pytest.raises(errors.UnauthorizedError, match="signed in for long"):
        sessions.resume(rig.service, secret)


def test_a_session_that_nobody_uses_ends_after_an_hour(rig: Rig) -> None:
    secret, _ = sessions.begin(rig.service, token(rig).token, HERE)
    rig.clock.advance(minutes=50)
    sessions.resume(rig.service, secret, used=True)
    rig.clock.advance(minutes=50)
    # As a page does that keeps itself up to date while nobody is there.
    sessions.resume(rig.service, secret)
    rig.clock.advance(minutes=9, seconds=59)
    assert not is_over(rig, secret)
    rig.clock.advance(seconds=1)
    with pytest.raises(errors.UnauthorizedError, match="not used this session for an hour"):
        sessions.resume(rig.service, secret, used=True)


def test_a_session_that_was_just_used_stays_when_somebody_signs_in(rig: Rig) -> None:
    """That it was is not in the database yet."""
    bearer = token(rig).token
    secret, _ = sessions.begin(rig.service, bearer, HERE)
    rig.clock.advance(minutes=59, seconds=55)
    sessions.resume(rig.service, secret, used=True)
    rig.clock.advance(seconds=15)
    sessions.begin(rig.service, bearer, HERE)
    assert not is_over(rig, secret)


def test_being_used_does_not_bring_back_a_session_that_has_ended(rig: Rig) -> None:
    secret, _ = sessions.begin(rig.service, token(rig).token, HERE)
    digest = tokens.digest_of(secret)
    sessions.end(rig.service, secret)
    with rig.service.store.write() as transaction:
        transaction.sessions.prolong(digest, START + timedelta(hours=2))
        assert transaction.sessions.find(digest) is None


def test_a_session_never_outlives_its_token(rig: Rig) -> None:
    made = token(rig, expires_in=timedelta(hours=1))
    secret, caller = sessions.begin(rig.service, made.token, HERE)
    assert caller.expires_at == START + timedelta(hours=1)
    rig.clock.advance(hours=1)
    assert is_over(rig, secret)


def test_revoking_a_token_ends_its_sessions_at_once(rig: Rig) -> None:
    made = token(rig)
    secret, _ = sessions.begin(rig.service, made.token, HERE)
    tokens.revoke(rig.service, OPERATOR, made.id)
    assert is_over(rig, secret)


def test_signing_out_ends_one_session(rig: Rig) -> None:
    bearer = token(rig).token
    one, _ = sessions.begin(rig.service, bearer, HERE)
    other, _ = sessions.begin(rig.service, bearer, HERE)
    sessions.end(rig.service, one)
    sessions.end(rig.service, one)
    assert is_over(rig, one)
    assert not is_over(rig, other)
    assert len(history.page(rig.service, action="token.signed_out").items) == 1


def test_one_signs_out_although_the_token_is_revoked(rig: Rig) -> None:
    made = token(rig)
    secret, _ = sessions.begin(rig.service, made.token, HERE)
    tokens.revoke(rig.service, OPERATOR, made.id)
    sessions.end(rig.service, secret)
    with rig.service.store.read() as reader:
        assert reader.sessions.find(tokens.digest_of(secret)) is None


def test_the_journal_has_who_came_and_went(rig: Rig) -> None:
    made = token(rig)
    secret, _ = sessions.begin(rig.service, made.token, HERE)
    sessions.end(rig.service, secret, HERE)
    entries = history.page(rig.service, action="token.signed_in").items
    entries += history.page(rig.service, action="token.signed_out").items
    assert [entry.action for entry in entries] == ["token.signed_in", "token.signed_out"]
    for entry in entries:
        assert (entry.by, entry.origin) == ("operator:ada", HERE)
        assert entry.data == {"id": made.id, "name": "ada"}
    assert secret not in str(entries)


def test_the_oldest_of_many_make_way(rig: Rig) -> None:
    bearer = token(rig).token
    others, _ = sessions.begin(rig.service, token(rig, "bob").token, HERE)
    made = []
    for _ in range(sessions.MOST_OF_ONE + 2):
        rig.clock.advance(seconds=1)
        made.append(sessions.begin(rig.service, bearer, HERE)[0])
    assert [is_over(rig, secret) for secret in made] == [True, True] + [False] * sessions.MOST_OF_ONE
    assert not is_over(rig, others)


def test_expired_ones_are_dropped_when_somebody_signs_in(rig: Rig) -> None:
    bearer = token(rig).token
    secret, _ = sessions.begin(rig.service, bearer, HERE)
    rig.clock.advance(hours=12)
    sessions.begin(rig.service, bearer, HERE)
    with rig.service.store.read() as reader:
        assert reader.sessions.find(tokens.digest_of(secret)) is None


def test_whoever_only_reads_waits_for_no_writer(rig: Rig) -> None:
    made = token(rig)
    secret, _ = sessions.begin(rig.service, made.token, HERE)
    rig.clock.advance(minutes=30)
    begun = monotonic()
    with rig.service.store.writer.turn():
        tokens.authenticate(rig.service, made.token)
        sessions.resume(rig.service, secret, used=True)
    assert monotonic() - begun < writer.PATIENCE_SECONDS / 2
    assert tokens.show(rig.service, made.id).last_used_at == rig.clock.now()
    housekeeping.run(rig.service)
    assert not rig.service.used
    assert not rig.service.prolonged
    with rig.service.store.read() as reader:
        kept, found = reader.tokens.by_id(made.id), reader.sessions.find(tokens.digest_of(secret))
    assert kept
    assert kept.last_used_at == rig.clock.now()
    assert found
    assert found.expires_at == rig.clock.now() + sessions.IDLE


def test_of_many_who_sign_in_with_one_token_some_are_noted(rig: Rig) -> None:
    bearer = token(rig).token
    for _ in range(journal.MOST_UNCHANGED + 5):
        sessions.begin(rig.service, bearer, HERE)
    noted = history.page(rig.service, action="token.signed_in", limit=1000).items
    assert len(noted) == journal.MOST_UNCHANGED
