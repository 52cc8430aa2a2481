"""What `watch` tells of one document after another."""

import logging
import socket

import pytest
from tests.client.samples import EVENT, OTHER, STARTED, document, said
from tests.client.steps import Failing, Played, play, remote

from forenotice.client import Change, changes
from forenotice.client.http import Response

SCHEDULED = said(document(EVENT))
RUNNING = said(document(STARTED, incarnation=3))
OVER = said(document(incarnation=4))
NAME = said(b"westno_0")


def watch(*outcomes: Response | Failing, mine: bool = False, name: str | None = None) -> Played[Change]:
    return play(changes.watch(remote(name=name), mine), *outcomes)


def watched(*outcomes: Response | Failing, mine: bool = False, name: str | None = None) -> list[str]:
    return [told(change) for change in watch(*outcomes, mine=mine, name=name).told]


def told(change: Change) -> str:
    started = getattr(change, "started", None)
    return f"{type(change).__name__} {change.event.type}" + ("" if started is None else f" {started}")


LIFE = ["Appeared Freeze", "Started Freeze", "Gone Freeze True"]
UNSTARTED = ["Appeared Freeze", "Gone Freeze False"]
BOTH = said(document(EVENT, OTHER))
DROPPED = said(document(EVENT | {"Resources": ["WestNO_1"]}, incarnation=3))
LOWER = said(document(STARTED | {"EventId": EVENT["EventId"].lower()}))
FAULTS = (said(), *(said(status=status) for status in (404, 410, 429, 503)), said(b"{"), said(b"{}"))


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ([SCHEDULED, RUNNING, OVER], LIFE),
        ([SCHEDULED, OVER], UNSTARTED),
        ([RUNNING, OVER], LIFE),
        ([SCHEDULED, SCHEDULED, RUNNING, RUNNING], LIFE[:2]),
        ([OVER, OVER], []),
        (
            [BOTH, said(document(OTHER)), said(document(OTHER, STARTED))],
            ["Appeared Freeze", "Appeared Reboot", "Gone Freeze False", "Appeared Freeze", "Started Freeze"],
        ),
        # A stale document does not start an event twice, and ids are compared without regard to case.
        ([SCHEDULED, RUNNING, SCHEDULED, RUNNING, SCHEDULED, OVER], LIFE),
        ([SCHEDULED, LOWER], LIFE[:2]),
        # A restarted incarnation changes nothing that is still listed.
        *(
            ([SCHEDULED, said(document(EVENT, OTHER, incarnation=number))], ["Appeared Freeze", "Appeared Reboot"])
            for number in (1, 90)
        ),
        # No fault makes an event gone, and watching goes on.
        *(
            ([SCHEDULED, fault, fault, RUNNING, fault, RUNNING, fault, OVER], LIFE)
            for fault in (*FAULTS, ConnectionResetError(), TimeoutError())
        ),
    ],
)
def test_the_life_of_events(outcomes: list[Response | Failing], told: list[str]) -> None:
    assert watched(*outcomes) == told


@pytest.mark.parametrize(
    ("name", "outcomes", "told"),
    [
        ("Other", [BOTH, OVER], ["Appeared Reboot", "Gone Reboot False"]),
        ("Third", [SCHEDULED, OVER], []),
        ("WestNO_0", [SCHEDULED, DROPPED, OVER], UNSTARTED),
        # A name that cannot be had is asked for again with the next poll.
        (None, [SCHEDULED, said(status=503), SCHEDULED, TimeoutError(), SCHEDULED, NAME, OVER], UNSTARTED),
    ],
)
def test_events_of_this_vm_alone(name: str | None, outcomes: list[Response | Failing], told: list[str]) -> None:
    assert watched(*outcomes, mine=True, name=name) == told


def test_gone_has_the_event_as_it_was_last_listed() -> None:
    later = said(document(EVENT | {"NotBefore": "Mon, 11 Apr 2022 22:30:00 GMT"}, incarnation=3))
    appeared, gone = watch(SCHEDULED, later, OVER).told
    assert appeared.event.not_before_text == EVENT["NotBefore"]
    assert gone.event.not_before_text == "Mon, 11 Apr 2022 22:30:00 GMT"


def test_the_name_is_asked_for_when_there_is_something_to_compare_it_with() -> None:
    played = watch(OVER, SCHEDULED, NAME, RUNNING, OVER, mine=True)
    assert [told(change) for change in played.told] == ["Appeared Freeze", "Started Freeze", "Gone Freeze True"]
    assert ["instance" in ask.target for ask in played.asks] == [False, False, True, False, False, False]


def test_while_the_name_is_a_guess_an_event_is_not_settled_to_be_about_others() -> None:
    nowhere = said(status=404)
    played = watch(SCHEDULED, nowhere, SCHEDULED, nowhere, SCHEDULED, NAME, SCHEDULED, OVER, mine=True)
    assert [told(change) for change in played.told] == ["Appeared Freeze", "Gone Freeze False"]
    assert ["instance" in ask.target for ask in played.asks] == [False, True] * 3 + [False] * 3


def test_a_guess_that_leaves_nothing_out_is_not_asked_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "westno_0.example.org")
    played = watch(SCHEDULED, said(status=404), SCHEDULED, SCHEDULED, mine=True)
    assert [told(change) for change in played.told] == ["Appeared Freeze"]
    assert sum("instance" in ask.target for ask in played.asks) == 1


def test_faults_are_logged_on_change_and_on_doubling(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "forenotice.client")
    refused, busy = ConnectionRefusedError(111, "Connection refused"), said(status=503)
    watch(*[refused] * 9, *[busy] * 2, OVER, OVER, refused)
    assert [
        (record.levelname, getattr(record, "action", ""), getattr(record, "times", 0)) for record in caplog.records
    ] == [
        *(("WARNING", "watch.failed", times) for times in (1, 2, 4, 8, 1, 2)),
        ("INFO", "watch.recovered", 2),
        ("WARNING", "watch.failed", 1),
    ]
    assert caplog.records[0].getMessage().startswith("the metadata endpoint cannot be used: cannot reach")
