"""Who gets in, and who does not."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from tests.portal.running import Portal, Visitor

from forenotice.portal.pages.sign_in import SignInLink
from forenotice.service import calls, housekeeping, tokens


def test_a_token_signs_in_and_a_wrong_one_does_not(unchanged: Portal) -> None:
    visitor = Visitor(unchanged.port)
    assert visitor.get("/", 303).location == "/sign-in"
    refused = visitor.send("/sign-in", {"token": "fn_wrong"})
    assert (refused.status, visitor.cookies) == (401, {})
    refused.shows("not a valid token")
    answer = visitor.send("/sign-in", {"token": unchanged.token})
    assert (answer.status, answer.location) == (303, "/")
    assert unchanged.token not in answer.headers["set-cookie"]
    visitor.get("/").shows("admin")


def test_a_session_ends_by_signing_out_signing_in_anew_or_revoking_its_token(portal: Portal) -> None:
    visitor = portal.visitor()
    kept = Visitor(portal.port, dict(visitor.cookies))
    visitor.send("/sign-in", {"token": portal.token})
    assert kept.get("/", 303).location == "/sign-in"
    kept = Visitor(portal.port, dict(visitor.cookies))
    assert visitor.post("/sign-out").location == "/sign-in"
    assert visitor.cookies == {}
    assert kept.get("/", 303).location == "/sign-in"
    visitor = portal.visitor()
    [admin] = tokens.list_all(portal.service).items
    tokens.revoke(portal.service, calls.SYSTEM, admin.id)
    visitor.get("/", 303)


def test_the_link_signs_in_once(portal: Portal) -> None:
    first, second, link = Visitor(portal.port), Visitor(portal.port), f"/sign-in?once={portal.once.secret}"
    # A link preview, which sends HEAD, does not use it up.
    looked = second.ask("HEAD", link)
    assert (looked.status, "set-cookie" in looked.headers) == (200, False)
    assert first.get(link).html.count('content="0; url=/"') == 1
    first.get("/").shows("admin")
    second.get(link, 401).shows("used already")
    first.get(link)


def test_live_updates_do_not_prolong_the_session(portal: Portal) -> None:
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
def test_it_leads_on_to_pages_of_ours_alone(unchanged: Portal, onward: str, location: str) -> None:
    answer = Visitor(unchanged.port).send("/sign-in", {"token": unchanged.token, "next": onward})
    assert answer.location == location


def test_forms_of_other_sites_are_refused(unchanged: Portal) -> None:
    visitor, stranger = unchanged.visitor(), Visitor(unchanged.port)
    for fields in ({}, {"form_token": "0" * 32}):
        assert visitor.send("/sign-out", fields).status == 403
    visitor.get("/")
    origins = ("https://evil.example", "null", "http://[", "")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, *({"Origin": origin} for origin in origins)):
        assert stranger.send("/sign-in", {"token": unchanged.token}, headers).status == 403
    # A link of another site is followed in two steps: the browser keeps a strict cookie back at first.
    followed = stranger.ask("GET", "/?span=7d", headers={"Sec-Fetch-Site": "cross-site"})
    assert followed.status == 200
    followed.shows('content="0; url=/?span=7d"')


def test_the_api_is_beside_the_pages(unchanged: Portal) -> None:
    visitor = Visitor(unchanged.port)
    for accept in ("*/*", "text/html"):
        assert visitor.ask("GET", "/healthz", headers={"Accept": accept}).status == 200
        assert visitor.ask("GET", "/v1/nothing", headers={"Accept": accept}).status == 401
    assert visitor.ask("GET", "/nothing").headers["content-type"] == "application/json"


# The link that signs in once


def test_the_first_use_gets_the_token_within_a_quarter_of_an_hour() -> None:
    now = 100.0
    once, late = SignInLink("fn_x", lambda: now), SignInLink("fn_x", lambda: now)
    for wrong in ("", once.secret[:-1], once.secret + "x", late.secret, "ü"):
        assert once.take(wrong) is None
    now += 899
    assert [once.take(once.secret), once.take(once.secret)] == ["fn_x", None]
    now += 1
    assert late.take(late.secret) is None
    assert "fn_x" not in repr(once)
    assert len(once.secret) >= 43


def test_of_many_at_once_one_gets_it() -> None:
    once = SignInLink("fn_x")
    with ThreadPoolExecutor(16) as threads:
        taken = list(threads.map(once.take, [once.secret] * 200))
    assert sorted(taken, key=str) == [None] * 199 + ["fn_x"]
