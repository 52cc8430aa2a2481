"""Judging what is let in and what is refused, in one version and as such."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

from forenotice.client.events import parse_date
from forenotice.clock import MachineClock
from forenotice.conformance.endpoint.documents import Event
from forenotice.conformance.endpoint.findings import Findings
from forenotice.conformance.endpoint.http import JSON, PATH, Request, Requester, Response, get, post
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

Fault = Callable[[Request], Request]

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


def judge(http: Requester, findings: Findings, version: Version, skip_reason: Callable[[], str]) -> None:
    sound = get(version.name)
    alone = {name: http.send(fault(sound)) for name, fault in FAULTS.items() if name != "body"}

    def expect(clause: str, status: int, response: Response) -> bool:
        return findings.judge(clause, version, response.status == status, str(status), response)

    expect("error.path", 404, alone["path"])
    others = [(clause, http.send(replace(sound, method=method))) for method, clause in OTHER_METHODS.items()]
    for clause, response in (("endpoint.method", alone["method"]), *others):
        expected = f"405 for {response.request.method}"
        if findings.judge(clause, version, response.status == 405, expected, response):
            allowed = response.headers.get("allow", "none")
            named = {name.strip().upper() for name in allowed.split(",")}
            findings.judge("endpoint.allow", version, named == {"GET", "POST"}, "GET, POST", allowed, response)
    expect("endpoint.proxy", 400, alone["proxy"])
    for name, value in PROXY_SIGNS.items():
        expect("endpoint.proxy-signs", 400, http.send(sound.having(**{name: value})))
    expect("endpoint.host", 400, http.send(sound.having(Host=STRANGER)))
    expect("endpoint.no-host", 400, http.send(sound.having(Host="")))
    expect("endpoint.repeated", 400, http.send(replace(sound, query=f"{sound.query}&{sound.query}")))
    if expect("header.required", 400, alone["header"]):
        said, wanted = error(alone["header"]), errors.MISSING_HEADER
        findings.judge("error.header", version, said == wanted, wanted, said, alone["header"])
    else:
        for clause in ("error.header", "error.shape"):
            findings.skip(clause, version, "nothing is refused for its header")
    expect("header.required", 400, http.send(sound.having(Metadata="false")))
    expect("header.case", 200, http.send(replace(sound, headers={"METADATA": "True"})))
    expect("endpoint.path-case", 200, http.send(replace(sound, path="/metadata/scheduledEvents")))
    expect("endpoint.absolute-form", 200, http.send(replace(sound, absolute=True)))
    expect("endpoint.http-1-0", 200, http.send(replace(sound, protocol="HTTP/1.0")))
    # With an event announced, nothing is sent that a wrong server might take for its approval.
    judge_order(http, findings, version, alone, list(alone) if skip_reason() else list(FAULTS))


def judge_order(
    http: Requester, findings: Findings, version: Version, alone: Mapping[str, Response], names: Sequence[str]
) -> None:
    """Two faults at once are told as the first of them is alone, wherever that is told at all."""
    for first, second in pairwise(names):
        sound, before = get(version.name), alone[first]
        if before.status < 400:
            continue
        if second == "body":
            sound = post(version.name, WELL_FORMED)
            before = http.send(FAULTS[first](sound))
        both = http.send(FAULTS[second](FAULTS[first](sound)))
        same = (both.status, both.body) == (before.status, before.body)
        expected = f"the refusal of the {first} before that of the {second} ({before})"
        findings.judge("endpoint.order", version, same, expected, f"{both} {error(both)}".strip(), both)


def judge_versions(http: Requester, findings: Findings, served: Sequence[Version]) -> None:
    """What is refused for its version."""

    def expect(clause: str, request: Request) -> Response:
        response = http.send(request)
        findings.judge(clause, None, response.status == 400, "400", response)
        return response

    sound = get("")
    refusals = [expect("version.missing", replace(sound, query=""))]
    refusals += [expect("version.unknown", replace(sound, query=f"api-version={name}")) for name in NO_SUCH_VERSIONS]
    refusals += [expect("version.latest", replace(sound, query="api-version=latest"))]
    for path in HISTORIC_PATHS:
        expect("version.in-path", replace(sound, path=path, query=""))
    refusals = [response for response in refusals if response.status == 400]
    for response in refusals:
        said = error(response)
        findings.judge("error.version", None, said == errors.INVALID_VERSION, errors.INVALID_VERSION, said, response)
        named = json_of(response).get("newest-versions")
        expected = "newest-versions: the newest three, or all where there are fewer; newest first"
        findings.judge("version.listed", None, _are_newest(named, served), expected, json.dumps(named), response)
    if not refusals:
        for clause in ("error.version", "version.listed"):
            findings.skip(clause, None, "no version is refused")


def judge_rate(http: Requester, findings: Findings, version: Version) -> None:
    most = http.pace.burst
    refused = http.burst(get(version.name), most)
    if refused is None:
        findings.skip("error.rate", None, f"{most} requests at once met no limit, and there need not be one")
    else:
        after = refused.headers.get("retry-after", "")
        sound = after.isdecimal() or parse_date(after) is not None
        findings.judge("error.rate", None, sound, "Retry-After with seconds or a time", after or "none", refused)


def hear(findings: Findings, versions: Mapping[str, Version], response: Response) -> None:
    """What holds for every answer."""
    if not response.status:
        return
    concerned = versions.get(response.request.version)
    for version in versions.values() if concerned is None else (concerned,):
        date = response.headers.get("date", "none")
        moment = parse_date(date)
        if (
            findings.judge("document.date", version, moment is not None, "a Date", date, response)
            and moment is not None
        ):
            now = MachineClock().now()
            near = abs(moment - now) <= SKEW
            findings.judge("document.clock", version, near, f"about {dates.http(now)}", date, response)
        if 400 <= response.status < 500 and response.request.method != "HEAD":
            clause = "error.shape" if _is_known_refusal(response.request, response) else "error.everywhere"
            sound = bool(error(response)) and response.media_type == JSON
            seen = f"{response.media_type} {response.body[:60]!r}"
            findings.judge(clause, version, sound, '{"error":"..."} as JSON in UTF-8', seen, response)


def error(response: Response) -> str:
    """What a refusal says, in the one shape that it should have."""
    said = json_of(response).get("error")
    return said if isinstance(said, str) else ""


def _is_known_refusal(request: Request, response: Response) -> bool:
    """Of the header or the version alone."""
    plain = response.status == 400 and request.method == "GET" and request.path == PATH
    return plain and set(request.headers) <= {"Metadata"} and request.query.count("api-version") < 2


def _are_newest(named: object, served: Sequence[Version]) -> bool:
    """It may know others than we do: of those that it serves none is missing that is newer than one of the three."""
    if not isinstance(named, list) or not 1 <= len(named) <= NEWEST:
        return False
    names = {name for name in named if isinstance(name, str) and DATE.fullmatch(name)}
    oldest = min(names, default="") if len(named) == NEWEST else ""
    return named == sorted(names, reverse=True) and names.issuperset(
        version.name for version in served if version.name > oldest
    )


def json_of(response: Response) -> Mapping[str, object]:
    """Empty where it is no JSON object."""
    try:
        found = json.loads(response.body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


VERSION = "2021-02-01"
OTHER_VERSIONS = ("2017-04-02", "2019-03-11")
NO_VERSIONS = ("2017-04-01", "2021-02", "x")
KEYS = (
    "name",
    "vmId",
    "location",
    "resourceGroupName",
    "subscriptionId",
    "vmSize",
    "osType",
    "platformUpdateDomain",
    "platformFaultDomain",
    "placementGroupId",
    "vmScaleSetName",
    "zone",
    "priority",
    "evictionPolicy",
    "tags",
    "tagsList",
    "resourceId",
)
QUESTION = Request(version="", path="/metadata/instance", query=f"api-version={VERSION}")
NAME = replace(QUESTION, path="/metadata/instance/compute/name", query=f"{QUESTION.query}&format=text")


class Instance:
    def __init__(self, http: Requester, findings: Findings) -> None:
        self._http = http
        self._findings = findings
        self.name = ""
        """Of the VM that asks; empty: unknown."""

    def judge(self) -> None:
        self._judge_versions()
        response = self._http.send(QUESTION)
        found = json_of(response)
        compute, network = found.get("compute"), found.get("network")
        sound = response.status == 200 and isinstance(compute, dict) and isinstance(network, dict)
        if not self._findings.judge(
            "instance.document", None, sound, "200 with compute and network", response
        ) or not isinstance(compute, dict):
            self._findings.skip_all(None, "/metadata/instance is not served", "instance")
            return
        missing = ", ".join(key for key in KEYS if key not in compute)
        self._findings.judge(
            "instance.keys", None, not missing, "all that PROTOCOL.md names", f"none of {missing}", response
        )
        other = next((value for value in _leaves(found) if not isinstance(value, str)), None)
        self._findings.judge("instance.text", None, other is None, "text", json.dumps(other), response)
        self._judge_leaf(compute.get("name"))
        for version in OTHER_VERSIONS:
            self._expect("instance.any-version", replace(QUESTION, query=f"api-version={version}"), 200)
        self._expect("instance.version", replace(QUESTION, query=""), 400)
        for version in NO_VERSIONS:
            self._expect("instance.no-version", replace(QUESTION, query=f"api-version={version}"), 400)
        self._expect("instance.header", FAULTS["header"](QUESTION), 400)
        self._expect("instance.proxy", FAULTS["proxy"](QUESTION), 400)

    def judge_name(self, event: Event, response: Response) -> None:
        """Whether an event that names this VM writes it as it calls itself; others say nothing."""
        resources = event.get("Resources")
        if not self.name or not isinstance(resources, list):
            return
        alike = [name for name in resources if str(name).lower() == self.name.lower()]
        if alike:
            self._findings.judge("instance.name", None, alike == [self.name], self.name, alike[0], response)
        else:
            self._findings.skip("instance.name", None, "no event named the VM that asked")

    def _judge_leaf(self, name: object) -> None:
        response = self._http.send(NAME)
        kind = response.headers.get("content-type", "none")
        said = response.body.decode(errors="replace")
        sound = response.status == 200 and said == name and kind.startswith("text/plain")
        self._findings.judge(
            "instance.leaf", None, sound, f"{name} as text/plain", f"{response} {kind} {said}", response
        )
        if isinstance(name, str):
            self.name = name
        self._expect("instance.leaf-json", replace(NAME, query=QUESTION.query), 400)

    def _judge_versions(self) -> None:
        response = self._http.send(replace(QUESTION, path="/metadata/versions", query=""))
        listed = json_of(response).get("apiVersions")
        names = listed if isinstance(listed, list) else []
        dates = [name for name in names if isinstance(name, str) and DATE.fullmatch(name)]
        sound = response.status == 200 and bool(names) and names == dates
        seen = f"{response} with {json.dumps(listed)}"
        self._findings.judge("instance.versions", None, sound, "200 with apiVersions, a list of dates", seen, response)

    def _expect(self, clause: str, request: Request, status: int) -> None:
        response = self._http.send(request)
        self._findings.judge(clause, None, response.status == status, str(status), response)


def _leaves(root: object) -> Iterator[object]:
    open_nodes = [root]
    while open_nodes:
        match open_nodes.pop():
            case dict() as node:
                open_nodes.extend(node.values())
            case list() as node:
                open_nodes.extend(node)
            case leaf:
                yield leaf
