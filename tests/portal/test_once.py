"""The link that signs in once."""

from concurrent.futures import ThreadPoolExecutor

from forenotice.portal.pages.sign_in import SignInLink


def test_the_first_who_comes_with_it_gets_the_token() -> None:
    once = SignInLink("fn_x")
    assert [once.take(once.secret), once.take(once.secret)] == ["fn_x", None]


def test_it_is_worth_nothing_after_a_quarter_of_an_hour() -> None:
    now = 100.0
    once, other = SignInLink("fn_x", lambda: now), SignInLink("fn_x", lambda: now)
    now += 899
    assert once.take(once.secret) == "fn_x"
    now += 1
    assert other.take(other.secret) is None


def test_a_wrong_one_gets_nothing_and_spoils_nothing() -> None:
    once = SignInLink("fn_x")
    for wrong in ("", once.secret[:-1], once.secret + "x", SignInLink("fn_x").secret, "ü"):
        assert once.take(wrong) is None
    assert once.take(once.secret) == "fn_x"


def test_of_many_at_once_one_gets_it() -> None:
    once = SignInLink("fn_x")
    with ThreadPoolExecutor(16) as threads:
        taken = list(threads.map(once.take, [once.secret] * 200))
    assert sorted(taken, key=str) == [None] * 199 + ["fn_x"]


def test_the_token_is_not_told_by_accident() -> None:
    once = SignInLink("fn_x")
    assert "fn_x" not in repr(once)
    assert len(once.secret) >= 43
