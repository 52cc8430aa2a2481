"""How an endpoint is judged: politely, in order, and with what it happens to show."""

import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from time import monotonic

import pytest
from tests.conformance.test_wrong_server import LIVING, PACE, RESTING, Case, having, judged, silent
from tests.conformance.wrong_server import Event, WrongServer, serving
from tests.metadata.running import running

from forenotice.client.discovery import Candidate, parse
from forenotice.conformance.command import ProvokingCommand, by_command
from forenotice.conformance.endpoint import checks, run
from forenotice.conformance.endpoint.http import PATH, Pace, Requester, Response, get
from forenotice.conformance.endpoint.session import Options, Session
from forenotice.conformance.report import Finding, Report, Verdict
from forenotice.core import errors
from forenotice.metadata.options import Options as MetadataOptions
from forenotice.wire import versions
from forenotice.wire.versions import Version

NEWEST = versions.NEWEST
PASSED, FAILED, NOT_APPLICABLE = Verdict
NOWHERE = Candidate(host="127.0.0.1", port=1, how="the test")
ALREADY = {"life.appears": "expected an event, saw others that are announced already"}


def told(report: Report, *verdicts: Verdict) -> dict[str, str]:
    return {finding.clause: finding.reason for finding in report.findings if finding.verdict in (verdicts or Verdict)}


def rate(url: str) -> Finding:
    session = Session(parse(url, "the test"), Options(versions=[NEWEST], strict=True))
    checks.judge_rate(session)
    return next(finding for finding in session.report("").findings if finding.clause == "error.rate")


def test_a_limit_of_requests_says_when_to_come_back() -> None:
    with running(options=MetadataOptions(default_vm="web-0")) as ours:
        assert rate(ours.url).verdict is PASSED
    with serving(WrongServer()) as wrong:
        wrong.refuses_first, wrong.retry_after = 1, None
        assert rate(wrong.url).reason == "expected Retry-After with seconds or a time, saw none"
        assert rate(wrong.url).verdict is NOT_APPLICABLE


def test_after_a_refusal_for_the_rate_requests_are_sent_again_and_more_slowly() -> None:
    with serving(WrongServer()) as wrong:
        wrong.refuses_first = 1
        at, responses = parse(wrong.url, "the test"), list[Response]()
        requester = Requester(at.host, at.port, PACE, responses.append)
        assert requester.send(get(NEWEST.name)).status == 200
        assert [each.status for each in responses] == [429, 200]
        begun = monotonic()
        for _ in range(3):
            requester.send(get(NEWEST.name))
        assert monotonic() - begun > 0.4


def test_an_endpoint_without_a_document_is_judged_as_far_as_it_goes_and_still_provoked() -> None:
    """The real service may have none before the first event: test_known_servers.py has one that goes on from there."""
    assert having(judged(WrongServer(hesitates=3), RESTING), FAILED) == set()
    report = judged(WrongServer("never-appears", hesitates=1000), LIVING)
    assert having(report, FAILED) == {"life.appears"}
    found = told(report)
    assert found["endpoint.get"] == found["header.required"] == found["approval.malformed"] == ""
    assert found["document.shape"] == found["etag.present"] == "no document yet: the 200 had no body"


# Versions that it knows


def test_an_endpoint_that_knows_only_older_versions_is_judged_by_those() -> None:
    asked = ("2017-03-01", "2019-08-01", "2020-07-01")
    # On a busy machine, an answer at once may take half a second.
    report = judged(WrongServer(newest="2019-08-01"), Case(asked, provoked=True), pace=replace(PACE, wait=3))
    newest = {finding.reason for finding in report.findings if finding.where == "2020-07-01"}
    assert newest == {"the endpoint knows no version after 2019-08-01"}
    others = [finding for finding in report.findings if finding.where != "2020-07-01"]
    assert {finding.clause for finding in others if finding.verdict is not PASSED} == {"error.rate"}


