"""The checks of a request's head, whoever sent it.

The protocol checks a request in this order: path, method, proxy headers, Metadata header, api-version, caller, rate,
body. The first five are here; `Connection.admit` checks the caller (`identity`) and the rate, and `Connection.serve`
the body (`wire.approvals`).
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl, unquote

import httptools

from forenotice.metadata import responses
from forenotice.metadata.long_poll import wait_seconds
from forenotice.metadata.responses import Response
from forenotice.settings import ProxyStyle
from forenotice.wire import errors, host_header, instance, versions
from forenotice.wire.versions import Version

HISTORIC = re.compile(r"latest|[0-9]{4}-[0-9]{2}-[0-9]{2}")

PROOFS: Mapping[ProxyStyle, tuple[str, ...]] = {
    ProxyStyle.FORENOTICE: ("X-Forenotice-VM", "X-Forenotice-Time", "X-Forenotice-Nonce", "X-Forenotice-Signature"),
    ProxyStyle.OPENSTACK: ("X-Instance-ID", "X-Instance-ID-Signature"),
}
PARAMETERS = 32
"""Of a query, and segments of a path: no route has more, and long ones take time to parse."""
CONDITION_BYTES = 1024
"""Of If-None-Match and Prefer: longer ones are ignored, because they take time to parse."""
FORWARDING = (b"x-forwarded-for", b"forwarded", b"via")
"""Headers that proxies add."""
PROXY_HEADERS = (*FORWARDING, *(name.lower().encode() for names in PROOFS.values() for name in names))
"""With any of these a trusted proxy asks for a VM, and must prove for which."""

UNKNOWN_PATH = responses.error(404, errors.UNKNOWN_PATH)
NOT_GET_OR_POST = responses.error(405, errors.WRONG_METHOD, b"Allow: GET, POST\r\n")
NOT_GET = responses.error(405, errors.WRONG_METHOD, b"Allow: GET\r\n")
FORWARDED = responses.error(400, errors.FORWARDED)
UNKNOWN_HOST = responses.error(400, errors.UNKNOWN_HOST)
REPEATED_PARAMETER = responses.error(400, errors.REPEATED_PARAMETER)
MISSING_HEADER = responses.error(400, errors.MISSING_HEADER)
INVALID_VERSION = responses.with_body(400, errors.invalid_version_body())
INVALID_FORMAT = responses.error(400, "Bad request. format is json or text")
VERSIONS = responses.with_body(200, instance.versions_body())


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    method: str
    target: bytes
    headers: Mapping[bytes, bytes]
    """By name in lower case; repeated ones are joined by commas."""


Proof = Mapping[bytes, bytes]
"""The headers by which a metadata proxy proves for which VM it asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    version: Version
    condition: str | None
    """If-None-Match."""
    wait: float | None
    """Seconds that a long poll may last."""
    proof: Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    proof: Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """`/metadata/instance`, or something below it."""

    path: tuple[str, ...]
    as_text: bool
    proof: Proof


@dataclass(frozen=True, slots=True, kw_only=True)
class ListVersions:
    proof: Proof


Action = Refuse | Poll | Approve | Describe | ListVersions


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    host: str | None
    """Of a target in absolute form."""
    path: tuple[str, ...]
    """Segments after `/metadata`."""
    names: tuple[str, ...]
    """Query parameters as often as they were given."""
    query: Mapping[str, str]

    @property
    def place(self) -> str:
        return self.path[0].lower()


