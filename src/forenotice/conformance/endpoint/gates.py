"""Judging what is let in and what is refused, in one version and as such."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from forenotice.client import moments
from forenotice.clock import MachineClock
from forenotice.conformance.endpoint.asking import JSON, Asker, Heard
from forenotice.conformance.endpoint.questions import PATH, Question, get, post
from forenotice.conformance.endpoint.sheet import Sheet
from forenotice.wire import dates, errors
from forenotice.wire.versions import Version

NO_SUCH_VERSION = "1900-01-01"
NO_SUCH_VERSIONS = (NO_SUCH_VERSION, "2020-07-01-preview", "x")
HISTORIC_PATHS = ("/metadata/latest/scheduledevents", "/metadata/2017-03-01/scheduledevents")
OTHER_METHODS = {
    "PATCH": "endpoint.method",
    "DELETE": "endpoint.method",
    "HEAD": "endpoint.other-methods",
    "OPTIONS": "endpoint.other-methods",
}
"""Many servers answer the last two of themselves."""
FORWARDED = {"X-Forwarded-For": "192.0.2.1"}
PROXY_SIGNS = {"Forwarded": "for=192.0.2.1", "Via": "1.1 proxy"}
NEWEST = 3
"""Versions that a refusal names."""
STRANGER = "rebound.example"
SKEW = timedelta(minutes=5)
"""Between the endpoint's clock and ours."""
GARBAGE = b"garbage"
WELL_FORMED = b'{"StartRequests":[{"EventId":"00000000-0000-4000-8000-000000000000"}]}'
"""Of an event that does not exist."""
DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

Fault = Callable[[Question], Question]

FAULTS: Mapping[str, Fault] = {
    "path": lambda asked: replace(asked, path="/metadata/nothing"),
    "method": lambda asked: replace(asked, method="PUT"),
    "proxy": lambda asked: replace(asked, headers={**asked.headers, **FORWARDED}),
    "header": lambda asked: replace(
        asked, headers={name: value for name, value in asked.headers.items() if name != "Metadata"}
    ),
    "version": lambda asked: replace(asked, query=f"api-version={NO_SUCH_VERSION}"),
    "body": lambda asked: replace(asked, body=GARBAGE),
}
"""In the order in which they are told."""


def judge(asker: Asker, sheet: Sheet, version: Version, hindrance: Callable[[], str]) -> None:
    sound = get(version.name)
    alone = {name: asker.ask(fault(sound)) for name, fault in FAULTS.items() if name != "body"}

    def expect(clause: str, status: int, heard: Heard) -> bool:
        return sheet.judge(clause, version, heard.status == status, str(status), heard)

    expect("error.path", 404, alone["path"])
    others = [(clause, asker.ask(replace(sound, method=method))) for method, clause in OTHER_METHODS.items()]
    for clause, heard in (("endpoint.method", alone["method"]), *others):
        expected = f"405 for {heard.question.method}"
        if sheet.judge(clause, version, heard.status == 405, expected, heard):
            allowed = heard.headers.get("allow", "none")
            named = {name.strip().upper() for name in allowed.split(",")}
            sheet.judge("endpoint.allow", version, named == {"GET", "POST"}, "GET, POST", allowed, heard)
    expect("endpoint.proxy", 400, alone["proxy"])
    for name, value in PROXY_SIGNS.items():
        expect("endpoint.proxy-signs", 400, asker.ask(sound.having(**{name: value})))
    expect("endpoint.host", 400, asker.ask(sound.having(Host=STRANGER)))
    expect("endpoint.no-host", 400, asker.ask(sound.having(Host="")))
    expect("endpoint.repeated", 400, asker.ask(replace(sound, query=f"{sound.query}&{sound.query}")))
    if expect("header.required", 400, alone["header"]):
        said, wanted = error(alone["header"]), errors.MISSING_HEADER
        sheet.judge("error.header", version, said == wanted, wanted, said, alone["header"])
    else:
        for clause in ("error.header", "error.shape"):
            sheet.skip(clause, version, "nothing is refused for its header")
    expect("header.required", 400, asker.ask(sound.having(Metadata="false")))
    expect("header.case", 200, asker.ask(replace(sound, headers={"METADATA": "True"})))
    expect("endpoint.path-case", 200, asker.ask(replace(sound, path="/metadata/scheduledEvents")))
    expect("endpoint.absolute-form", 200, asker.ask(replace(sound, absolute=True)))
    expect("endpoint.http-1-0", 200, asker.ask(replace(sound, protocol="HTTP/1.0")))
    # With an event announced, nothing is sent that a wrong server might take for its approval.
    judge_order(asker, sheet, version, alone, list(alone) if hindrance() else list(FAULTS))