def test_an_endpoint_that_knows_fewer_than_three_versions_names_those() -> None:
    every = [version.name for version in versions.ALL]
    report = judged(WrongServer("no-wait", newest="2017-08-01"), Case(every))
    assert having(report, FAILED) == {"wait.held"}
    assert "version.listed" in having(report, PASSED)
    newer = {finding.reason for finding in report.findings if finding.where > "2017-08-01"}
    assert newer == {"the endpoint knows no version after 2017-08-01"}


def test_an_endpoint_that_knows_no_version_fails_in_each() -> None:
    report = judged(WrongServer(newest="2016"), Case(["2019-08-01", "2020-07-01"]), strict=False)
    failed = [finding for finding in report.findings if finding.verdict is FAILED]
    assert [(finding.clause, finding.where) for finding in failed] == [
        ("endpoint.get", "2019-08-01"),
        ("endpoint.get", "2020-07-01"),
    ]


def test_what_only_we_promise_does_not_fail_others() -> None:
    report = judged(WrongServer("no-wait", "no-allow", "unknown-accepted"), RESTING, strict=False)
    assert having(report, FAILED) == set()
    found = {finding.clause: finding for finding in report.findings if "--strict" in finding.reason}
    assert {clause: finding.reason for clause, finding in found.items()} == {
        "endpoint.allow": "judged only with --strict; expected GET, POST, saw none",
        "wait.held": "judged only with --strict; expected 304 when the time is up, saw 304 at once",
        "approval.unknown-id": "judged only with --strict; expected 400, saw 200",
    }
    assert {finding.ours for finding in found.values()} == {True}
    assert found["endpoint.allow"].request == f"PUT {PATH}?api-version=2020-07-01 [Metadata: true]"


# Events that are there already, or start by themselves


def test_with_an_event_announced_nothing_is_sent_that_might_approve_it() -> None:
    wrong = WrongServer("empty-list-accepted").provoke()
    report = judged(wrong, RESTING)
    assert wrong.posts == 0
    assert having(report, FAILED) == set()
    found = told(report)
    assert found["approval.malformed"].startswith("an event is announced: nothing is sent")
    assert found["event.id"] == ""
    assert found["life.appears"] == "needs an event: give --provoke"


def test_an_event_that_comes_meanwhile_is_not_approved_by_chance() -> None:
    wrong = WrongServer("empty-list-accepted", "no-wait")

    def progress(step: str) -> None:
        if "what is no approval" in step:
            wrong.provoke()

    found = told(judged(wrong, RESTING, progress=progress))
    assert found["approval.malformed"].startswith("an event is announced: nothing is sent")
    assert found["endpoint.order"] == ""


def test_an_event_that_is_born_started_is_judged_as_far_as_it_goes() -> None:
    report = judged(WrongServer(born_started=True), LIVING)
    assert having(report, FAILED) == set()
    found = told(report)
    assert found["approval.accepted"] == found["life.notice"] == "the event was Started from the beginning"
    assert found["life.gone"] == found["approval.started"] == ""


class Beside(WrongServer):
    """Announces an event more than was provoked."""

    def _document(self, version: str) -> dict[str, object]:
        document = super()._document(version)
        if isinstance(document["Events"], list) and (self._event or self._ended):
            other = Event("00000000-0000-4000-8000-00000000000A", made=datetime(2100, 1, 1, tzinfo=UTC))
            document["Events"].append(self._shown(other, version))
        return document


def test_other_events_are_neither_provoked_beside_nor_taken_for_the_one_that_is_over() -> None:
    assert told(judged(WrongServer("no-wait").provoke(), LIVING, strict=False), FAILED) == ALREADY
    report = judged(Beside("no-wait"), LIVING, strict=False)
    assert told(report, FAILED) == ALREADY
    assert having(report, PASSED) >= {"life.same-id", "life.gone", "life.forwards"}


class Hasty(WrongServer):
    """Starts its event by itself, once it was shown."""

    def _document(self, version: str) -> dict[str, object]:
        document = super()._document(version)
        if self._event is not None:
            self._start(self._event)
        return document


def test_an_event_that_starts_before_anything_was_sent_says_nothing_of_approvals() -> None:
    report = judged(Hasty("no-wait"), LIVING, strict=False)
    assert having(report, FAILED) == set()
    assert told(report)["approval.takes-effect"] == "the event had started before the kit sent anything"