def check(
    head: Head, *, from_proxy: bool, names: Collection[str] = (), known: Mapping[str, Version] = versions.AS_PUBLISHED
) -> Action:
    """What a request asks for, whoever sent it; `names` are allowed in Host, `known` are the api-versions."""
    target = _target(head.target)
    if target is None:
        return Refuse(response=UNKNOWN_PATH)
    if target.place == "scheduledevents":
        if head.method not in ("GET", "POST"):
            return Refuse(response=NOT_GET_OR_POST)
    elif head.method != "GET":
        return Refuse(response=NOT_GET)
    proof = {name: head.headers[name] for name in PROXY_HEADERS if name in head.headers} if from_proxy else {}
    indirect = _check_proxy_and_host(head, target, names, proof, from_proxy=from_proxy)
    if indirect is not None:
        return Refuse(response=indirect)
    version = known.get(target.query.get("api-version", ""))
    if not _has_header(head) and _needs_header(head, target, version):
        return Refuse(response=MISSING_HEADER)
    match target.place:
        case "versions":
            return ListVersions(proof=proof)
        case "instance":
            return _describe(target, proof)
    if version is None:
        return Refuse(response=INVALID_VERSION)
    if head.method == "POST":
        return Approve(proof=proof)
    condition = _condition(head, b"if-none-match")
    return Poll(
        version=version,
        condition=condition,
        wait=None if condition is None else wait_seconds(_condition(head, b"prefer") or ""),
        proof=proof,
    )


def _condition(head: Head, name: bytes) -> str | None:
    value = head.headers.get(name)
    return None if value is None or len(value) > CONDITION_BYTES else value.decode("latin-1")


def _describe(target: Target, proof: Proof) -> Action:
    if not instance.accepts_version(target.query.get("api-version", "")):
        return Refuse(response=INVALID_VERSION)
    form = target.query.get("format", "json").lower()
    if form not in ("json", "text"):
        return Refuse(response=INVALID_FORMAT)
    return Describe(path=target.path[1:], as_text=form == "text", proof=proof)


# Guests request the same few targets over and over.
@lru_cache(maxsize=256)
def _target(raw: bytes) -> Target | None:
    """A target in origin or absolute form; None: there is no such route."""
    try:
        url = httptools.parse_url(raw)
        host = None if url.host is None else url.host.decode("ascii")
        raw_path = (url.path or b"").decode("ascii").removesuffix("/")
        path = [unquote(segment, errors="strict") for segment in raw_path.split("/", PARAMETERS)]
        query_string = (url.query or b"").decode("ascii")
        pairs = parse_qsl(query_string, keep_blank_values=True, max_num_fields=PARAMETERS)
    except (httptools.HttpParserInvalidURLError, ValueError):
        return None
    match path:
        case ["", root, *rest] if root.lower() == "metadata":
            found = tuple(rest)
        case _:
            return None
    names = tuple(name.lower() for name, _ in pairs)
    query = dict(zip(names, (value for _, value in pairs), strict=True))
    match [segment.lower() for segment in found]:
        case ["scheduledevents"] | ["versions"] | ["instance", *_]:
            return Target(host=host, path=found, names=names, query=query)
        case [form, "scheduledevents"] if HISTORIC.fullmatch(form):
            # An early form of the endpoint had the version in its path; no version that is left has.
            return Target(host=host, path=("scheduledevents",), names=names, query={})
    return None


def _check_proxy_and_host(
    head: Head, target: Target, names: Collection[str], proof: Proof, *, from_proxy: bool
) -> Response | None:
    """Refuses a request that did not come directly from a guest: proxy headers, a foreign Host, repeated parameters."""
    if not from_proxy and any(name in head.headers for name in FORWARDING):
        return FORWARDED
    given = head.headers.get(b"host")
    asked_for = (None if given is None else given.decode("latin-1"), target.host)
    # A proxy may send any Host: a web page cannot forge its proof.
    if not proof and not all(host is None or host_header.is_allowed(host, names) for host in asked_for):
        return UNKNOWN_HOST
    if len(target.names) != len(set(target.names)):
        return REPEATED_PARAMETER
    return None


def _has_header(head: Head) -> bool:
    values = head.headers.get(b"metadata", b"").lower().split(b",")
    return all(value.strip() == b"true" for value in values)


def _needs_header(head: Head, target: Target, version: Version | None) -> bool:
    if target.place == "scheduledevents" and head.method == "POST" and version is not None:
        return version.header_enforced_on_post
    return True
