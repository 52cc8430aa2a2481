"""Approvals as they should be and as they should not, and judging how those are refused that need no event."""

import json
from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

from forenotice.conformance.endpoint.asking import Asker
from forenotice.conformance.endpoint.questions import post
from forenotice.conformance.endpoint.sheet import Sheet
from forenotice.wire import approvals
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


def body(event_ids: Sequence[str], **more: object) -> bytes:
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids], **more}).encode()


def padded(sent: bytes, size: int) -> bytes:
    return sent + b" " * (size - len(sent))


def unknown_id() -> str:
    return str(uuid4()).upper()


def judge(asker: Asker, sheet: Sheet, version: Version, hindrance: Callable[[], str]) -> None:
    """An event may be announced meanwhile: it is looked before each of these."""
    for clause, judge_one in CLAUSES.items():
        if why := hindrance():
            sheet.skip(clause, version, why)
        else:
            judge_one(asker, sheet, version)


def _judge_malformed(asker: Asker, sheet: Sheet, version: Version) -> None:
    for name, sent in MALFORMED.items():
        heard = asker.ask(post(version.name, sent))
        sheet.judge("approval.malformed", version, heard.status == 400, f"400 for {name}", heard)


def _judge_too_large(asker: Asker, sheet: Sheet, version: Version) -> None:
    heard = asker.ask(post(version.name, padded(body([unknown_id()]), approvals.MAX_BODY + 1)))
    sheet.judge("approval.too-large", version, heard.status == 400, "400", heard)


def _judge_unknown(asker: Asker, sheet: Sheet, version: Version) -> None:
    heard = asker.ask(post(version.name, body([unknown_id()])))
    sheet.judge("approval.unknown-id", version, heard.status == 400, "400", heard)


def _judge_conditional(asker: Asker, sheet: Sheet, version: Version) -> None:
    unknown = post(version.name, body([unknown_id()]))
    plain, conditional = asker.ask(unknown), asker.ask(unknown.having(If_None_Match="*"))
    same = conditional.status == plain.status
    sheet.judge("etag.on-post", version, same, f"{plain}, as without it", conditional)


CLAUSES: Mapping[str, Callable[[Asker, Sheet, Version], None]] = {
    "approval.malformed": _judge_malformed,
    "approval.too-large": _judge_too_large,
    "approval.unknown-id": _judge_unknown,
    "etag.on-post": _judge_conditional,
}
