"""The history over HTTP: filters, pages, exports, and what is not shown."""

import http.client
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.portal.running import Answer, Portal, Visitor, running
from tests.service.rig import START, ManualClock

from forenotice.core.operations import Kind
from forenotice.core.roles import Role, access
from forenotice.portal.pages import history as page
from forenotice.service import calls, fleet, history, maintenance, sessions, tokens
from forenotice.service.calls import Call
from forenotice.store.journal import JournalFilter
from forenotice.store.transaction import Reader
from forenotice.views.fleet import HostChange

CARLA = Call(actor="operator:carla", token_id="c", origin="192.0.2.7", reason="<b>disk</b> swap")
SHOP = Call(actor="tenant:shop", token_id="s", reason="ours", access=access(Role.TENANT, "group:web"))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Portal]:
    """Something of everybody's has happened, at times that are known."""
    clock = ManualClock()
    with running(tmp_path_factory.mktemp("told"), clock=clock) as portal:
        clock.advance(hours=1)
        maintenance.schedule(portal.service, CARLA, kind=Kind.RESTART, names=["db"])
        clock.advance(hours=1)
        maintenance.schedule(portal.service, SHOP, kind=Kind.RESTART, names=["web-0"])
        fleet.set_host(portal.service, CARLA, "host-d", HostChange(cordoned=True))
        yield portal


@pytest.fixture(scope="module")
def visitor(told: Portal) -> Visitor:
    return told.visitor()


@pytest.fixture(scope="module")
def tenant(told: Portal) -> Visitor:
    return told.visitor_as("tenant", "group:web")


def rows(answer: Answer) -> list[str]:
    """What each entry says."""
    return [
        " ".join(re.sub(r"<[^>]*>", " ", row).split())
        for row in re.findall(r'(?s)<li id="entry-\d+">(.*?</div>.*?)</li>', answer.html)
    ]


def positions(answer: Answer) -> list[int]:
    return [int(found) for found in re.findall(r'<li id="entry-(\d+)">', answer.html)]


def found(visitor: Visitor, **query: str) -> list[str]:
    return rows(visitor.get(f"/history?{urlencode(query)}"))


def test_the_newest_comes_first_in_words(visitor: Visitor) -> None:
    answer = visitor.get("/history")
    seen = rows(answer)
    assert any("The token admin signed in to the portal." in row for row in seen[:2])
    [cordoned] = [row for row in seen if "Host host-d was cordoned" in row]
    assert "carla from 192.0.2.7" in cordoned
    assert "&lt;b&gt;disk&lt;/b&gt; swap" in cordoned
    assert "<b>disk</b>" not in answer.html
    [announced] = [row for row in seen if row.partition(" UTC ")[2].startswith("Reboot of db was announced")]
    assert "VM db" in announced
    assert "host host-b" in announced
    assert positions(answer) == sorted(positions(answer), reverse=True)
    assert 'id="entries" class="card" data-live' in answer.html


def test_filters_go_together(told: Portal, visitor: Visitor) -> None:
    assert len(found(visitor, vm="db", action="event.")) == 1
    assert len(found(visitor, action="event.scheduled")) == 2
    assert len(found(visitor, scope="group:web", action="event.scheduled")) == 1
    assert all("host-d" in row for row in found(visitor, host="host-d"))
    assert len(found(visitor, by="operator:carla", action="host.cordoned")) == 1
    [event] = re.findall(r'href="/events/([^"]*)"', visitor.get("/history?vm=db&action=event.scheduled").html)
    assert len(found(visitor, event=event.lower())) == 1
    operation = maintenance.cancel_event(told.service, calls.SYSTEM, event).id
    assert len(found(visitor, event=event)) == 2
    assert len(found(visitor, operation=operation.upper(), action="operation.canceled")) == 1
    assert found(visitor, rollout="none") == []


def test_names_alone_are_understood(visitor: Visitor, tenant: Visitor) -> None:
    for short, whole in (
        ({"scope": "web"}, {"scope": "group:web"}),
        ({"scope": "db"}, {"scope": "vm:db"}),
        ({"by": "carla"}, {"by": "operator:carla"}),
        ({"by": "shop"}, {"by": "tenant:shop"}),
    ):
        assert found(visitor, **short) == found(visitor, **whole) != []
    assert found(visitor, scope="none") == found(visitor, by="none") == []
    assert found(tenant, scope="web") == found(tenant, scope="group:web") != []
    assert found(tenant, scope="db") == []
    assert visitor.get("/history/export?format=csv&by=carla").text.count("operator:carla") > 1
    visitor.get("/history?scope=web").shows('name="scope" value="web"')
    # Empty fields ask for nothing.
    sent = {**dict.fromkeys(page.NAMES, ""), "vm": " web-0 "}
    assert found(visitor, **sent) == found(visitor, vm="web-0") != []


