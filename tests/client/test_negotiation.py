"""The api-version that both sides know: endpoints that know only older ones, or refuse for other reasons."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice

import pytest
from tests.client.both import QUICK, Make
from tests.client.older import AZURE, OLDEST, WORDS, knowing, refusal, shown, version_of
from tests.client.samples import document, said
from tests.client.scripted import Asked, Scripted, answer, scripted
from tests.client.steps import play, remote

from forenotice.client import EndpointError, Pace
from forenotice.client.changes import follow
from forenotice.client.endpoint import AWAY
from forenotice.client.negotiation import NAMES, NEWEST, SOON, Negotiation
from forenotice.core.errors import RefusedError

UP_TO_2019_08 = NAMES[: NAMES.index("2019-08-01") + 1]


def asked_in(server: Scripted) -> list[str]:
    return [version_of(asked) for asked in server.asked]


REFUSALS = [
    (refusal(WORDS, ["2019-08-01", "2019-04-01", "2019-01-01"]), ["2019-08-01"]),
    (refusal(AZURE, ["2019-08-01", "2019-04-01", "2019-01-01"]), ["2019-08-01"]),
    (refusal(AZURE, ["2019-11-01", "2019-10-15"]), ["2019-08-01"]),
    (refusal(AZURE, ["2031-01-01", "2030-01-01", "2029-01-01"]), ["2019-08-01"]),
    (refusal(AZURE, ["2018-10-01", "2018-04-02"]), ["2017-11-01"]),
    (refusal(WORDS, [NEWEST, "2019-08-01"]), ["2019-08-01"]),
    (refusal("Unsupported ApiVersion"), ["2019-08-01"]),
    (refusal(WORDS), ["2019-08-01"]),
    (refusal(), ["2019-08-01"]),
    (answer("400 Bad Request", b"<html>"), ["2019-08-01"]),
    (answer("400 Bad Request"), ["2019-08-01"]),
]


@pytest.mark.parametrize(("refused", "tried"), REFUSALS, ids=lambda found: str(found)[-60:])
def test_an_endpoint_that_knows_up_to_2019_08_01(make: Make, refused: bytes, tried: list[str]) -> None:
    with scripted(knowing(UP_TO_2019_08, refused)) as server, make(server.url) as client:
        (event,) = client.events(mine=True)
        client.approve(event)
        client.document()
        assert client.api_version == tried[-1]
    names = [version_of(asked) for asked in server.asked if "scheduledevents" in asked.target]
    assert names == [NEWEST, *tried, tried[-1], tried[-1]]
    assert [version_of(asked) for asked in server.asked if "instance" in asked.target] == [tried[-1]]
    assert event.duration_seconds is None
    assert (event.source, event.description) == (("Platform", "") if tried == ["2019-08-01"] else (None, None))
    assert event.as_listed() == shown(tried[-1], Resources=("WestNO_0",))


def test_an_older_endpoint_that_is_asked_for_the_name_first(make: Make) -> None:
    with scripted(knowing(UP_TO_2019_08, refusal(WORDS))) as server, make(server.url) as client:
        assert client.me == "WestNO_0"


@pytest.mark.parametrize("not_before", ["2022-04-11T22:26:58Z", "Mon, 11 Apr 2022 22:26:58 GMT"])
@pytest.mark.parametrize("refused", [refusal(WORDS, [OLDEST]), refusal(WORDS)], ids=["listed", "not listed"])
def test_an_endpoint_that_knows_the_first_version_only(make: Make, refused: bytes, not_before: str) -> None:
    script = knowing([OLDEST], refused, NotBefore=not_before, Resources=["_WestNO_0"])
    with scripted(script) as server, make(server.url) as client:
        (event,) = client.events(mine=True)
        assert client.me == "WestNO_0"
        news = list(islice(client.follow(), 3))
    assert event.deadline == datetime(2022, 4, 11, 22, 26, 58, tzinfo=UTC)
    assert (event.description, event.source, event.duration_seconds) == (None, None, None)
    assert [each.error for each in news] == [None] * 3
    walk = [NEWEST, OLDEST] if b"newest" in refused else list(reversed(NAMES))
    assert [name for name in asked_in(server) if name in NAMES] == [*walk, OLDEST, OLDEST, OLDEST, OLDEST]


def test_an_approval_that_comes_first_is_sent_again_in_a_version_that_both_know(make: Make) -> None:
    with scripted(knowing(UP_TO_2019_08, refusal())) as server, make(server.url) as client:
        client.approve("A", "B")
    assert [(asked.method, version_of(asked)) for asked in server.asked] == [
        ("POST", NEWEST),
        ("GET", NEWEST),
        ("GET", "2019-08-01"),
        ("POST", "2019-08-01"),
    ]
    assert server.asked[-1].body == b'{"StartRequests":[{"EventId":"A"},{"EventId":"B"}]}'


@pytest.mark.parametrize("why", ["EventId is unknown", "Bad request. Required metadata header not specified"])
def test_an_approval_that_is_refused_for_another_reason_is_sent_once(make: Make, why: str) -> None:
    refused = pytest.raises(RefusedError, match=why)
    with scripted(lambda asked, ended: refusal(why)) as server, make(server.url) as client, refused:
        client.approve("A")
    assert asked_in(server) == [NEWEST]


@pytest.mark.parametrize(
    "refused",
    [
        refusal("Bad request. Required metadata header not specified"),
        refusal("Bad request. The conversion failed"),
        refusal("Bad request. A proxy is in the way", NAMES),
        refusal(WORDS, ["2016-01-01"]),
        answer("404 Not Found", b'{"error":"no such version"}'),
        answer("400 Bad Request", b'{"error":{"code":"x","message":"version"}}'),
    ],
    ids=lambda found: found[-50:].decode(),
)
def test_what_is_refused_for_another_reason_is_asked_in_no_other_version(make: Make, refused: bytes) -> None:
    with scripted(lambda asked, ended: refused) as server, make(server.url) as client:
        assert all(news.error for news in islice(client.follow(), 4))
    assert asked_in(server) == [NEWEST] * 4


@pytest.mark.parametrize("refused", [answer("400 Bad Request"), refusal(WORDS), refusal(WORDS, ["2031-01-01"])])
def test_an_endpoint_that_refuses_every_version_is_not_asked_in_all_of_them_each_time(
    make: Make, refused: bytes
) -> None:
    with scripted(lambda asked, ended: refused) as server, make(server.url) as client:
        errors = [news.error for news in islice(client.follow(), 4)]
        with pytest.raises(EndpointError, match="answered 400"):
            client.document()
        assert client.api_version == NEWEST
    assert {error.status for error in errors if error} == {400}
    assert asked_in(server) == [*reversed(NAMES), NEWEST, NEWEST, NEWEST, NEWEST]


def upgraded_at(number: int, refused: bytes) -> Callable[[Asked, threading.Event], bytes | None]:
    """An endpoint of the first version whose requests from this one on are answered by a new one."""
    old, new = knowing([OLDEST], refused), knowing(NAMES, refused)
    return lambda asked, ended: (new if asked.number >= number else old)(asked, ended)


def test_an_endpoint_that_is_upgraded_is_asked_in_the_newest_version_after_a_while(make: Make) -> None:
    """Without the tag: it is the same for both versions, and a 304 would bring nothing."""
    script = upgraded_at(2, refusal(WORDS, [OLDEST]))
    with scripted(script) as server, make(server.url, pace=replace(QUICK, probe=0.0)) as client:
        news = list(islice(client.follow(), 3))
    assert asked_in(server)[:4] == [NEWEST, OLDEST, NEWEST, NEWEST]
    assert server.asked[2].headers.get("if-none-match") is None
    durations = [each.document.events[0].duration_seconds for each in news if each.document]
    assert durations == [None, -1, -1]
    assert [each.changed for each in news] == [True, True, False]


def test_an_older_endpoint_is_asked_in_the_newest_version_only_now_and_then() -> None:
    old = said(document(), etag='"1"')
    played = play(
        follow(remote(pace=Pace())), said(json.dumps({"newest-versions": [OLDEST]}).encode(), 400), *[old] * 9
    )
    assert [ask.target[-10:] for ask in played.asks] == [NEWEST, *[OLDEST] * 10]


def test_after_a_lost_connection_the_newest_version_is_asked_for_again() -> None:
    listed = said(json.dumps({"newest-versions": [OLDEST]}).encode(), 400)
    good = said(document(), etag='"1"')
    played = play(follow(remote()), listed, good, good, ConnectionRefusedError(), good, good)
    assert [ask.target[-10:] for ask in played.asks] == [NEWEST, OLDEST, OLDEST, OLDEST, NEWEST, NEWEST, NEWEST]
    # The old document's tag is not that of a document with more keys, though it may be equal.
    assert played.headers("If-None-Match") == [None, None, '"1"', '"1"', None, '"1"', '"1"']


@pytest.mark.parametrize("upgraded", [False, True])
def test_an_endpoint_that_is_found_anew_is_asked_in_the_newest_version(
    upgraded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORENOTICE_ENDPOINT")
    listed, good = said(json.dumps({"newest-versions": [OLDEST]}).encode(), 400), said(document())
    away = [said(status=503)] * AWAY
    played = play(follow(remote(None)), listed, good, *away, *([] if upgraded else [listed]), good, good)
    then = [NEWEST] * 3 if upgraded else [NEWEST, OLDEST, OLDEST, OLDEST]
    assert [ask.target[-10:] for ask in played.asks] == [NEWEST, *[OLDEST] * (1 + AWAY), *then]


def test_a_refusal_without_words_is_not_of_a_version_that_was_accepted() -> None:
    """Until the connection was lost, or the endpoint has failed for a while: then it may be another."""
    good, refused = said(document()), said(status=400)
    for lost in ([ConnectionResetError()], [refused] * (AWAY - 1)):
        played = play(follow(remote()), good, refused, *lost, refused, good)
        versions_asked = [ask.target[-10:] for ask in played.asks]
        assert versions_asked == [*[NEWEST] * (3 + len(lost)), "2019-08-01", "2019-08-01"]


def test_a_refusal_without_words_is_believed_for_a_moment_only() -> None:
    """Otherwise a server that stumbled once would be asked in a version without Preempt for minutes."""
    now = [1000.0]
    negotiation = Negotiation(300.0, lambda: now[0])
    wordless, worded = said(status=400), said(json.dumps({"error": WORDS}).encode(), 400)
    for name in reversed(NAMES[:-1]):
        assert negotiation.lower(negotiation.begin(), wordless) == name
    negotiation.accepted = OLDEST
    now[0] += SOON - 1
    assert negotiation.begin() == OLDEST
    now[0] += 1
    assert negotiation.begin() == NEWEST
    assert negotiation.lower(NEWEST, wordless) == OLDEST, "at once"
    now[0] += SOON
    assert negotiation.lower(negotiation.begin(), worded) == "2019-08-01"
    now[0] += SOON
    assert negotiation.begin() == "2019-08-01"
    now[0] += 300
    assert negotiation.begin() == NEWEST


def test_an_older_endpoint_that_refused_every_version_at_first_is_soon_understood() -> None:
    now = [1000.0]
    negotiation = Negotiation(300.0, lambda: now[0])
    asked = NEWEST
    while lower := negotiation.lower(asked, said(status=400)):
        asked = lower
    listed = said(json.dumps({"newest-versions": [OLDEST]}).encode(), 400)
    assert negotiation.lower(negotiation.begin(), listed) is None
    now[0] += SOON
    assert negotiation.lower(negotiation.begin(), listed) == OLDEST


def test_the_steps_downwards_are_slow_enough_for_the_real_service() -> None:
    played = play(follow(remote(pace=Pace())), *[said(status=400)] * 6, said(document()))
    assert [ask.target[-10:] for ask in played.asks] == [*reversed(NAMES), OLDEST]
    assert played.pauses[:6] == [0.2] * 6