def judge_order(asker: Asker, sheet: Sheet, version: Version, alone: Mapping[str, Heard], names: Sequence[str]) -> None:
    """Two faults at once are told as the first of them is alone, wherever that is told at all."""
    for first, second in pairwise(names):
        sound, before = get(version.name), alone[first]
        if before.status < 400:
            continue
        if second == "body":
            sound = post(version.name, WELL_FORMED)
            before = asker.ask(FAULTS[first](sound))
        both = asker.ask(FAULTS[second](FAULTS[first](sound)))
        same = (both.status, both.body) == (before.status, before.body)
        expected = f"the refusal of the {first} before that of the {second} ({before})"
        sheet.judge("endpoint.order", version, same, expected, f"{both} {error(both)}".strip(), both)


def judge_versions(asker: Asker, sheet: Sheet, served: Sequence[Version]) -> None:
    """What is refused for its version."""

    def expect(clause: str, question: Question) -> Heard:
        heard = asker.ask(question)
        sheet.judge(clause, None, heard.status == 400, "400", heard)
        return heard

    sound = get("")
    refusals = [expect("version.missing", replace(sound, query=""))]
    refusals += [expect("version.unknown", replace(sound, query=f"api-version={name}")) for name in NO_SUCH_VERSIONS]
    refusals += [expect("version.latest", replace(sound, query="api-version=latest"))]
    for path in HISTORIC_PATHS:
        expect("version.in-path", replace(sound, path=path, query=""))
    refusals = [heard for heard in refusals if heard.status == 400]
    for heard in refusals:
        said = error(heard)
        sheet.judge("error.version", None, said == errors.INVALID_VERSION, errors.INVALID_VERSION, said, heard)
        named = json_of(heard).get("newest-versions")
        expected = "newest-versions: the newest three, or all where there are fewer; newest first"
        sheet.judge("version.listed", None, _are_newest(named, served), expected, json.dumps(named), heard)
    if not refusals:
        for clause in ("error.version", "version.listed"):
            sheet.skip(clause, None, "no version is refused")


def judge_rate(asker: Asker, sheet: Sheet, version: Version) -> None:
    most = asker.pace.burst
    refused = asker.burst(get(version.name), most)
    if refused is None:
        sheet.skip("error.rate", None, f"{most} requests at once met no limit, and there need not be one")
    else:
        after = refused.headers.get("retry-after", "")
        sound = after.isdecimal() or moments.read(after) is not None
        sheet.judge("error.rate", None, sound, "Retry-After with seconds or a time", after or "none", refused)


def hear(sheet: Sheet, versions: Mapping[str, Version], heard: Heard) -> None:
    """What holds for every answer."""
    if not heard.status:
        return
    concerned = versions.get(heard.question.version)
    for version in versions.values() if concerned is None else (concerned,):
        date = heard.headers.get("date", "none")
        moment = moments.read(date)
        if sheet.judge("document.date", version, moment is not None, "a Date", date, heard) and moment is not None:
            now = MachineClock().now()
            near = abs(moment - now) <= SKEW
            sheet.judge("document.clock", version, near, f"about {dates.http(now)}", date, heard)
        if 400 <= heard.status < 500 and heard.question.method != "HEAD":
            clause = "error.shape" if _is_known_refusal(heard.question, heard) else "error.everywhere"
            sound = bool(error(heard)) and heard.media_type == JSON
            seen = f"{heard.media_type} {heard.body[:60]!r}"
            sheet.judge(clause, version, sound, '{"error":"..."} as JSON in UTF-8', seen, heard)


def error(heard: Heard) -> str:
    """What a refusal says, in the one shape that it should have."""
    said = json_of(heard).get("error")
    return said if isinstance(said, str) else ""


def _is_known_refusal(question: Question, heard: Heard) -> bool:
    """Of the header or the version alone."""
    plain = heard.status == 400 and question.method == "GET" and question.path == PATH
    return plain and set(question.headers) <= {"Metadata"} and question.query.count("api-version") < 2


def _are_newest(named: object, served: Sequence[Version]) -> bool:
    """It may know others than we do: of those that it serves none is missing that is newer than one of the three."""
    if not isinstance(named, list) or not 1 <= len(named) <= NEWEST:
        return False
    names = {name for name in named if isinstance(name, str) and DATE.fullmatch(name)}
    oldest = min(names, default="") if len(named) == NEWEST else ""
    return named == sorted(names, reverse=True) and names.issuperset(
        version.name for version in served if version.name > oldest
    )


def json_of(heard: Heard) -> Mapping[str, object]:
    """Empty where it is no JSON object."""
    try:
        found = json.loads(heard.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