def test_times_are_utc(visitor: Visitor) -> None:
    later = f"{START:%Y-%m-%d}T{START.hour + 1:02}:30"
    query = {"vm": "web-0", "action": "event."}
    assert len(found(visitor, **query, since=later)) == 1
    assert found(visitor, **query, until=later) == []
    assert found(visitor, vm="db", action="event.scheduled", since=f"{later}:00") == []
    assert len(found(visitor, vm="db", action="event.scheduled", until=f"{later}:00Z")) == 1
    assert len(found(visitor, **query, since=f"{later}:00+00:00")) == 1
    answer = visitor.get(f"/history?since={later}")
    assert f'value="{later}"' in answer.html
    assert "(UTC)" in answer.text


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("since=yesterday", "must be a time such as 2026-01-31T12:00:00Z"),
        ("until=0", "must be a time"),
        ("since=0001-01-01T00:00:00%2B05:00", "years 1 to 9999"),
        ("after=-1", "after"),
        ("after=x", "after"),
        ("vm=" + "a" * 300, "vm"),
    ],
)
def test_what_is_wrong_is_said_beside_the_form(visitor: Visitor, query: str, says: str) -> None:
    answer = visitor.get(f"/history?{query}", status=400)
    assert says in answer.text
    assert "<form" in answer.html
    assert rows(answer) == []
    assert "data-live>" not in answer.html


def test_pages_follow_one_another(told: Portal, visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "SHOWN", 4)
    seen: list[int] = []
    path = "/history?scope=group%3Aweb"
    while path:
        answer = visitor.get(path)
        seen += positions(answer)
        assert ("data-live" in answer.html.partition('id="entries"')[2].partition(">")[0]) == ("after" not in path)
        following = re.search(r'<a class="button" href="([^"]*)">Earlier</a>', answer.html)
        path = following[1].replace("&amp;", "&") if following else ""
    listed = history.page(told.service, JournalFilter(scope="group:web"), limit=1000, newest_first=True).items
    assert seen == [entry.seq for entry in listed]
    assert len(seen) > 4


def test_nothing_that_fits_says_what_to_change(visitor: Visitor) -> None:
    answer = visitor.get("/history?vm=web")
    answer.shows("Nothing that fits has happened.", "write web-0 , not web")
    answer.lacks("Save all that fits")


def test_what_was_chosen_stays_chosen(visitor: Visitor) -> None:
    for action in ("event.approved", "event.", "event.none"):
        html = visitor.get(f"/history?action={action}").html
        assert re.findall(r'<option value="([^"]*)" selected>', html) == [action]
    visitor.get("/history?vm=%22%3E").shows('name="vm" value="&#34;&gt;"')


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("query", ["", "action=event.&since=2000-01-01T00:00:00Z", "vm=nobody"])
def test_an_export_is_the_same_as_the_apis(told: Portal, visitor: Visitor, form: str, query: str) -> None:
    got = visitor.get(f"/history/export?format={form}&{query}")
    headers = {"Authorization": f"Bearer {told.token}"}
    api = Visitor(told.port).ask("GET", f"/v1/history/export?format={form}&{query}", headers=headers)
    assert api.status == 200
    assert got.body == api.body
    assert (b"web-0" in got.body) == ("nobody" not in query)
    for name in ("content-type", "content-disposition"):
        assert got.headers[name] == api.headers[name]
    assert got.headers["cache-control"] == "no-store"


def test_the_page_leads_to_the_export_of_what_it_shows(visitor: Visitor) -> None:
    links = re.findall(r'href="(/history/export[^"]*)"', visitor.get("/history?vm=web-0&action=event.").html)
    assert len(links) == 2
    for link in links:
        assert visitor.get(link.replace("&amp;", "&")).body.count(b"event.scheduled") == 1
    visitor.get("/history/export?format=xml", status=400)
    visitor.get("/history/export?since=never", status=400)


def test_an_export_breaks_off_when_the_session_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MANY", 1)
    with running(tmp_path) as portal:
        visitor = portal.visitor()
        [secret] = visitor.cookies.values()
        read, reads = portal.service.store.read, count()

        def leaving() -> AbstractContextManager[Reader]:
            if next(reads) == 8:
                sessions.end(portal.service, secret)
            return read()

        monkeypatch.setattr(portal.service.store, "read", leaving)
        with pytest.raises(http.client.IncompleteRead) as broken:
            visitor.get("/history/export")
        assert broken.value.partial.count(b"\n") < 8


def test_a_tenant_sees_and_exports_its_own_alone(told: Portal, tenant: Visitor) -> None:
    answer = tenant.get("/history")
    [own] = [row for row in rows(answer) if "announced" in row]
    assert "Reboot of web-0" in own
    assert "ours" in own
    for others in ("db", "host-d", "carla", "disk", "pool", "token"):
        assert others not in " ".join(rows(answer))
    answer.lacks('href="/hosts/', 'name="rollout"', 'name="host"', '<option value="token.')
    answer.shows('<option value="event.approved"')
    for query in ({"vm": "db"}, {"by": "operator:carla"}, {"host": "host-d"}, {"action": "token."}, {"rollout": "x"}):
        assert found(tenant, **query) == [], query
    exported = tenant.get("/history/export?format=csv").body
    made = tokens.create(told.service, calls.SYSTEM, name="same", role="tenant", scopes="group:web")
    headers = {"Authorization": f"Bearer {made.token}"}
    assert exported == Visitor(told.port).ask("GET", "/v1/history/export?format=csv", headers=headers).body
    assert b"web-0" in exported
    assert b"carla" not in exported
    assert b"token." not in exported


def test_tokens_are_for_administrators(told: Portal, visitor: Visitor) -> None:
    viewer = told.visitor_as("viewer")
    answer = viewer.get("/history?action=token.")
    assert rows(answer) == []
    assert '<option value="token.created"' not in answer.html
    assert b'"token.' not in viewer.get("/history/export").body
    assert found(visitor, action="token.signed_in") != []
