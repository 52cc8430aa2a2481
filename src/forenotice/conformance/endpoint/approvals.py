"""Approvals: which are sent while nothing is announced, and which for a live event."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from forenotice.conformance.endpoint import clauses
from forenotice.conformance.endpoint.checks import FAULTS
from forenotice.conformance.endpoint.http import Request, Response, post
from forenotice.conformance.endpoint.session import Session
from forenotice.wire.approvals import MAX_BODY
from forenotice.wire.versions import Version

MALFORMED: Mapping[str, bytes] = {
    "nothing": b"",
    "no JSON": b"garbage",
    "no object": b"[]",
    "no StartRequests": b"{}",
    "no list": b'{"StartRequests":"x"}',
    "an empty list": b'{"StartRequests":[]}',
    "no EventId": b'{"StartRequests":[{}]}',
    "no GUID": b'{"StartRequests":[{"EventId":"x"}]}',
}
MIXED = "approval.all-or-nothing"
ON_POST = "etag.on-post"

Form = Callable[[Request, str], Request]
"""Makes the request, of a plain approval and the id of the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    clause: str
    version: Version
    form: Form
    names_it: bool = True

    def request(self, event_id: str) -> Request:
        return self.form(post(self.version.name, body([event_id])), event_id)


def body(event_ids: Sequence[str], **more: object) -> bytes:
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids], **more}).encode()


def unknown_id() -> str:
    return str(uuid4()).upper()


def _padded(plain: Request, size: int) -> Request:
    return replace(plain, body=(plain.body or b"").ljust(size))


def _sending(sent: bytes) -> Form:
    return lambda plain, _: replace(plain, body=sent)


def _having(**headers: str) -> Form:
    return lambda plain, _: plain.having(**headers)


def _with(**more: object) -> Form:
    return lambda plain, event_id: replace(plain, body=body([event_id], **more))


# While an event is Scheduled

NAMELESS: Sequence[tuple[str, Form]] = (
    ("approval.unknown-id", lambda plain, _: replace(plain, body=body([unknown_id()]))),
    *(("approval.malformed", _sending(sent)) for sent in MALFORMED.values()),
)
"""They do not name the event: whatever the response, it must not start."""

GATED: Sequence[tuple[str, Form]] = (
    ("header.required-on-post", _having(Metadata="")),
    ("header.required-on-post", _having(Metadata="false")),
    ("endpoint.proxy", lambda plain, _: FAULTS["proxy"](plain)),
    ("approval.version", lambda plain, _: replace(plain, query="")),
    ("approval.version", lambda plain, _: FAULTS["version"](plain)),
)
"""They name the event, and are published to be refused."""

ON_GET = {"header.required-on-post": "header.required", "approval.version": "version.unknown"}
"""The clauses that say the same of a GET, where they are others."""

BAD_FIRST: Form = lambda plain, event_id: replace(plain, body=body([unknown_id(), event_id]))  # noqa: E731

LENIENT: Sequence[tuple[str, Form]] = (
    ("approval.malformed", lambda plain, _: replace(plain, body=(plain.body or b"") + b"garbage")),
    ("approval.too-large", lambda plain, _: _padded(plain, MAX_BODY + 1)),
    ("endpoint.repeated", lambda plain, _: replace(plain, query=f"{plain.query}&{plain.query}")),
    (MIXED, lambda plain, event_id: replace(plain, body=body([event_id, unknown_id()]))),
    (MIXED, lambda plain, event_id: replace(plain, body=body([event_id, "x"]))),
)
"""They name the event, and only forenotice promises to refuse them."""


def bad(versions: Sequence[Version], session: Session) -> Iterator[Approval]:
    """What an endpoint is likely to accept comes late, for the event may start by it."""
    yield from each(NAMELESS, versions[-1:], names_it=False)
    gated = list(each(GATED, versions))
    let_in = [
        found for found in gated if session.judged(ON_GET.get(found.clause, found.clause), found.version) is False
    ]
    yield from (found for found in gated if found not in let_in)
    yield from each([(MIXED, BAD_FIRST)], versions)
    yield from let_in
    yield from each(LENIENT, versions)


# When it is approved

REPEATED: Sequence[tuple[str, Form]] = (
    ("approval.started", _having()),
    ("approval.idempotent", _having()),
    ("header.optional-on-post", _having(Metadata="")),
    ("approval.incarnation", _with(DocumentIncarnation=1)),
    ("approval.incarnation", _with(DocumentIncarnation="1")),
    ("approval.unknown-keys", _with(NobodyKnows={"this": [None]})),
    ("approval.content-type", _having()),
    ("approval.content-type", _having(Content_Type="application/json")),
    ("approval.content-type", _having(Content_Type="application/x-www-form-urlencoded")),
    ("approval.content-type", _having(Content_Type="text/plain")),
    ("approval.large", lambda plain, _: _padded(plain, MAX_BODY)),
    (ON_POST, _having()),
    ("endpoint.chunked", _having(Transfer_Encoding="chunked")),
    ("endpoint.expect", _having(Expect="100-continue")),
)


def each(
    forms: Sequence[tuple[str, Form]], versions: Sequence[Version], *, names_it: bool = True
) -> Iterator[Approval]:
    """What matters most first: a short notice may end before all have been sent."""
    for clause, form in forms:
        concerns = clauses.BY_ID[clause].versions
        for version in versions[-1:] if concerns is clauses.once else filter(concerns, versions):
            yield Approval(clause=clause, version=version, form=form, names_it=names_it)


def judge_accepted(session: Session, clause: str, version: Version, response: Response) -> bool:
    accepted = session.judge(clause, version, response.status == 200, f"200 in {version.name}", response)
    if accepted:
        session.judge("approval.empty", version, not response.body, "no body", f"{len(response.body)} bytes", response)
    return accepted


# While nothing is announced


def judge(session: Session, version: Version) -> None:
    """An event may be announced meanwhile: it is looked for before each of these."""
    unknown = post(version.name, body([unknown_id()]))
    malformed = {f"400 for {name}": replace(unknown, body=sent) for name, sent in MALFORMED.items()}
    for clause, sent in (
        ("approval.malformed", malformed),
        ("approval.too-large", {"400": _padded(unknown, MAX_BODY + 1)}),
        ("approval.unknown-id", {"400": unknown}),
    ):
        if why := session.risk():
            session.skip(clause, version, why)
            continue
        for expected, request in sent.items():
            session.expect(clause, version, 400, request, expected)
    if why := session.risk():
        session.skip(ON_POST, version, why)
    else:
        plain = session.send(unknown)
        session.expect(ON_POST, version, plain.status, unknown.having(If_None_Match="*"), f"{plain}, as without it")