# Time


def test_an_event_that_stays_in_a_status_that_does_not_exist_is_not_waited_for_as_long_as_a_started_one() -> None:
    begun = monotonic()
    pace = replace(PACE, ends=600, lingers=0.2)
    report = judged(WrongServer("completed-stays", "no-wait"), LIVING, pace=pace, strict=False)
    assert having(report, FAILED) == {"event.status", "life.gone"}
    assert monotonic() - begun < 60


@pytest.mark.parametrize(("seconds", "effect"), [(3, ""), (-5, "its NotBefore had been reached when it was approved")])
def test_a_short_notice_is_kept_for_the_approval(seconds: float, effect: str) -> None:
    report = judged(WrongServer(notice=seconds), LIVING, pace=replace(PACE, wait=0.2))
    assert having(report, FAILED) == {"life.notice"}
    found = told(report)
    assert found["approval.takes-effect"] == effect
    assert found["approval.all-or-nothing"] == "the notice was over before it could be sent"


def test_an_approval_without_effect_leaves_time_for_another() -> None:
    """It is not waited for until NotBefore, when the event would start by itself."""
    wrong = WrongServer("id-case", "unknown-accepted", "no-wait", notice=2)
    report = judged(wrong, LIVING, pace=replace(PACE, starts=60), strict=False)
    assert having(report, FAILED) == {"life.notice", "approval.id-case"}
    assert told(report)["approval.takes-effect"] == ""


def test_an_approval_without_effect_is_not_waited_for_longer_than_others_took() -> None:
    begun, steps = monotonic(), list[str]()
    wrong = WrongServer("first-only", "unknown-accepted", "no-wait")
    pace = replace(PACE, starts=600, starts_again=0.2)
    report = judged(wrong, LIVING, pace=pace, strict=False, progress=steps.append)
    assert having(report, FAILED) == {"approval.many"}
    assert monotonic() - begun < 60
    assert "waiting for the event to end, at most 3 s" in steps


# Wrong approvals


@pytest.mark.parametrize("mistake", ["any-id-starts", "starts-though-refused"])
def test_where_any_approval_starts_an_event_a_good_one_proves_nothing(mistake: str) -> None:
    report = judged(WrongServer(mistake, "no-wait"), LIVING, strict=False)
    assert having(report, FAILED) == {"approval.no-effect"}
    found = {finding.clause: finding for finding in report.findings}
    assert found["approval.no-effect"].request.startswith(f"POST {PATH}?api-version=2020-07-01 [Metadata: true] ")
    for clause in ("approval.accepted", "approval.takes-effect", "approval.many", "approval.id-case"):
        assert found[clause].reason == "an approval of no event starts an event, too (approval.no-effect)"
    assert found["life.gone"].verdict is PASSED


def test_what_a_started_event_kept_from_being_sent_is_sent_after_its_end() -> None:
    """A good id beside an unknown one starts the event; so does an approval without the header, which comes later."""
    report = judged(WrongServer("unknown-accepted", "no-header-check", "no-wait"), LIVING, strict=False)
    assert having(report, FAILED) == {"header.required", "header.required-on-post"}
    assert told(report)["approval.many"] == ""


# Endpoints that do not answer


@contextmanager
def closed_port() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_an_endpoint_that_stops_answering_gets_no_more_requests() -> None:
    wrong = WrongServer()

    def progress(step: str) -> None:
        wrong.silent |= "what is no approval" in step

    report = judged(wrong, RESTING, pace=replace(PACE, answer=0.1), strict=False, progress=progress)
    found = told(report, FAILED, NOT_APPLICABLE)
    assert found["endpoint.get"] == "expected 200, saw no answer (timed out)"
    assert found["instance.document"] == found["wait.held"] == found["life.gone"] == "it stopped answering"
    assert "header.required" not in found


def test_an_endpoint_that_leaves_only_some_requests_without_an_answer_gets_all() -> None:
    wrong = WrongServer()
    wrong.silent_on = frozenset({"HEAD", "DELETE", "PATCH", "OPTIONS"})
    report = judged(wrong, RESTING, pace=replace(PACE, answer=0.5, wait=0.2), strict=False)
    assert having(report, FAILED) == {"endpoint.method"}


