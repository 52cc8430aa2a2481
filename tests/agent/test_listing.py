"""What the endpoint lists, poll by poll."""

from typing import Any

import pytest
from tests.agent.rules.builders import event

from forenotice.agent.endpoint import EventList
from forenotice.client import Document, EndpointError, News

LISTED = Document(incarnation=7, events=(event(id="e1"),))
EMPTY = Document(incarnation=8)
RESTARTED = Document(incarnation=1)


def news(document: Document | None, **more: Any) -> News:
    usual = {"changed": True, "error": None, "date": None, "asked_at": 1.0, "answered_at": 1.1}
    return News(document=document, **{**usual, **more})


def silent(document: Document) -> News:
    """200 without a body: what was shown last is told again."""
    return news(document, changed=False, shown=False)


def failed(document: Document) -> News:
    """As after a 404."""
    return news(document, changed=False, shown=False, error=EndpointError("404"))


@pytest.mark.parametrize(
    ("polls", "knows"),
    [
        ([LISTED], True),
        ([LISTED, EMPTY], False),
        ([LISTED, EMPTY, EMPTY], True),
        ([LISTED, EMPTY, silent(EMPTY)], False),
        ([LISTED, EMPTY, failed(EMPTY)], False),
        ([LISTED, EMPTY, failed(EMPTY), EMPTY], True),
        ([LISTED, silent(LISTED)], True),
        ([LISTED, RESTARTED], False),
        ([LISTED, EMPTY, RESTARTED], False),
        ([LISTED, EMPTY, RESTARTED, RESTARTED], True),
        ([LISTED, RESTARTED, LISTED, RESTARTED], False),
        ([LISTED, RESTARTED, LISTED], True),
        ([EMPTY], False),
        ([EMPTY, EMPTY], True),
        ([], False),
    ],
)
def test_an_event_is_gone_when_two_polls_in_a_row_did_not_show_it(polls: list[Document | News], knows: bool) -> None:
    listing = EventList()
    for poll in polls:
        listing.heard(poll if isinstance(poll, News) else news(poll))
    assert listing.knows("E1") == knows
    assert (listing.find("E1") is not None) == (knows and listing.document is LISTED)


def test_it_says_whether_there_is_anything_new() -> None:
    listing = EventList()
    polls = [
        news(None),
        news(LISTED),
        news(LISTED),
        news(LISTED),
        silent(LISTED),
        news(EMPTY),
        news(EMPTY),
        news(EMPTY),
    ]
    assert [listing.heard(each) for each in polls] == [False, True, True, False, False, True, True, False]
