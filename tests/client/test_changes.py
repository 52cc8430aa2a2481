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


@pytest.mark.parametrize(
    ("outcomes", "changes"),
    [
        ([SCHEDULED, RUNNING, OVER], ["Appeared Freeze", "Started Freeze", "Gone Freeze True"]),
        ([SCHEDULED, OVER], ["Appeared Freeze", "Gone Freeze False"]),
        ([RUNNING, OVER], ["Appeared Freeze", "Started Freeze", "Gone Freeze True"]),
        ([SCHEDULED, SCHEDULED, RUNNING, RUNNING], ["Appeared Freeze", "Started Freeze"]),
        ([OVER, OVER], []),
        (
            [said(document(EVENT, OTHER)), said(document(OTHER)), said(document(OTHER, STARTED))],
            ["Appeared Freeze", "Appeared Reboot", "Gone Freeze False", "Appeared Freeze", "Started Freeze"],
        ),
    ],
)
def test_the_life_of_events(outcomes: list[Response], changes: list[str]) -> None:
    assert watched(*outcomes) == changes


def test_a_stale_document_does_not_start_an_event_twice() -> None:
    assert watched(SCHEDULED, RUNNING, SCHEDULED, RUNNING, SCHEDULED, OVER) == [
        "Appeared Freeze",
        "Started Freeze",
        "Gone Freeze True",
    ]


def test_ids_are_compared_without_regard_to_case() -> None:
    assert watched(SCHEDULED, said(document(STARTED | {"EventId": EVENT["EventId"].lower()}))) == [
        "Appeared Freeze",
        "Started Freeze",
    ]


def test_gone_has_the_event_as_it_was_last_listed() -> None:
    later = said(document(EVENT | {"NotBefore": "Mon, 11 Apr 2022 22:30:00 GMT"}, incarnation=3))
    appeared, gone = watch(SCHEDULED, later, OVER).told
    assert appeared.event.not_before_text == EVENT["NotBefore"]
    assert gone.event.not_before_text == "Mon, 11 Apr 2022 22:30:00 GMT"


@pytest.mark.parametrize(
    "fault",
    [
        said(),
        said(status=404),
        said(status=410),
        said(status=429),
        said(status=503),
        said(b"{"),
        said(b"{}"),
        ConnectionResetError(),
        TimeoutError(),
    ],
    ids=str,
)
def test_no_fault_makes_an_event_gone_and_watching_goes_on(fault: Response | Failing) -> None:
    assert watched(SCHEDULED, fault, fault, RUNNING, fault, RUNNING, fault, OVER) == [
        "Appeared Freeze",
        "Started Freeze",
        "Gone Freeze True",
    ]


@pytest.mark.parametrize("incarnation", [1, 90])
def test_a_restarted_incarnation_changes_nothing_that_is_still_listed(incarnation: int) -> None:
    assert watched(SCHEDULED, said(document(EVENT, OTHER, incarnation=incarnation))) == [
        "Appeared Freeze",
        "Appeared Reboot",
    ]


def test_an_event_of_another_vm_is_not_told() -> None:
    assert watched(said(document(EVENT, OTHER)), OVER, mine=True, name="Other") == [
        "Appeared Reboot",
        "Gone Reboot False",
    ]
    assert watched(SCHEDULED, OVER, mine=True, name="Third") == []


def test_an_event_that_is_about_this_vm_no_longer_is_gone() -> None:
    dropped = said(document(EVENT | {"Resources": ["WestNO_1"]}, incarnation=3))
    assert watched(SCHEDULED, dropped, OVER, mine=True, name="WestNO_0") == ["Appeared Freeze", "Gone Freeze False"]


def test_the_name_is_asked_for_when_there_is_something_to_compare_it_with() -> None:
    played = watch(OVER, SCHEDULED, NAME, RUNNING, OVER, mine=True)
    assert [told(change) for change in played.told] == ["Appeared Freeze", "Started Freeze", "Gone Freeze True"]
    assert ["instance" in ask.target for ask in played.asks] == [False, False, True, False, False, False]


def test_a_name_that_cannot_be_had_is_asked_for_again_with_the_next_poll() -> None:
    busy = said(status=503)
    assert watched(SCHEDULED, busy, SCHEDULED, TimeoutError(), SCHEDULED, NAME, OVER, mine=True) == [
        "Appeared Freeze",
        "Gone Freeze False",
    ]


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
