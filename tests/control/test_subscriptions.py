"""Subscriptions as operators make them."""

from dataclasses import replace

import pytest
from tests.control.running import Control
from tests.delivery.receiving import receiving

from forenotice.core.operations import OF_EVENTS
from forenotice.ssrf import EVERYWHERE, OutgoingClient

URL = "https://hooks.example.com/secret-path"


def test_a_subscription_is_made_listed_changed_and_removed(control: Control) -> None:
    asked = {"name": "pager", "url": URL, "types": ["event.*"], "groups": "web-*", "statuses": ["Failed"]}
    made = control.post("/v1/subscriptions", asked)
    secret = made.pop("secret")
    assert len(secret) > 40
    assert made["types"] == ["forenotice.event.*"]
    assert (made["status"], made["pending"], made["by"]) == ("active", 0, "operator:admin")
    assert control.get("/v1/subscriptions/pager") == control.get(f"/v1/subscriptions/{made['id']}") == made
    assert control.get("/v1/subscriptions") == {"items": [made], "next": None}
    other = control.post("/v1/subscriptions", {"name": "chat", "url": URL, "secret": "one that I have already"})
    assert other["secret"] == "one that I have already"
    page = control.get("/v1/subscriptions?limit=1")
    assert [each["name"] for each in page["items"]] == [page["next"]] == ["chat"]
    changed = control.ask("PATCH", "/v1/subscriptions/pager", {"groups": "", "url": URL + "2"}).json
    assert (changed["groups"], changed["url"], changed["types"]) == ("", URL + "2", ["forenotice.event.*"])
    assert control.ask("DELETE", "/v1/subscriptions/pager").json == {"removed": "pager"}
    assert control.ask("GET", "/v1/subscriptions/pager").message == "there is no subscription 'pager'"
    history = control.ask("GET", "/v1/history?action=subscription.").body.decode()
    assert [each["action"] for each in control.get("/v1/history?action=subscription.")["items"]] == [
        "subscription.added",
        "subscription.added",
        "subscription.changed",
        "subscription.removed",
    ]
    for hidden in (secret, other["secret"], "secret-path"):
        assert hidden not in history


def test_under_one_key_one_is_made_and_its_secret_shown_once(control: Control) -> None:
    body = b'{"name": "pager", "url": "https://hooks.example.com/"}'
    first, again = (
        control.ask("POST", "/v1/subscriptions", body, headers={"Idempotency-Key": "k"}).json for _ in range(2)
    )
    assert first.pop("secret")
    assert again.pop("secret") is None
    assert first == again


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"url": "http://10.0.0.1/"}, 400, "allow_private_targets"),
        ({"url": "https://me:pw@hooks.example.com/"}, 400, "before the '@'"),
        ({"url": "http://hooks.example.com/"}, 400, "give an https URL"),
        ({"types": ["Event"]}, 400, "is not a type: give one such as"),
        ({"groups": "web/*"}, 400, "'web/*' is not a name or pattern"),
        ({"statuses": ["Sleeping"]}, 400, "statuses[0] in the body must be one of"),
        ({"statuses": ["Planned"]}, 400, "must be one of Scheduled, Started, Completed"),
        ({"secret": "short"}, 400, "give 16 to 200"),
        ({"after": 10_000}, 409, "the journal ends at"),
        ({"name": "no name"}, 400, "name in the body must be a name"),
        ({"name": "taken"}, 409, "there is already a subscription 'taken'"),
    ],
)
def test_what_is_wrong_is_told(unchanged: Control, fields: dict[str, object], status: int, said: str) -> None:
    control = unchanged
    control.ask("POST", "/v1/subscriptions", {"name": "taken", "url": URL})
    answer = control.ask("POST", "/v1/subscriptions", {"name": "pager", "url": URL, **fields})
    assert (answer.status, said in answer.message) == (status, True), answer.message
    assert "pw" not in answer.message
    assert [each["name"] for each in control.get("/v1/subscriptions")["items"]] == ["taken"]


def test_there_is_an_end_to_how_many_there_can_be(control: Control) -> None:
    control.post("/v1/subscriptions", {"name": "first", "url": URL})
    with control.service.store.write() as transaction:
        (first,) = transaction.subscriptions.active()
        for number in range(99):
            transaction.subscriptions.put(replace(first, id=str(number), name=f"s{number}"))
    answer = control.ask("POST", "/v1/subscriptions", {"name": "one-more", "url": URL})
    assert (answer.status, "remove one" in answer.message) == (409, True)


def test_resume_and_replay_say_where_it_is(control: Control) -> None:
    control.post("/v1/subscriptions", {"name": "pager", "url": URL})
    replayed = control.post("/v1/subscriptions/pager/replay", {"after": 1})
    assert replayed["position"] == 1
    assert control.post("/v1/subscriptions/pager/resume")["status"] == "active"
    assert control.ask("POST", "/v1/subscriptions/pager/replay", {"after": 999}).status == 409
    assert control.ask("POST", "/v1/subscriptions/nobody/resume").status == 404
    assert control.get("/v1/subscriptions/pager/deliveries") == {"items": [], "next": None}


def test_a_receiver_can_be_tried(control: Control) -> None:
    control.service.outgoing = OutgoingClient(private=EVERYWHERE)
    with receiving() as receiver:
        receiver.secret = control.post("/v1/subscriptions", {"name": "pager", "url": receiver.url})["secret"]
        assert control.post("/v1/subscriptions/pager/test") == {"taken": True, "status": 204, "error": ""}
        assert receiver.taken[0]["type"] == "forenotice.subscription.test"
        receiver.secret = "another one altogether"
        said = control.post("/v1/subscriptions/pager/test")
        assert said == {"taken": False, "status": 401, "error": "it answered 401"}
    said = control.post("/v1/subscriptions/pager/test")
    assert (said["taken"], said["status"], "refused" in said["error"]) == (False, None, True)
    tried = control.get("/v1/history?action=subscription.tested")["items"]
    assert [entry["data"]["taken"] for entry in tried] == [True, False, False]


def test_the_description_offers_what_events_can_be(control: Control) -> None:
    schemas = control.get("/v1/openapi.json")["components"]["schemas"]
    for name in ("NewSubscription", "SubscriptionChange"):
        assert schemas[name]["properties"]["statuses"]["items"]["enum"] == sorted(OF_EVENTS)
