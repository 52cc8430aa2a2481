"""What a guest sends to approve events: the ids in its StartRequests, or one sentence on what is wrong with it.

Only the form of the body is judged here. What an approval does, and which ids are refused, is decided in
`core.lifecycle.approve_as_guest`.
"""

import re

import msgspec

from forenotice.core import errors

MAX_BODY = 64 * 1024
"""Bytes."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_EXAMPLE = 'give {"StartRequests":[{"EventId":"GUID"}]} with the EventId that the document shows'


class _StartRequest(msgspec.Struct):
    event_id: str | None = msgspec.field(name="EventId", default=None)


class _Approval(msgspec.Struct):
    start_requests: list[_StartRequest] | None = msgspec.field(name="StartRequests", default=None)


_DECODER = msgspec.json.Decoder(_Approval)


def parse(body: bytes) -> tuple[str, ...]:
    """The ids, in upper case and each once, in the order of the request."""
    if len(body) > MAX_BODY:
        raise errors.RefusedError(
            f"the body has {len(body)} bytes, more than {MAX_BODY}: approve fewer events in one request"
        )
    requests = _decode(body.removeprefix(_BYTE_ORDER_MARK)).start_requests
    if requests is None:
        raise errors.RefusedError(f"the body has no StartRequests: {_EXAMPLE}")
    if not requests:
        raise errors.RefusedError(f"StartRequests is empty: {_EXAMPLE}")
    return tuple(dict.fromkeys(_event_id(index, request) for index, request in enumerate(requests)))


def _decode(body: bytes) -> _Approval:
    if not body.strip():
        raise errors.RefusedError(f"the body is empty: {_EXAMPLE}")
    try:
        return _DECODER.decode(body)
    except msgspec.ValidationError:
        raise errors.RefusedError(f"the body has not the form of an approval: {_EXAMPLE}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise errors.RefusedError(f"the body is not JSON in UTF-8: {_EXAMPLE}") from None
    except RecursionError:
        raise errors.RefusedError(f"the body is nested too deeply: {_EXAMPLE}") from None


def _event_id(index: int, request: _StartRequest) -> str:
    if request.event_id is None:
        raise errors.RefusedError(f"StartRequests[{index}] has no EventId: {_EXAMPLE}")
    if not _GUID.fullmatch(request.event_id):
        raise errors.RefusedError(
            f"the EventId {request.event_id[:80]!r} of StartRequests[{index}] is not a GUID: {_EXAMPLE}"
        )
    return request.event_id.upper()
