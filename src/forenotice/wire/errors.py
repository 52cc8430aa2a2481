"""The bodies of refusals: one shape, and the sentences that clients know."""

import msgspec

from forenotice.wire import versions

MISSING_HEADER = "Bad request. Required metadata header not specified"
INVALID_VERSION = "Bad request. api-version is invalid or was not specified in the request."
FORWARDED = "Bad request. The request came through a proxy: ask from within the VM, without X-Forwarded-For or the like"
NO_HOST = "Bad request. HTTP/1.1 needs a Host header: send the address that you call"
UNKNOWN_HOST = "Bad request. Host is not a name of this service: use an address, localhost or a configured name"
REPEATED_PARAMETER = "Bad request. A query parameter is given twice: give each once"
UNKNOWN_PATH = "Not found. The paths are /metadata/scheduledevents, /metadata/instance and /metadata/versions"
WRONG_METHOD = "Method not allowed. The header Allow names those that are"
UNKNOWN_CALLER = "Not found. No VM is known at the address of this request"
TOO_MANY_REQUESTS = "Too many requests. Wait for the seconds that the header Retry-After names"
UNAVAILABLE = "Service unavailable. Try again after the seconds that Retry-After names: what is sent twice counts once"


def body(message: str) -> bytes:
    return msgspec.json.encode({"error": message})


def invalid_version_body() -> bytes:
    return msgspec.json.encode({"error": INVALID_VERSION, "newest-versions": versions.NEWEST_THREE})
