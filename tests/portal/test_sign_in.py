"""Who gets in, and who does not."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from tests.portal.running import Portal, Visitor

from forenotice.portal.pages.sign_in import SignInLink
from forenotice.service import calls, housekeeping, tokens


def test_a_token_signs_in(portal: Portal) -> None:
    visitor = Visitor(portal.port)
    assert visitor.get("/fleet-of-mine?x=1", 404)
    assert visitor.get("/", 303).location == "/sign-in"
    said = visitor.send("/sign-in", {"token": portal.token})
    assert (said.status, said.location) == (303, "/")
    cookie = said.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert portal.token not in cookie
    assert "admin" in visitor.get("/").text


def test_a_wrong_token_is_refused(portal: Portal) -> None:
    visitor = Visitor(portal.port)
    said = visitor.send("/sign-in", {"token": "fn_wrong"})
    assert said.status == 401
    assert "not a valid token" in said.text
    assert visitor.cookies == {}


def test_signing_out_ends_the_session(portal: Portal) -> None:
    visitor = portal.visitor()
    kept = dict(visitor.cookies)
    assert visitor.post("/sign-out").location == "/sign-in"
    assert visitor.cookies == {}
    assert Visitor(portal.port, kept).get("/", 303).location == "/sign-in"


def test_a_revoked_token_signs_out(portal: Portal) -> None:
    visitor = portal.visitor()
    [admin] = tokens.list_all(portal.service).items
    tokens.revoke(portal.service, calls.SYSTEM, admin.id)
    visitor.get("/", 303)


def test_the_link_signs_in_once(portal: Portal) -> None:
    first, second = Visitor(portal.port), Visitor(portal.port)
    assert first.get(f"/sign-in?once={portal.once.secret}").html.count('content="0; url=/"') == 1
    assert "admin" in first.get("/").text
    assert "used already" in second.get(f"/sign-in?once={portal.once.secret}", 401).text
    assert first.get(f"/sign-in?once={portal.once.secret}").status == 200


def test_whoever_only_looks_at_the_link_does_not_use_it_up(portal: Portal) -> None:
    link = f"/sign-in?once={portal.once.secret}"
    said = Visitor(portal.port).ask("HEAD", link)
    assert (said.status, "set-cookie" in said.headers) == (200, False)
    visitor = Visitor(portal.port)
    visitor.get(link)
    assert "admin" in visitor.get("/").text


def test_a_page_that_keeps_itself_up_to_date_does_not_keep_the_session(portal: Portal) -> None:
    visitor = portal.visitor()
    [secret] = visitor.cookies.values()
    digest, soon = tokens.digest_of(secret), portal.service.clock.now() + timedelta(minutes=30)
    with portal.service.store.write() as transaction:
        transaction.sessions.prolong(digest, soon)

    def ends_at() -> datetime:
        housekeeping.run(portal.service)
        with portal.service.store.read() as reader:
            found = reader.sessions.find(digest)
        assert found is not None
        return found.expires_at

    assert visitor.ask("GET", "/", headers={"Forenotice-Look": "1"}).status == 200
    assert abs(ends_at() - soon) < timedelta(seconds=1)
    visitor.get("/")
    assert ends_at() > soon + timedelta(minutes=29)


@pytest.mark.parametrize(
    ("onward", "location"),
    [("/fleet", "/fleet"), ("//evil.example", "/"), ("https://evil.example", "/"), ("/\\evil", "/"), ("", "/")],
)
def test_it_goes_on_to_pages_of_ours_alone(unchanged: Portal, onward: str, location: str) -> None:
    said = Visitor(unchanged.port).send("/sign-in", {"token": unchanged.token, "next": onward})
    assert said.location == location


def test_forms_of_strangers_are_refused(portal: Portal) -> None:
    visitor = portal.visitor()
    assert visitor.send("/sign-out", {}).status == 403
    assert visitor.send("/sign-out", {"form_token": "0" * 32}).status == 403
    visitor.get("/")
    stranger = Visitor(portal.port)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        assert stranger.send("/sign-in", {"token": portal.token}, headers).status == 403


def test_a_link_of_another_site_is_followed_with_the_cookie(portal: Portal) -> None:
    """The browser keeps a strict cookie back at first."""
    said = Visitor(portal.port).ask("GET", "/?span=7d", headers={"Sec-Fetch-Site": "cross-site"})
    assert said.status == 200
    assert 'content="0; url=/?span=7d"' in said.html


def test_every_answer_is_guarded(unchanged: Portal) -> None:
    for path in ("/", "/sign-in", "/nothing-here"):
        said = unchanged.visitor().ask("GET", path, headers={"Accept": "text/html"})
        assert "default-src 'none'" in said.headers["content-security-policy"]
        assert said.headers["x-content-type-options"] == "nosniff"
        assert said.headers["cache-control"] == "no-store"


def test_the_api_is_still_there(unchanged: Portal) -> None:
    visitor = Visitor(unchanged.port)
    for accept in ("*/*", "text/html"):
        assert visitor.ask("GET", "/healthz", headers={"Accept": accept}).status == 200
    assert visitor.ask("GET", "/v1/vms").status == 401
    assert visitor.ask("GET", "/v1/nothing", headers={"Accept": "text/html"}).status == 401
    assert visitor.ask("GET", "/nothing").headers["content-type"] == "application/json"


def test_signing_in_anew_ends_what_was_before(portal: Portal) -> None:
    visitor = portal.visitor()
    kept = dict(visitor.cookies)
    visitor.send("/sign-in", {"token": portal.token})
    assert "admin" in visitor.get("/").text
    assert Visitor(portal.port, kept).get("/", 303)


# The link that signs in once


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
