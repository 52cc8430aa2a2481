"""The pages of subscriptions: made, looked at, tried, changed and removed, as far as one may."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from tests.delivery.receiving import receiving
from tests.portal.running import Portal

from forenotice.core.journal import SubscriptionState
from forenotice.core.roles import EVERYTHING
from forenotice.delivery import subscriptions
from forenotice.service import history
from forenotice.service.calls import SYSTEM
from forenotice.ssrf import EVERYWHERE, OutgoingClient
from forenotice.store.journal import JournalFilter
from forenotice.store.subscriptions import Delivery
from forenotice.views.subscriptions import NewSubscription

URL = "https://hooks.example.com/in"
ASKED = {"name": "pager", "url": URL, "types": "", "groups": "", "secret": "", "reason": ""}
PAGER = "/subscriptions/pager"
LANE = "0F9619FF-8B86-4011-B42D-00CF4FC964FF"
SECRET = re.compile(r"fns_[\w-]{43}")
BUTTONS = ("Add the subscription", "Send a test message", "Replay", "Save the changes", "Remove", "Resume", "Try again")


def add(portal: Portal, **more: Any) -> None:
    subscriptions.create(portal.service, SYSTEM, NewSubscription(name="pager", url=URL, **more))


def shown(portal: Portal) -> Any:
    return subscriptions.show(portal.service, "pager", EVERYTHING)


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


def test_one_is_made_and_its_secret_shown_once(portal: Portal) -> None:
    visitor = portal.visitor()
    asked = {**ASKED, "types": "event.*, rollout.paused", "groups": "web,vm:db", "statuses": ["Started", "Failed"]}
    answer = visitor.post("/subscriptions", asked, on="/subscriptions", status=201)
    [secret] = set(SECRET.findall(answer.html))
    answer.shows("Copy it now. It is not shown again")
    assert secret not in str(answer.headers)
    made = shown(portal)
    assert made.types == ["forenotice.event.*", "forenotice.rollout.paused"]
    assert (made.groups, made.statuses) == ("web,vm:db", ["Started", "Failed"])
    listed, page = visitor.get("/subscriptions"), visitor.get(PAGER)
    listed.shows(f"pager active 0 {URL}")
    for each in (listed, page):
        each.lacks(secret)
    page.shows("Nothing waits")
    assert re.search(r'id="status-Started"[^>]* checked', page.html)
    assert not re.search(r'id="status-Scheduled"[^>]* checked', page.html)
    taken = visitor.post("/subscriptions", ASKED, on="/subscriptions", status=409)
    taken.shows("there is already a subscription 'pager'")


def test_a_secret_that_was_given_is_not_shown(portal: Portal) -> None:
    visitor, own, another = portal.visitor(), "one that I have already", "a secret of my own making"
    answer = visitor.post("/subscriptions", {**ASKED, "secret": own}, on="/subscriptions")
    assert answer.location == PAGER
    page = visitor.get(PAGER)
    page.shows("The subscription pager is made.")
    visitor.post(PAGER, {"url": URL, "types": "", "groups": "", "secret": another})
    page.lacks(own)
    visitor.get(PAGER).lacks(own, another)
    assert own not in str(answer.headers)
    with portal.service.store.read() as reader:
        found = reader.subscriptions.named("pager")
    assert found is not None
    assert found.secret == another


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "no name"}, "name"),
        ({"url": "http://10.0.0.1/"}, "allow_private_targets"),
        ({"types": "events.*"}, "did you mean"),
        ({"groups": "web/*"}, "web/"),
        ({"statuses": ["Sleeping"]}, "statuses"),
        ({"secret": "too-short-for-us"[:9]}, "give 16 to 200"),
    ],
)
def test_what_is_wrong_is_told_beside_the_form_as_it_was_filled(
    unchanged: Portal, fields: dict[str, Any], said: str
) -> None:
    answer = unchanged.visitor().post("/subscriptions", {**ASKED, **fields}, on="/subscriptions", status=400)
    answer.shows(said, '<p class="refused" role="alert">', f'value="{fields.get("url", URL)}"')
    answer.lacks("too-short")
    assert subscriptions.list_all(unchanged.service, access=EVERYTHING).items == []


def test_it_is_changed(portal: Portal) -> None:
    add(portal, types=["event.*"], groups="web")
    visitor = portal.visitor()
    asked = {"url": URL + "2", "types": "event.started", "groups": "", "statuses": [], "secret": "", "reason": "moved"}
    assert visitor.post(PAGER, asked, on=PAGER).location == PAGER
    changed = shown(portal)
    assert (changed.url, changed.types, changed.groups) == (URL + "2", ["forenotice.event.started"], "")
    [entry] = history.page(portal.service, JournalFilter(action="subscription.changed")).items
    assert entry.reason == "moved"
    assert "secret" not in entry.data["fields"]
    wrong = visitor.post(PAGER, {**asked, "url": "http://10.0.0.1/"}, status=400)
    wrong.shows("allow_private_targets", 'value="http://10.0.0.1/"')
    assert shown(portal).url == URL + "2"


def test_a_receiver_is_tried_and_its_response_is_shown(portal: Portal) -> None:
    portal.service.outgoing = OutgoingClient(private=EVERYWHERE)
    visitor, place = portal.visitor(), f"{PAGER}/test"
    with receiving() as receiver:
        made = subscriptions.create(portal.service, SYSTEM, NewSubscription(name="pager", url=receiver.url))
        receiver.secret = str(made.secret)
        visitor.post(place, on=PAGER)
        visitor.get(PAGER).shows("The receiver took the test message: it answered 204.")
        receiver.secret = "another one altogether"
        refused = visitor.post(place, on=PAGER, status=200)
        refused.shows("The receiver did not take the test message: it answered 401")
    visitor.post(place, on=PAGER, status=200).shows("refused")
    assert visitor.get(place, 303).location == PAGER


def test_what_waits_is_shown_with_what_went_wrong(portal: Portal) -> None:
    add(portal)
    wait(portal, 3, 5)
    visitor = portal.visitor()
    visitor.get("/subscriptions").shows("pager failing 2 ")
    page = visitor.get(PAGER)
    page.shows(
        "It is tried again: entry 3 was not taken, try 3: it answered 503",
        "State failing",
        "after entry 3",
        f'href="/events/{LANE}"',
    )
    assert re.search(r"3 [A-Z]\w+: [\w ]+ event 0F9619FF 3 20", page.text)
    assert re.findall(r'<tr id="delivery-(\d+)">', page.html) == ["3", "5"]
    assert re.findall(r'<tr id="delivery-(\d+)">', visitor.get(f"{PAGER}?after=3").html) == ["5"]
    visitor.get(f"{PAGER}?after=5").shows("Nothing waits behind entry 5.")
    for odd in ("x", "-1", "٣", "9" * 19, "9" * 30):
        visitor.get(f"{PAGER}?after={quote(odd)}")
    wait(portal, *range(6, 66))
    [onward] = re.findall(rf'href="({PAGER}\?after=\d+)"', visitor.get(PAGER).html)
    found = re.findall(r'<tr id="delivery-(\d+)">', visitor.get(onward).html)
    assert found == [str(number) for number in range(54, 66)]


def test_a_parked_one_is_resumed(portal: Portal) -> None:
    add(portal)
    wait(portal, 3, parked=True)
    visitor = portal.visitor()
    visitor.get(PAGER).shows("It is parked: nothing is sent. it was gone for 24 h", "when it is resumed")
    visitor.post(f"{PAGER}/resume", on=PAGER)
    assert shown(portal).status == "active"
    visitor.get(PAGER).shows("What waits is sent again now.")


def test_what_is_past_is_delivered_again(portal: Portal) -> None:
    add(portal)
    visitor = portal.visitor()
    visitor.post(f"{PAGER}/replay", {"after": "1"}, on=PAGER)
    visitor.get(PAGER).shows("from entry 2 of the journal on")
    assert shown(portal).position == 1
    for after, status, said in (("99999", 409, "the journal ends at"), ("-1", 400, "after"), ("soon", 400, "after")):
        wrong = visitor.post(f"{PAGER}/replay", {"after": after}, status=status)
        wrong.shows(said, f'value="{after}"')
    assert visitor.get(f"{PAGER}/replay", 303).location == PAGER


def test_removing_asks_first(portal: Portal) -> None:
    add(portal)
    wait(portal, 3)
    visitor, place = portal.visitor(), f"{PAGER}/remove"
    visitor.get(place).shows("Remove the subscription pager?", "not even the 1 that waits")
    assert shown(portal)
    assert visitor.post(place, {"reason": "no pager"}, on=place).location == "/subscriptions"
    visitor.get("/subscriptions").shows("The subscription pager is removed. ", "Nobody is told yet.")
    for path in (PAGER, place):
        visitor.get(path, 404).shows("There is no subscription 'pager'")
    visitor.post(f"{PAGER}/resume", status=404)


def test_a_viewer_looks_and_the_platform_manages(portal: Portal) -> None:
    viewer, platform = portal.visitor_as("viewer"), portal.visitor_as("platform")
    viewer.get("/subscriptions").shows("Somebody with the role platform or admin can add a subscription")
    platform.post("/subscriptions", ASKED, on="/subscriptions", status=201)
    assert shown(portal).by == "operator:platform"
    platform.get(PAGER).shows("Save the changes")
    wait(portal, 3, parked=True)
    listed, page = viewer.get("/subscriptions"), viewer.get(PAGER)
    page.shows("it answered 503")
    page.lacks("/remove", *(f"<button>{button}" for button in BUTTONS))
    listed.lacks(*BUTTONS)
    for each in (listed, page):
        each.shows("https://hooks.example.com/…")
        assert URL not in each.text
        assert re.findall(r'<form[^>]* action="([^"]*)"', each.html) == ["/sign-out"]