def test_an_endpoint_that_always_refuses_for_the_rate_gets_no_more_requests() -> None:
    wrong, steps = WrongServer(), list[str]()
    wrong.refuses_first, wrong.retry_after = 1000, "3600"
    report = judged(wrong, RESTING, pace=replace(PACE, patience=30), strict=False)
    assert having(report, FAILED) == {"endpoint.get"}
    wrong.retry_after = "1"
    judged(wrong, RESTING, pace=replace(PACE, patience=1.5), strict=False, progress=steps.append)
    assert "refused for the rate: waiting 1 s" in steps


# The command that provokes


def test_a_command_that_fails_says_why_and_the_rest_is_reported() -> None:
    failing = by_command([sys.executable, "-c", "import sys; sys.exit('no such VM')"])
    with serving(WrongServer()) as wrong:
        options = Options(versions=[NEWEST], provoke=failing, pace=Pace(burst=1, wait=0.4, appears=30))
        report = run.judge(parse(wrong.url, "the test"), options, silent)
    found = told(report)
    assert having(report, FAILED) == {"life.appears"}
    assert found["life.appears"] == "expected an event, saw none: the command ended with code 1: no such VM"
    assert found["life.gone"].startswith("there was no event to follow: none: the command ended")
    assert found["endpoint.get"] == ""


def test_a_command_that_cannot_be_run() -> None:
    with pytest.raises(errors.RefusedError, match="there is no program '/no/such'"):
        by_command(["/no/such"])
    with pytest.raises(errors.RefusedError, match="--provoke: '/' cannot be run: Permission denied"):
        ProvokingCommand(["/"])


def test_a_command_that_runs_and_writes_for_ever_is_ended() -> None:
    command = ProvokingCommand(["yes"], grace=0.1)
    begun = monotonic()
    assert command.failure() == ""
    command.close()
    assert monotonic() - begun < 30


# Documents that are none


def failures(*bodies: bytes, read_in: Sequence[Version] = (NEWEST,), **headers: str) -> dict[str, str]:
    session = Session(NOWHERE, Options(versions=versions.ALL, strict=True))
    found = {"content-type": "application/json; charset=utf-8", "etag": '"1"', **headers}
    for body, version in product(bodies, read_in):
        response = Response(request=get(version.name), status=200, headers=found, body=body, asked=0, at=0)
        session.read(version, response)
    return {finding.clause: finding.seen for finding in session.report("").findings if finding.verdict is FAILED}


@pytest.mark.parametrize(
    ("body", "clause"),
    [
        (b"[]", "document.shape"),
        (b'{"DocumentIncarnation":1,"Events":[1]}', "document.shape"),
        (b'{"DocumentIncarnation":1,"DocumentIncarnation":1,"Events":[]}', "document.compact"),
        (b"\xff", "document.compact"),
        (b"[" * 100_000, "document.compact"),
        (b'{"DocumentIncarnation":[],"Events":[]}', "document.number"),
    ],
)
def test_documents_that_are_none(body: bytes, clause: str) -> None:
    assert set(failures(body)) == {clause}


def test_a_document_that_was_there_does_not_become_empty() -> None:
    assert failures(b"", b'{"DocumentIncarnation":1,"Events":[]}', b"") == {"document.compact": "no body"}


def test_events_that_are_none() -> None:
    values = ("null", "[]", "{}", "1", '""')
    bodies = [
        f'{{"DocumentIncarnation":{number},"Events":[{{{",".join(f""""{key}":{value}""" for key in NEWEST.keys)}}}]}}'
        for number, value in enumerate(values, 1)
    ]
    found = failures(*(body.encode() for body in bodies))
    assert found.keys() >= {"event.id", "event.status", "event.resources", "version.types"}


def test_events_without_an_id_are_not_compared_between_versions() -> None:
    body = b'{"DocumentIncarnation":1,"Events":[{"EventType":"Reboot"},{"EventType":"Freeze"}]}'
    assert "version.same-facts" not in failures(body, read_in=(NEWEST, versions.ALL[0]))
