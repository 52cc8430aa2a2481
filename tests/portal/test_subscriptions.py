"""The pages of subscriptions: made, looked at, tried, changed and removed, as far as one may."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.delivery.receiving import receiving
from tests.portal.running import Portal

from forenotice.core.journal import SubscriptionState
from forenotice.core.roles import EVERYTHING
from forenotice.delivery import subscriptions
from forenotice.service import history
from forenotice.service.calls import SYSTEM
from forenotice.ssrf import EVERYWHERE, OutgoingClient
from forenotice.store.subscriptions import Delivery
from forenotice.views.subscriptions import NewSubscription

URL = "https://hooks.example.com/in"
ASKED = {"name": "pager", "url": URL, "types": "", "groups": "", "secret": "", "reason": ""}
LANE = "0F9619FF-8B86-4011-B42D-00CF4FC964FF"
SECRET = re.compile(r"fns_[\w-]{43}")
BUTTONS = ("Add the subscription", "Send a test message", "Replay", "Save the changes", "Remove", "Resume", "Try again")


def add(portal: Portal, name: str = "pager", **more: Any) -> Any:
    return subscriptions.create(portal.service, SYSTEM, NewSubscription(name=name, url=URL, **more))


def wait(portal: Portal, *positions: int, parked: bool = False) -> None:
    """Deliveries of the pager that were tried in vain."""
    now = portal.service.clock.now()
    with portal.service.store.write() as transaction:
        found = transaction.subscriptions.named("pager")
        assert found is not None
        if parked:
            transaction.subscriptions.put(replace(found, status=SubscriptionState.PARKED, why="it was gone for 24 h"))
        transaction.subscriptions.put_deliveries(
            Delivery(
                subscription=found.id,
                position=position,
                lane=LANE,
                due_at=now + timedelta(minutes=5),
                attempt=3,
                tried_since=now,
                error="it answered 503",
            )
            for position in positions
        )


def test_nobody_is_told_yet(unchanged: Portal) -> None:
    page = unchanged.visitor().get("/subscriptions").text
    assert "Nobody is told yet. Add a subscription below" in page


def test_one_is_made_and_its_secret_shown_once(portal: Portal) -> None:
    visitor = portal.visitor()
    asked = {**ASKED, "types": "event.*, rollout.paused", "groups": "web,vm:db", "statuses": ["Started", "Failed"]}
    answer = visitor.post("/subscriptions", asked, on="/subscriptions", status=201)
    [secret] = set(SECRET.findall(answer.html))
    assert "Copy it now. It is not shown again" in answer.text
    assert secret not in str(answer.headers)
    made = subscriptions.show(portal.service, "pager", EVERYTHING)
    assert made.types == ["forenotice.event.*", "forenotice.rollout.paused"]
    assert (made.groups, made.statuses) == ("web,vm:db", ["Started", "Failed"])
    listed, page = visitor.get("/subscriptions"), visitor.get("/subscriptions/pager")
    assert f"pager active 0 {URL}" in listed.text
    for each in (listed, page):
        assert secret not in each.html
    assert "Nothing waits" in page.text
    assert re.search(r'id="status-Started"[^>]* checked', page.html)
    assert not re.search(r'id="status-Scheduled"[^>]* checked', page.html)


def test_a_secret_that_was_given_is_not_shown(portal: Portal) -> None:
    visitor, own = portal.visitor(), "one that I have already"
    answer = visitor.post("/subscriptions", {**ASKED, "secret": own}, on="/subscriptions")
    assert answer.location == "/subscriptions/pager"
    assert own not in str(answer.headers)
    page = visitor.get("/subscriptions/pager")
    assert "The subscription pager is made." in page.text
    assert own not in page.html


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"name": "no name"}, 400, "name"),
        ({"url": "http://10.0.0.1/"}, 400, "allow_private_targets"),
        ({"types": "events.*"}, 400, "did you mean"),
        ({"groups": "web/*"}, 400, "web/"),
        ({"statuses": ["Sleeping"]}, 400, "statuses"),
        ({"secret": "too-short-for-us"[:9]}, 400, "give 16 to 200"),
    ],
)
def test_what_is_wrong_is_told_beside_the_form_as_it_was_filled(
    unchanged: Portal, fields: dict[str, Any], status: int, said: str
) -> None:
    answer = unchanged.visitor().post("/subscriptions", {**ASKED, **fields}, on="/subscriptions", status=status)
    assert said in answer.text
    assert '<p class="refused" role="alert">' in answer.html
    assert f'value="{fields.get("url", URL)}"' in answer.html
    assert "too-short" not in answer.html
    assert subscriptions.list_all(unchanged.service, access=EVERYTHING).items == []


def test_a_name_is_taken(portal: Portal) -> None:
    add(portal)
    answer = portal.visitor().post("/subscriptions", ASKED, on="/subscriptions", status=409)
    assert "there is already a subscription 'pager'" in answer.text


def test_it_is_changed(portal: Portal) -> None:
    add(portal, types=["event.*"], groups="web")
    visitor = portal.visitor()
    asked = {"url": URL + "2", "types": "event.started", "groups": "", "statuses": [], "secret": "", "reason": "moved"}
    assert visitor.post("/subscriptions/pager", asked, on="/subscriptions/pager").location == "/subscriptions/pager"
    changed = subscriptions.show(portal.service, "pager", EVERYTHING)
    assert (changed.url, changed.types, changed.groups) == (URL + "2", ["forenotice.event.started"], "")
    [entry] = history.page(portal.service, action="subscription.changed").items
    assert entry.reason == "moved"
    assert "secret" not in entry.data["fields"]
    wrong = visitor.post("/subscriptions/pager", {**asked, "url": "http://10.0.0.1/"}, status=400)
    assert "allow_private_targets" in wrong.text
    assert 'value="http://10.0.0.1/"' in wrong.html
    assert subscriptions.show(portal.service, "pager", EVERYTHING).url == URL + "2"


def test_the_secret_is_changed_and_stays_unseen(portal: Portal) -> None:
    add(portal)
    visitor, own = portal.visitor(), "a secret of my own making"
    visitor.post("/subscriptions/pager", {"url": URL, "types": "", "groups": "", "secret": own})
    assert own not in visitor.get("/subscriptions/pager").html
    with portal.service.store.read() as reader:
        found = reader.subscriptions.named("pager")
    assert found is not None
    assert found.secret == own


def test_a_receiver_is_tried_and_what_it_says_is_shown(portal: Portal) -> None:
    portal.service.outgoing = OutgoingClient(private=EVERYWHERE)
    visitor, place = portal.visitor(), "/subscriptions/pager/test"
    with receiving() as receiver:
        made = subscriptions.create(portal.service, SYSTEM, NewSubscription(name="pager", url=receiver.url))
        receiver.secret = str(made.secret)
        visitor.post(place, on="/subscriptions/pager")
        assert "The receiver took the test message: it answered 204." in visitor.get("/subscriptions/pager").text
        receiver.secret = "another one altogether"
        refused = visitor.post(place, on="/subscriptions/pager", status=200)
        assert "The receiver did not take the test message: it answered 401" in refused.text
    gone = visitor.post(place, on="/subscriptions/pager", status=200)
    assert "refused" in gone.text
    assert visitor.get(place, 303).location == "/subscriptions/pager"


def test_what_waits_is_shown_with_what_went_wrong(portal: Portal) -> None:
    add(portal)
    wait(portal, 3, 5)
    visitor = portal.visitor()
    assert "pager failing 2 " in visitor.get("/subscriptions").text
    page = visitor.get("/subscriptions/pager")
    assert "It is tried again: entry 3 was not taken, try 3: it answered 503" in page.text
    assert re.findall(r'<tr id="delivery-(\d+)">', page.html) == ["3", "5"]
    assert "State failing" in page.text
    assert re.search(r"3 [A-Z]\w+: [\w ]+ event 0F9619FF 3 20", page.text)
    assert "after entry 3" in page.text
    assert f'href="/events/{LANE}"' in page.html
    assert re.findall(r'<tr id="delivery-(\d+)">', visitor.get("/subscriptions/pager?after=3").html) == ["5"]
    assert "Nothing waits behind entry 5." in visitor.get("/subscriptions/pager?after=5").text
    for odd in ("x", "-1", "٣", "9" * 19, "9" * 30):
        assert visitor.get("/subscriptions/pager?after=" + "".join(f"%{b:02x}" for b in odd.encode()))


def test_many_that_wait_are_shown_page_by_page(portal: Portal) -> None:
    add(portal)
    wait(portal, *range(1, 61))
    visitor = portal.visitor()
    [onward] = re.findall(r'href="(/subscriptions/pager\?after=\d+)"', visitor.get("/subscriptions/pager").html)
    found = re.findall(r'<tr id="delivery-(\d+)">', visitor.get(onward).html)
    assert found == [str(number) for number in range(51, 61)]


def test_a_parked_one_is_resumed(portal: Portal) -> None:
    add(portal)
    wait(portal, 3, parked=True)
    visitor = portal.visitor()
    page = visitor.get("/subscriptions/pager").text
    assert "It is parked: nothing is sent. it was gone for 24 h" in page
    assert "when it is resumed" in page
    visitor.post("/subscriptions/pager/resume", on="/subscriptions/pager")
    assert subscriptions.show(portal.service, "pager", EVERYTHING).status == "active"
    assert "What waits is sent again now." in visitor.get("/subscriptions/pager").text


def test_what_is_past_is_told_again(portal: Portal) -> None:
    add(portal)
    visitor = portal.visitor()
    visitor.post("/subscriptions/pager/replay", {"after": "1"}, on="/subscriptions/pager")
    assert "from entry 2 of the journal on" in visitor.get("/subscriptions/pager").text
    assert subscriptions.show(portal.service, "pager", EVERYTHING).position == 1
    for after, status, said in (("99999", 409, "the journal ends at"), ("-1", 400, "after"), ("soon", 400, "after")):
        wrong = visitor.post("/subscriptions/pager/replay", {"after": after}, status=status)
        assert said in wrong.text
        assert f'value="{after}"' in wrong.html
    assert visitor.get("/subscriptions/pager/replay", 303).location == "/subscriptions/pager"


def test_removing_asks_first(portal: Portal) -> None:
    add(portal)
    wait(portal, 3)
    visitor, place = portal.visitor(), "/subscriptions/pager/remove"
    asked = visitor.get(place).text
    assert "Remove the subscription pager?" in asked
    assert "not even the 1 that waits" in asked
    assert subscriptions.show(portal.service, "pager", EVERYTHING)
    assert visitor.post(place, {"reason": "no pager"}, on=place).location == "/subscriptions"
    assert "The subscription pager is removed. " in visitor.get("/subscriptions").text
    visitor.get("/subscriptions/pager", 404)


def test_a_viewer_looks_and_changes_nothing(portal: Portal) -> None:
    add(portal)
    wait(portal, 3, parked=True)
    visitor = portal.visitor_as("viewer")
    listed, page = visitor.get("/subscriptions"), visitor.get("/subscriptions/pager")
    assert "it answered 503" in page.text
    for shown in (listed, page):
        assert "https://hooks.example.com/…" in shown.text
        assert URL not in shown.text
    for button in BUTTONS:
        assert button not in listed.text, button
        assert f"<button>{button}" not in page.html, button
    assert re.findall(r'<form[^>]* action="([^"]*)"', listed.html + page.html) == ["/sign-out"] * 2
    assert "/remove" not in page.html
    visitor.get("/subscriptions/pager/remove", 403)
    for path in ("", "/pager", "/pager/resume", "/pager/replay", "/pager/test", "/pager/remove"):
        fields = {**ASKED, "name": "mine", "after": "0"}
        said = visitor.post(f"/subscriptions{path}", fields, status=403).text
        assert "this needs the role platform or admin" in said.lower()
    [only] = subscriptions.list_all(portal.service, access=EVERYTHING).items
    assert (only.name, only.status, only.pending) == ("pager", "parked", 1)


def test_an_empty_list_tells_a_viewer_whom_to_ask(unchanged: Portal) -> None:
    page = unchanged.visitor_as("viewer").get("/subscriptions").text
    assert "Somebody with the role platform or admin can add a subscription" in page


@pytest.mark.parametrize(("role", "scopes"), [("tenant", "web"), ("viewer", "web")])
def test_whoever_has_some_scopes_alone_may_not_look(portal: Portal, role: str, scopes: str) -> None:
    add(portal)
    visitor = portal.visitor_as(role, scopes)
    assert 'href="/subscriptions"' not in visitor.get("/").html
    visitor.get("/subscriptions", 403)
    visitor.get("/subscriptions/pager", 403)


def test_the_platform_manages_them(portal: Portal) -> None:
    visitor = portal.visitor_as("platform")
    visitor.post("/subscriptions", ASKED, on="/subscriptions", status=201)
    assert subscriptions.show(portal.service, "pager", EVERYTHING).by == "operator:platform"
    assert "Save the changes" in visitor.get("/subscriptions/pager").text


def test_there_is_no_such_subscription(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    assert "there is no subscription 'ghost'" in visitor.get("/subscriptions/ghost", 404).text.lower()
    visitor.get("/subscriptions/ghost/remove", 404)
    visitor.post("/subscriptions/ghost/resume", status=404)
