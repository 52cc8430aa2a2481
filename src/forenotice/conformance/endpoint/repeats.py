"""Approvals of an event that is approved already: each form that clients send, in each version."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from forenotice.conformance.endpoint import approvals, clauses
from forenotice.conformance.endpoint.gates import FAULTS
from forenotice.conformance.endpoint.questions import Framing, Question, post
from forenotice.wire.approvals import MAX_BODY
from forenotice.wire.versions import Version

Form = Callable[[Question, str], Question]

ON_POST = "etag.on-post"
"""It takes the tag of the moment."""
INCARNATIONS = (1, "1")
CONTENT_TYPES = ("application/json", "application/x-www-form-urlencoded", "text/plain")


def _with_body(**more: object) -> Form:
    return lambda plain, event_id: replace(plain, body=approvals.body([event_id], **more))


def _with_type(content_type: str) -> Form:
    return lambda plain, _: plain.having(Content_Type=content_type)


def _framed(framing: Framing) -> Form:
    return lambda plain, _: replace(plain, framing=framing)


FORMS: Sequence[tuple[str, Form]] = (
    ("approval.started", lambda plain, _: plain),
    ("approval.idempotent", lambda plain, _: plain),
    ("header.optional-on-post", lambda plain, _: FAULTS["header"](plain)),
    *(("approval.incarnation", _with_body(DocumentIncarnation=number)) for number in INCARNATIONS),
    ("approval.unknown-keys", _with_body(NobodyKnows={"this": [None]})),
    ("approval.content-type", lambda plain, _: plain),
    *(("approval.content-type", _with_type(name)) for name in CONTENT_TYPES),
    ("approval.id-case", lambda plain, event_id: replace(plain, body=approvals.body([event_id.lower()]))),
    ("approval.large", lambda plain, _: replace(plain, body=approvals.padded(plain.body or b"", MAX_BODY))),
    (ON_POST, lambda plain, _: plain),
    ("endpoint.chunked", _framed(Framing.CHUNKED)),
    ("endpoint.expect", _framed(Framing.EXPECT)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    clause: str
    version: Version
    form: Form

    def fits(self, status: object) -> bool:
        return self.clause != "approval.started" or status == "Started"

    def question(self, event_id: str) -> Question:
        return self.form(post(self.version.name, approvals.body([event_id])), event_id)


def everything(versions: Sequence[Version]) -> Iterator[Repeat]:
    """What matters most first: a short event may end before all have been sent."""
    for clause, form in FORMS:
        for version in versions:
            if clauses.BY_ID[clause].versions(version):
                yield Repeat(clause=clause, version=version, form=form)
