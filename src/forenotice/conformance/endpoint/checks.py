"""Judging what is served and what is refused while nothing happens: requests, versions, tags, waits, the instance."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from time import monotonic

from forenotice.client.events import parse_date
from forenotice.conformance.endpoint.documents import Document, Event
from forenotice.conformance.endpoint.http import PendingRequest, Request, Response, get, pause, post
from forenotice.conformance.endpoint.session import Session, error, json_of
from forenotice.wire import errors
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
NEWEST = 3
"""Versions that a refusal names."""
WELL_FORMED = b'{"StartRequests":[{"EventId":"00000000-0000-4000-8000-000000000000"}]}'
"""Of an event that does not exist."""
DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

FAULTS: Mapping[str, Callable[[Request], Request]] = {
    "path": lambda sound: replace(sound, path="/metadata/nothing"),
    "method": lambda sound: replace(sound, method="PUT"),
    "proxy": lambda sound: sound.having(X_Forwarded_For="192.0.2.1"),
    "header": lambda sound: sound.having(Metadata=""),
    "version": lambda sound: replace(sound, query=f"api-version={NO_SUCH_VERSION}"),
    "body": lambda sound: replace(sound, body=b"garbage"),
}
"""In the order in which they are refused."""


def judge(session: Session, version: Version) -> None:
    """What is let in and what is refused."""
    sound = get(version.name)

    def expect(clause: str, status: int, request: Request) -> Response:
        return session.expect(clause, version, status, request)

    path = expect("error.path", 404, FAULTS["path"](sound))
    method = _judge_method(session, version, "endpoint.method", FAULTS["method"](sound))
    for name, clause in OTHER_METHODS.items():
        _judge_method(session, version, clause, replace(sound, method=name))
    proxy = expect("endpoint.proxy", 400, FAULTS["proxy"](sound))
    expect("endpoint.proxy-signs", 400, sound.having(Forwarded="for=192.0.2.1"))
    expect("endpoint.proxy-signs", 400, sound.having(Via="1.1 proxy"))
    expect("endpoint.host", 400, sound.having(Host="rebound.example"))
    expect("endpoint.no-host", 400, sound.having(Host=""))
    expect("endpoint.repeated", 400, replace(sound, query=f"{sound.query}&{sound.query}"))
    header = expect("header.required", 400, FAULTS["header"](sound))
    if header.status == 400:
        wanted, found = errors.MISSING_HEADER, error(header)
        session.judge("error.header", version, found == wanted, wanted, found, header)
    else:
        for clause in ("error.header", "error.shape"):
            session.skip(clause, version, "nothing is refused for its header")
    expect("header.required", 400, sound.having(Metadata="false"))
    expect("header.case", 200, replace(sound, headers={"METADATA": "True"}))
    expect("endpoint.path-case", 200, replace(sound, path="/metadata/scheduledEvents"))
    expect("endpoint.absolute-form", 200, replace(sound, absolute=True))
    expect("endpoint.http-1-0", 200, replace(sound, protocol="HTTP/1.0"))
    unknown = session.send(FAULTS["version"](sound))
    alone = {"path": path, "method": method, "proxy": proxy, "header": header, "version": unknown}
    # With an event announced, nothing is sent that a wrong server might take for its approval.
    _judge_order(session, version, alone, list(alone) if session.risk() else list(FAULTS))


def _judge_method(session: Session, version: Version, clause: str, request: Request) -> Response:
    response = session.expect(clause, version, 405, request, f"405 for {request.method}")
    if response.status == 405:
        allowed = response.headers.get("allow", "none")
        named = {name.strip().upper() for name in allowed.split(",")}
        session.judge("endpoint.allow", version, named == {"GET", "POST"}, "GET, POST", allowed, response)
    return response


def _judge_order(session: Session, version: Version, alone: Mapping[str, Response], names: Sequence[str]) -> None:
    """Two faults at once are refused as the first of them is alone, wherever that is refused at all."""
    for first, second in pairwise(names):
        sound, before = get(version.name), alone[first]
        if before.status < 400:
            continue
        if second == "body":
            sound = post(version.name, WELL_FORMED)
            before = session.send(FAULTS[first](sound))
        both = session.send(FAULTS[second](FAULTS[first](sound)))
        same = (both.status, both.body) == (before.status, before.body)
        expected = f"the refusal of the {first} before that of the {second} ({before})"
        session.judge("endpoint.order", version, same, expected, f"{both} {error(both)}".strip(), both)


def judge_versions(session: Session, served: Sequence[Version]) -> None:
    """What is refused for its version."""
    sound = get("")
    unknown = [("version.missing", ""), *(("version.unknown", f"api-version={name}") for name in NO_SUCH_VERSIONS)]
    refusals = [
        session.expect(clause, None, 400, replace(sound, query=query))
        for clause, query in (*unknown, ("version.latest", "api-version=latest"))
    ]
    for path in HISTORIC_PATHS:
        session.expect("version.in-path", None, 400, replace(sound, path=path, query=""))
    refusals = [response for response in refusals if response.status == 400]
    for response in refusals:
        wanted, found = errors.INVALID_VERSION, error(response)
        session.judge("error.version", None, found == wanted, wanted, found, response)
        named = json_of(response).get("newest-versions")
        expected = "newest-versions: the newest three, or all where there are fewer; newest first"
        session.judge("version.listed", None, _are_newest(named, served), expected, json.dumps(named), response)
    if not refusals:
        for clause in ("error.version", "version.listed"):
            session.skip(clause, None, "no version is refused")


def _are_newest(named: object, served: Sequence[Version]) -> bool:
    """It may know others than we do: of those that it serves none is missing that is newer than one of the three."""
    if not isinstance(named, list) or not 1 <= len(named) <= NEWEST:
        return False
    names = {name for name in named if isinstance(name, str) and DATE.fullmatch(name)}
    oldest = min(names, default="") if len(named) == NEWEST else ""
    return named == sorted(names, reverse=True) and names.issuperset(
        version.name for version in served if version.name > oldest
    )


def judge_rate(session: Session) -> None:
    refused = session.http.burst(get(session.newest.name))
    if refused is None:
        why = f"{session.pace.burst} requests at once met no limit, and there need not be one"
        session.skip("error.rate", None, why)
    else:
        after = refused.headers.get("retry-after", "")
        sound = after.isdecimal() or parse_date(after) is not None
        session.judge("error.rate", None, sound, "Retry-After with seconds or a time", after or "none", refused)


# Tags and waits

OTHER = '"0-other"'


def judge_tags(session: Session, version: Version) -> None:
    """Twice, because a document may change between requesting its tag and using it."""
    first, again = session.fetch(version), session.fetch(version)
    if first is None or again is None or first.is_blank or again.is_blank:
        return
    if first.incarnation != again.incarnation and first.events != again.events:
        first, again = again, session.fetch(version) or again
    if first.events == again.events:
        same = first.incarnation == again.incarnation
        session.judge("document.quiet", version, same, str(first.incarnation), again.incarnation, again.response)
    if again.tag:
        _judge_conditions(session, version, again)
    else:
        for clause in ("etag.stable", "etag.unchanged", "etag.forms", "etag.other", "etag.changes"):
            session.skip(clause, version, "there is no ETag")


def _judge_conditions(session: Session, version: Version, document: Document) -> None:
    plain = get(version.name)
    bare = document.tag.removeprefix("W/").strip('"')
    response = session.send(plain.having(If_None_Match=document.tag))
    sound, seen = response.status == 304 and not response.body, f"{response} with {len(response.body)} bytes"
    session.judge("etag.unchanged", version, sound, "304 without a body", seen, response)
    for form, text in {"bare": bare, "weak": f'W/"{bare}"', "in a list": f'{OTHER}, "{bare}"'}.items():
        session.expect("etag.forms", version, 304, plain.having(If_None_Match=text), f"304 for one that is {form}")
    session.expect("etag.other", version, 200, plain.having(If_None_Match=OTHER))


def judge_waits(session: Session, versions: Sequence[Version]) -> list[Version]:
    """Those in which waiting is offered. All at once, because each wait takes its time, unless there is a limit."""
    groups = [[version] for version in versions] if session.http.is_paced else [versions]
    return [version for together in groups for version in _judge_waits(session, together)]


def _judge_waits(session: Session, versions: Sequence[Version]) -> Iterator[Version]:
    seconds = session.pace.wait
    pending: dict[Version, PendingRequest] = {}
    for version in versions:
        document = session.fetch(version)
        if document is not None and document.tag:
            pending[version] = wait(session, version, document.tag, seconds)
        else:
            _skip_waits(session, version, "there is no ETag to wait with")
    # A response before half of the time was not held.
    pause(seconds / 2)
    early = {version for version, sent in pending.items() if sent.is_answered() and monotonic() - sent.asked < seconds}
    for version, sent in pending.items():
        response = sent.finish()
        held = version not in early and response.status == 304
        seen = f"{response} {'at once' if version in early else 'later'}"
        session.judge("wait.held", version, held, "304 when the time is up", seen, response)
        if version in early:
            _skip_waits(session, version, "waiting is not offered")
            continue
        yield version
        preferring = get(version.name).having(Prefer=f"wait={seconds:g}")
        other = preferring.having(If_None_Match=OTHER)
        for clause, request in (("wait.unconditional", preferring), ("wait.at-once", other)):
            response = session.send(request)
            sound = response.status == 200 and response.seconds < seconds / 2
            seen = f"{response} after {response.seconds:.1f} s"
            session.judge(clause, version, sound, "200 at once", seen, response)


def wait(session: Session, version: Version, tag: str, seconds: float) -> PendingRequest:
    request = get(version.name).having(If_None_Match=tag, Prefer=f"wait={seconds:g}")
    return session.http.begin(request, session.pace.answer + seconds)


def _skip_waits(session: Session, version: Version, why: str) -> None:
    for clause in ("wait.held", "wait.at-once", "wait.unconditional", "wait.answered"):
        session.skip(clause, version, why)


# /metadata/instance

OTHER_VERSIONS = ("2017-04-02", "2019-03-11")
NO_VERSIONS = ("2017-04-01", "2021-02", "x")
KEYS = (
    "name vmId location resourceGroupName subscriptionId vmSize osType platformUpdateDomain platformFaultDomain"
    " placementGroupId vmScaleSetName zone priority evictionPolicy tags tagsList resourceId"
)
INSTANCE = Request(version="", path="/metadata/instance", query="api-version=2021-02-01")
NAME = replace(INSTANCE, path="/metadata/instance/compute/name", query=f"{INSTANCE.query}&format=text")


def judge_instance(session: Session) -> str:
    """The name of the VM that sends the requests; empty: unknown."""

    def expect(clause: str, status: int, request: Request) -> None:
        session.expect(clause, None, status, request)

    _judge_listed_versions(session)
    response = session.send(INSTANCE)
    found = json_of(response)
    compute, network = found.get("compute"), found.get("network")
    sound = response.status == 200 and isinstance(compute, dict) and isinstance(network, dict)
    session.judge("instance.document", None, sound, "200 with compute and network", response)
    if not sound or not isinstance(compute, dict):
        session.skip_all(None, "/metadata/instance is not served", "instance")
        return ""
    missing = ", ".join(key for key in KEYS.split() if key not in compute)
    expected = "every key that clients of Scheduled Events read"
    session.judge("instance.keys", None, not missing, expected, f"none of {missing}", response)
    other = next((value for value in _leaves(found) if not isinstance(value, str)), None)
    session.judge("instance.text", None, other is None, "text", json.dumps(other), response)
    name = compute.get("name")
    leaf = session.send(NAME)
    kind, text = leaf.headers.get("content-type", "none"), leaf.body.decode(errors="replace")
    sound = leaf.status == 200 and text == name and kind.startswith("text/plain")
    session.judge("instance.leaf", None, sound, f"{name} as text/plain", f"{leaf} {kind} {text}", leaf)
    expect("instance.leaf-json", 400, replace(NAME, query=INSTANCE.query))
    for version in OTHER_VERSIONS:
        expect("instance.any-version", 200, replace(INSTANCE, query=f"api-version={version}"))
    expect("instance.version", 400, replace(INSTANCE, query=""))
    for version in NO_VERSIONS:
        expect("instance.no-version", 400, replace(INSTANCE, query=f"api-version={version}"))
    expect("instance.header", 400, FAULTS["header"](INSTANCE))
    expect("instance.proxy", 400, FAULTS["proxy"](INSTANCE))
    return name if isinstance(name, str) else ""


def _judge_listed_versions(session: Session) -> None:
    response = session.send(replace(INSTANCE, path="/metadata/versions", query=""))
    listed = json_of(response).get("apiVersions")
    are_dates = isinstance(listed, list) and all(isinstance(name, str) and DATE.fullmatch(name) for name in listed)
    sound = response.status == 200 and bool(listed) and are_dates
    seen = f"{response} with {json.dumps(listed)}"
    session.judge("instance.versions", None, sound, "200 with apiVersions, a list of dates", seen, response)


def judge_name(session: Session, name: str, event: Event, response: Response) -> None:
    """Whether an event about this VM writes its name as the instance does; other events show nothing."""
    resources = event.get("Resources")
    if not name or not isinstance(resources, list):
        return
    alike = [each for each in resources if str(each).lower() == name.lower()]
    if alike:
        session.judge("instance.name", None, alike == [name], name, alike[0], response)
    else:
        session.skip("instance.name", None, "no event named the VM that asked")


def _leaves(root: object) -> Iterator[object]:
    nodes = [root]
    while nodes:
        match nodes.pop():
            case dict() as node:
                nodes.extend(node.values())
            case list() as node:
                nodes.extend(node)
            case leaf:
                yield leaf
