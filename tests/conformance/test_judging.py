"""How an endpoint is judged: politely, in order, and with what it happens to show."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic

import pytest
from tests.conformance.test_wrong_server import PACE, Case, having, judged, living, silent
from tests.conformance.wrong_server import Event, Mistake, WrongServer, serving
from tests.metadata.running import running

from forenotice.client.discovery import parse
from forenotice.conformance.command import ProvokingCommand, by_command
from forenotice.conformance.endpoint import checks, run
from forenotice.conformance.endpoint.documents import Documents
from forenotice.conformance.endpoint.findings import Findings
from forenotice.conformance.endpoint.http import PATH, Pace, Requester, Response, get
from forenotice.conformance.endpoint.run import Options
from forenotice.conformance.report import Finding, Verdict
from forenotice.core import errors
from forenotice.metadata.options import Options as MetadataOptions
from forenotice.wire import versions

NEWEST = versions.NEWEST


def requester(url: str, pace: Pace = PACE) -> tuple[Requester, list[Response]]:
    at, response = parse(url, "the test"), list[Response]()
    return Requester(at.host, at.port, pace, response.append), response


def rate(url: str) -> Finding:
    findings = Findings([NEWEST], strict=True)
    checks.judge_rate(requester(url, Pace())[0], findings, NEWEST)
    return next(finding for finding in findings.report("").findings if finding.clause == "error.rate")


def test_our_limit_of_requests_says_when_to_come_back() -> None:
    with running(options=MetadataOptions(default_vm="web-0")) as ours:
        assert rate(ours.url).verdict is Verdict.PASSED


def test_a_limit_that_does_not_say_when_to_come_back() -> None:
    with serving(WrongServer()) as wrong:
        wrong.refuses_first, wrong.retry_after = 1, None
        assert rate(wrong.url).told == "expected Retry-After with seconds or a time, saw none"
        assert rate(wrong.url).verdict is Verdict.NOT_APPLICABLE


def test_who_refuses_for_the_rate_is_asked_again_and_more_slowly() -> None:
    with serving(WrongServer()) as wrong:
        wrong.refuses_first = 1
        ask, response = requester(wrong.url)
        assert ask.send(get(NEWEST.name)).status == 200
        assert [each.status for each in response] == [429, 200]
        begun = monotonic()
        for _ in range(3):
            ask.send(get(NEWEST.name))
        assert monotonic() - begun > 0.4


def test_an_endpoint_that_hesitates_at_first_is_none_the_worse() -> None:
    assert having(judged(WrongServer(hesitates=3), Case("")), Verdict.FAILED) == set()


def test_an_endpoint_without_a_document_is_judged_as_far_as_it_goes_and_still_provoked() -> None:
    """The real service may have none before the first event: test_known_servers.py has one that goes on from there."""
    report = judged(WrongServer(Mistake.NEVER_APPEARS, hesitates=1000), living(""))
    assert having(report, Verdict.FAILED) == {"life.appears"}
    told = {finding.clause: finding.told for finding in report.findings}
    assert told["endpoint.get"] == told["header.required"] == told["approval.malformed"] == ""
    assert told["document.shape"] == told["etag.present"] == "no document yet: the 200 had no body"


def test_a_document_that_was_there_does_not_become_empty() -> None:
    findings = Findings([NEWEST], strict=False)
    documents = Documents(requester("http://127.0.0.1:1")[0], findings, NEWEST)
    headers = {"content-type": "application/json; charset=utf-8"}
    for body in (b"", b'{"DocumentIncarnation":1,"Events":[]}', b""):
        response = Response(request=get(NEWEST.name), status=200, headers=headers, body=body, asked=0, at=0)
        documents.read(NEWEST, response)
    (failed,) = (finding for finding in findings.report("").findings if finding.verdict is Verdict.FAILED)
    assert (failed.clause, failed.seen) == ("document.compact", "no body")


def test_an_endpoint_that_knows_only_older_versions_is_judged_by_those() -> None:
    asked = ("2017-03-01", "2019-08-01", "2020-07-01")
    report = judged(WrongServer(newest="2019-08-01"), living("", asked))
    assert having(report, Verdict.FAILED) == set()
    newest = {finding.told for finding in report.findings if finding.where == "2020-07-01"}
    assert newest == {"the endpoint knows no version after 2019-08-01"}
    others = [finding for finding in report.findings if finding.where != "2020-07-01"]
    assert {finding.clause for finding in others if finding.verdict is not Verdict.PASSED} == {"error.rate"}


def test_an_endpoint_that_knows_fewer_than_three_versions_names_those() -> None:
    report = judged(WrongServer(Mistake.NO_WAIT, newest="2017-08-01"), Case("", ("2017-03-01", "2017-08-01")))
    assert having(report, Verdict.FAILED) == {"wait.held"}
    assert "version.listed" in having(report, Verdict.PASSED)


def test_nothing_is_said_of_versions_that_are_newer_than_the_endpoint() -> None:
    every = [version.name for version in versions.ALL]
    report = judged(WrongServer(Mistake.NO_WAIT, newest="2017-11-01"), Case("", every), strict=False)
    assert having(report, Verdict.FAILED) == set()
    newer = {finding.told for finding in report.findings if finding.where > "2017-11-01"}
    assert newer == {"the endpoint knows no version after 2017-11-01"}


def test_an_endpoint_that_knows_no_version_fails_in_each() -> None:
    report = judged(WrongServer(newest="2016"), Case("", ["2019-08-01", "2020-07-01"]), strict=False)
    told = [finding for finding in report.findings if finding.verdict is Verdict.FAILED]
    assert [(finding.clause, finding.where) for finding in told] == [
        ("endpoint.get", "2019-08-01"),
        ("endpoint.get", "2020-07-01"),
    ]


def test_what_only_we_promise_does_not_fail_others() -> None:
    report = judged(WrongServer(Mistake.NO_WAIT, Mistake.NO_ALLOW, Mistake.UNKNOWN_ACCEPTED), Case(""), strict=False)
    assert having(report, Verdict.FAILED) == set()
    found = {finding.clause: finding for finding in report.findings if "--strict" in finding.told}
    assert {clause: finding.told for clause, finding in found.items()} == {
        "endpoint.allow": "judged only with --strict; expected GET, POST, saw none",
        "wait.held": "judged only with --strict; expected 304 when the time is up, saw 304 at once",
        "approval.unknown-id": "judged only with --strict; expected 400, saw 200",
    }
    assert {finding.ours for finding in found.values()} == {True}
    assert found["endpoint.allow"].request == f"PUT {PATH}?api-version=2020-07-01 [Metadata: true]"


def test_with_an_event_announced_nothing_is_sent_that_might_approve_it() -> None:
    wrong = WrongServer(Mistake.EMPTY_LIST_ACCEPTED)
    wrong.provoke()
    report = judged(wrong, Case(""))
    assert wrong.posts == 0
    assert having(report, Verdict.FAILED) == set()
    told = {finding.clause: finding.told for finding in report.findings}
    assert told["approval.malformed"].startswith("an event is announced: nothing is sent")
    assert told["event.id"] == ""
    assert told["life.appears"] == "needs an event: give --provoke"


def test_an_event_that_comes_meanwhile_is_not_approved_by_chance() -> None:
    wrong = WrongServer(Mistake.EMPTY_LIST_ACCEPTED, Mistake.NO_WAIT)

    def progress(said: str) -> None:
        if "what is no approval" in said:
            wrong.provoke()

    report = judged(wrong, Case(""), progress=progress)
    told = {finding.clause: finding.told for finding in report.findings}
    assert told["approval.malformed"].startswith("an event is announced: nothing is sent")
    assert told["endpoint.order"] == ""


def test_an_event_that_is_born_started_is_judged_as_far_as_it_goes() -> None:
    wrong = WrongServer(born_started=True)
    report = judged(wrong, living(""))
    assert having(report, Verdict.FAILED) == set()
    told = {finding.clause: finding.told for finding in report.findings}
    assert told["approval.accepted"] == told["life.notice"] == "the event was Started from the beginning"
    assert told["life.gone"] == told["approval.started"] == ""


def test_events_are_not_provoked_beside_others() -> None:
    wrong = WrongServer()
    wrong.provoke()
    report = judged(wrong, living(""))
    told = {finding.clause: finding.told for finding in report.findings if finding.verdict is Verdict.FAILED}
    assert told == {"life.appears": "expected an event, saw others that are announced already"}


class Beside(WrongServer):
    """Announces an event more than it was asked for."""

    def _document(self, version: str) -> dict[str, object]:
        document = super()._document(version)
        if isinstance(document["Events"], list) and (self._event or self._ended):
            other = Event("00000000-0000-4000-8000-00000000000A", made=datetime(2100, 1, 1, tzinfo=UTC))
            document["Events"].append(self._shown(other, version))
        return document


def test_another_event_is_not_taken_for_the_one_that_is_over() -> None:
    report = judged(Beside(Mistake.NO_WAIT), living(""), strict=False)
    told = {finding.clause: finding.told for finding in report.findings if finding.verdict is Verdict.FAILED}
    assert told == {"life.appears": "expected an event, saw others that are announced already"}
    assert having(report, Verdict.PASSED) >= {"life.same-id", "life.gone", "life.forwards"}


class Hasty(WrongServer):
    """Starts its event by itself, once it was shown."""

    def _document(self, version: str) -> dict[str, object]:
        document = super()._document(version)
        if self._event is not None:
            self._start(self._event)
        return document


def test_an_event_that_starts_before_anything_was_sent_says_nothing_of_approvals() -> None:
    report = judged(Hasty(Mistake.NO_WAIT), living(""), strict=False)
    assert having(report, Verdict.FAILED) == set()
    told = {finding.clause: finding.told for finding in report.findings}
    assert told["approval.takes-effect"] == "the event had started before the kit sent anything"


def test_an_event_that_stays_in_a_status_that_does_not_exist_is_not_waited_for_as_long_as_a_started_one() -> None:
    begun = monotonic()
    wrong = WrongServer(Mistake.COMPLETED_STAYS, Mistake.NO_WAIT)
    report = judged(wrong, living(""), pace=replace(PACE, ends=600, lingers=0.2), strict=False)
    assert having(report, Verdict.FAILED) == {"event.status", "life.gone"}
    assert monotonic() - begun < 60


@pytest.mark.parametrize(("seconds", "effect"), [(3, ""), (-5, "its NotBefore had been reached when it was approved")])
def test_a_short_notice_is_kept_for_the_approval(seconds: float, effect: str) -> None:
    report = judged(WrongServer(notice=seconds), living(""), pace=replace(PACE, wait=0.2))
    assert having(report, Verdict.FAILED) == {"life.notice"}
    told = {finding.clause: finding.told for finding in report.findings}
    assert told["approval.takes-effect"] == effect
    assert told["approval.all-or-nothing"] == "the notice was over before it could be sent"


@pytest.mark.parametrize("mistake", [Mistake.ANY_ID_STARTS, Mistake.STARTS_THOUGH_REFUSED])
def test_where_any_approval_starts_an_event_a_good_one_proves_nothing(mistake: Mistake) -> None:
    report = judged(WrongServer(mistake, Mistake.NO_WAIT), living(""), strict=False)
    assert having(report, Verdict.FAILED) == {"approval.no-effect"}
    told = {finding.clause: finding for finding in report.findings}
    assert told["approval.no-effect"].request.startswith(f"POST {PATH}?api-version=2020-07-01 [Metadata: true] ")
    for clause in ("approval.accepted", "approval.takes-effect", "approval.many", "approval.id-case"):
        assert told[clause].told == "an approval of no event starts an event, too (approval.no-effect)"
    assert told["life.gone"].verdict is Verdict.PASSED


def test_an_approval_without_effect_leaves_time_for_another() -> None:
    """It is not waited for until NotBefore, when the event would start by itself."""
    wrong = WrongServer(Mistake.ID_CASE, Mistake.UNKNOWN_ACCEPTED, Mistake.NO_WAIT, notice=2)
    report = judged(wrong, living(""), pace=replace(PACE, starts=60), strict=False)
    assert having(report, Verdict.FAILED) == {"life.notice", "approval.id-case"}
    told = {finding.clause: finding.told for finding in report.findings}
    assert told["approval.takes-effect"] == ""


def test_what_a_started_event_kept_from_being_sent_is_sent_after_its_end() -> None:
    """A good id beside an unknown one starts the event; so does an approval without the header, which comes later."""
    wrong = WrongServer(Mistake.UNKNOWN_ACCEPTED, Mistake.NO_HEADER_CHECK, Mistake.NO_WAIT)
    report = judged(wrong, living(""), strict=False)
    assert having(report, Verdict.FAILED) == {"header.required", "header.required-on-post"}
    told = {finding.clause: finding.told for finding in report.findings}
    assert told["approval.many"] == ""


def test_an_approval_without_effect_is_not_waited_for_longer_than_others_took() -> None:
    begun, said = monotonic(), list[str]()
    wrong = WrongServer(Mistake.FIRST_ONLY, Mistake.UNKNOWN_ACCEPTED, Mistake.NO_WAIT)
    pace = replace(PACE, starts=600, starts_again=0.2)
    report = judged(wrong, living(""), pace=pace, strict=False, progress=said.append)
    assert having(report, Verdict.FAILED) == {"approval.many"}
    assert monotonic() - begun < 60
    assert "waiting for the event to end, at most 3 s" in said


@contextmanager
def closed_port() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_nobody_there() -> None:
    with closed_port() as url, pytest.raises(errors.UnavailableError, match="cannot be judged: connection refused"):
        run.judge(parse(url, "the test"), Options(), silent)


def test_who_stops_answering_is_not_asked_for_ever() -> None:
    wrong = WrongServer()
    with serving(wrong):

        def progress(said: str) -> None:
            wrong.silent |= "what is no approval" in said

        options = Options(versions=[NEWEST], pace=replace(PACE, answer=0.1))
        report = run.judge(parse(wrong.url, "the test"), options, progress)
    told = {finding.clause: finding.told for finding in report.findings if finding.verdict is not Verdict.PASSED}
    assert told["endpoint.get"] == "expected 200, saw no answer (timed out)"
    assert told["instance.document"] == told["wait.held"] == told["life.gone"] == "it stopped answering"
    assert "header.required" not in told


def test_who_leaves_only_some_questions_without_an_answer_is_asked_on() -> None:
    with serving(WrongServer()) as wrong:
        wrong.silent_on = frozenset({"HEAD", "DELETE", "PATCH", "OPTIONS"})
        options = Options(versions=[NEWEST], pace=replace(PACE, answer=0.1, wait=0.2))
        report = run.judge(parse(wrong.url, "the test"), options, silent)
    assert having(report, Verdict.FAILED) == {"endpoint.method"}


def test_who_always_refuses_for_the_rate_is_not_asked_for_ever() -> None:
    with serving(WrongServer()) as wrong:
        wrong.refuses_first, wrong.retry_after = 1000, "3600"
        said: list[str] = []
        options = Options(versions=[NEWEST], pace=replace(PACE, patience=30))
        report = run.judge(parse(wrong.url, "the test"), options, said.append)
        assert having(report, Verdict.FAILED) == {"endpoint.get"}
        wrong.retry_after = "1"
        options = Options(versions=[NEWEST], pace=replace(PACE, patience=1.5))
        run.judge(parse(wrong.url, "the test"), options, said.append)
    assert "refused for the rate: waiting 1 s" in said


def test_a_command_that_fails_says_why_and_what_was_found_is_told() -> None:
    code = "import sys; sys.exit('no such VM')"
    failing = by_command([sys.executable, "-c", code])
    with serving(WrongServer()) as wrong:
        options = Options(versions=[NEWEST], provoke=failing, pace=Pace(burst=1, wait=0.4, appears=30))
        report = run.judge(parse(wrong.url, "the test"), options, silent)
    told = {finding.clause: finding.told for finding in report.findings}
    assert having(report, Verdict.FAILED) == {"life.appears"}
    assert told["life.appears"] == "expected an event, saw none: the command ended with code 1: no such VM"
    assert told["life.gone"].startswith("there was no event to follow: none: the command ended")
    assert told["endpoint.get"] == ""


def test_a_command_that_cannot_be_run() -> None:
    with pytest.raises(errors.RefusedError, match="there is no program '/no/such'"):
        by_command(["/no/such"])
    with pytest.raises(errors.RefusedError, match="--provoke: '/' cannot be run: Permission denied"):
        ProvokingCommand(["/"])


def test_a_command_that_goes_on_and_talks_for_ever_is_ended() -> None:
    command = ProvokingCommand(["yes"], grace=0.1)
    begun = monotonic()
    assert command.failure() == ""
    command.close()
    assert monotonic() - begun < 30


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"[]", "document.shape"),
        (b'{"DocumentIncarnation":1,"Events":[1]}', "document.shape"),
        (b'{"DocumentIncarnation":1,"DocumentIncarnation":1,"Events":[]}', "document.compact"),
        (b"\xff", "document.compact"),
        (b"[" * 100_000, "document.compact"),
        (b'{"DocumentIncarnation":[],"Events":[]}', "document.number"),
    ],
)
def test_documents_that_are_none(body: bytes, told: str) -> None:
    findings = Findings([NEWEST], strict=True)
    documents = Documents(requester("http://127.0.0.1:1")[0], findings, NEWEST)
    headers = {"content-type": "application/json; charset=utf-8", "etag": '"1"'}
    response = Response(request=get(NEWEST.name), status=200, headers=headers, body=body, asked=0, at=0)
    documents.read(NEWEST, response)
    assert having(findings.report(""), Verdict.FAILED) == {told}


def test_events_that_are_none() -> None:
    findings = Findings([NEWEST], strict=True)
    documents = Documents(requester("http://127.0.0.1:1")[0], findings, NEWEST)
    values = ("null", "[]", "{}", "1", '""')
    for number, value in enumerate(values, 1):
        pairs = ",".join(f'"{key}":{value}' for key in NEWEST.keys)
        body = f'{{"DocumentIncarnation":{number},"Events":[{{{pairs}}}]}}'.encode()
        documents.read(NEWEST, Response(request=get(NEWEST.name), status=200, body=body, asked=0, at=0))
    assert having(findings.report(""), Verdict.FAILED) >= {
        "event.id",
        "event.status",
        "event.resources",
        "version.types",
    }
