"""What the protocol promises of an endpoint and can be seen from outside: one table, one row for each clause."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from forenotice.wire.versions import Version


class Basis(StrEnum):
    """Who says so."""

    DOC = "doc"
    """The published description of the service."""
    SEEN = "seen"
    """What the real service was seen to do, or a real client relies on."""
    OURS = "ours"
    """A choice of forenotice, such as the words of a refusal. Others choose otherwise, and fail only with --strict."""


class Needs(StrEnum):
    NOTHING = "nothing"
    EVENT = "an event"
    """Judged on whatever is listed."""
    PROVOKED = "a provoked event"


DOC, SEEN, OURS = Basis
NOTHING, EVENT, PROVOKED = Needs
ENFORCED: Callable[[Version], bool] = attrgetter("header_enforced_on_post")


def every(_: Version) -> bool:
    return True


def once(_: Version) -> bool:
    """Has nothing to do with versions."""
    return False


def from_key(key: str) -> Callable[[Version], bool]:
    return lambda version: key in version.keys


def header_optional(version: Version) -> bool:
    return not version.header_enforced_on_post


@dataclass(frozen=True, slots=True)
class Clause:
    id: str
    says: str
    basis: Basis
    needs: Needs = NOTHING
    versions: Callable[[Version], bool] = every

    @property
    def section(self) -> str:
        return self.id.partition(".")[0]


ALL = (
    # Endpoint
    Clause("endpoint.get", "A GET with the header and a known api-version is answered 200", DOC),
    Clause("endpoint.path-case", "The path is read without regard to case", SEEN),
    Clause("endpoint.method", "PUT, PATCH and DELETE are answered 405", DOC),
    Clause("endpoint.other-methods", "HEAD and OPTIONS are answered 405", OURS),
    Clause("endpoint.allow", "The 405 names GET and POST in its Allow", OURS),
    Clause("endpoint.proxy", "A request with X-Forwarded-For is refused with 400", DOC),
    Clause("endpoint.proxy-signs", "A request with Forwarded or Via is refused with 400", OURS),
    Clause("endpoint.host", "A request with an unknown name in Host is refused with 400", OURS),
    Clause("endpoint.no-host", "HTTP/1.1 without Host is refused with 400", OURS),
    Clause("endpoint.repeated", "A query parameter that is given twice is refused with 400", OURS),
    Clause("endpoint.order", "Faults are told in order: path, method, proxy signs, header, api-version, body", OURS),
    Clause("endpoint.absolute-form", "A request target in absolute form is served", OURS),
    Clause("endpoint.http-1-0", "HTTP/1.0 is served", OURS),
    Clause("endpoint.chunked", "A body in chunks is read", OURS, PROVOKED),
    Clause("endpoint.expect", "Expect: 100-continue is served", SEEN, PROVOKED),
    Clause("header.required", "A GET without `Metadata: true` is refused with 400", DOC),
    Clause("header.case", "The header's name and value are read without regard to case", DOC),
    Clause("header.required-on-post", "An approval without the header is refused with 400", DOC, PROVOKED, ENFORCED),
    Clause("header.optional-on-post", "An approval without the header is accepted", DOC, PROVOKED, header_optional),
    # Versions
    Clause("version.missing", "A request without api-version is refused with 400", DOC, NOTHING, once),
    Clause("version.unknown", "An api-version that does not exist is refused with 400", DOC, NOTHING, once),
    Clause("version.latest", "`latest` is no api-version and is refused with 400", DOC, NOTHING, once),
    Clause("version.in-path", "A version in the path, as in early drafts, is refused with 400", OURS, NOTHING, once),
    Clause("version.listed", "The refusal of a version names the newest three, newest first", SEEN, NOTHING, once),
    Clause("version.types", "Only event types that the version knows are listed", SEEN, EVENT),
    Clause("version.same-events", "All events of types that the version knows are listed", SEEN, EVENT),
    Clause("version.names", "Only in 2017-03-01 names begin with an underscore, except role instances'", DOC, EVENT),
    Clause("version.same-facts", "All versions say the same of an event, as far as they have its keys", OURS, EVENT),
    # The document
    Clause("document.content-type", "A document is `application/json; charset=utf-8`", SEEN),
    Clause("document.date", "Every answer carries a Date", SEEN),
    Clause("document.clock", "The Date is now, within five minutes of our own clock", OURS),
    Clause("document.compact", "A document is JSON in UTF-8, on one line, without blanks between its parts", SEEN),
    Clause("document.shape", "A document has DocumentIncarnation and Events, and nothing else", DOC),
    Clause("document.order", "Keys come in the published order", SEEN),
    Clause("document.number", "DocumentIncarnation is a whole number of at least 1", DOC),
    Clause("document.stable", "Equal incarnation and version means equal bytes", DOC),
    Clause("document.quiet", "The incarnation stays while nothing changes", DOC),
    Clause("document.grows", "The incarnation grows with every change, and never falls", DOC, PROVOKED),
    Clause("document.all-versions", "All versions show the same incarnation", OURS),
    Clause("event.keys", "An event has exactly the keys of the version", DOC, EVENT),
    Clause("event.id", "EventId is a GUID in upper case", SEEN, EVENT),
    Clause("event.once", "An EventId is listed once", DOC, EVENT),
    Clause("event.status", "EventStatus is Scheduled or Started", DOC, EVENT),
    Clause("event.not-before", "NotBefore of a Scheduled event is RFC 1123, in 2017-03-01 also ISO 8601", DOC, EVENT),
    Clause("event.blank", "NotBefore of a Started event is blank", SEEN, EVENT),
    Clause("event.resource-type", "ResourceType is VirtualMachine", DOC, EVENT),
    Clause("event.resources", "Resources are names, at least one", DOC, EVENT),
    Clause("event.description", "Description is text", DOC, EVENT, from_key("Description")),
    Clause("event.source", "EventSource is Platform or User", DOC, EVENT, from_key("EventSource")),
    Clause("event.duration", "DurationInSeconds is a number from -1 on", DOC, EVENT, from_key("DurationInSeconds")),
    # ETag
    Clause("etag.present", "A document carries an ETag", OURS),
    Clause("etag.stable", "The tag stays while the incarnation does", SEEN),
    Clause("etag.unchanged", "If-None-Match with the tag is answered 304 without a body", SEEN),
    Clause("etag.forms", "The tag counts also when it is bare, weak or in a list", SEEN),
    Clause("etag.other", "If-None-Match with another tag is answered with the document", SEEN),
    Clause("etag.on-post", "If-None-Match on a POST is ignored", SEEN),
    Clause("etag.changes", "The tag changes with the incarnation", SEEN, PROVOKED),
    # Waiting
    Clause("wait.held", "With `Prefer: wait=1` an unchanged document is answered 304 a second later", OURS),
    Clause("wait.at-once", "With another tag it is answered at once", OURS),
    Clause("wait.unconditional", "Without If-None-Match it is answered at once", OURS),
    Clause("wait.answered", "A wait is answered as soon as the document changes", OURS, PROVOKED),
    # Approving
    Clause("approval.malformed", "A malformed approval is refused with 400", OURS),
    Clause("approval.too-large", "A body of more than 64 KiB is refused with 400", OURS),
    Clause("approval.unknown-id", "An id that is not of the caller's scope is refused with 400", OURS),
    Clause("approval.accepted", "The approval of a live event is answered 200", DOC, PROVOKED, once),
    Clause("approval.empty", "The 200 to an approval has no body", DOC, PROVOKED),
    Clause("approval.takes-effect", "An approved event starts without waiting for its NotBefore", DOC, PROVOKED, once),
    Clause("approval.idempotent", "Approving again is answered 200", DOC, PROVOKED),
    Clause("approval.incarnation", "DocumentIncarnation beside StartRequests is accepted", DOC, PROVOKED),
    Clause("approval.unknown-keys", "Keys that nobody knows are ignored", DOC, PROVOKED),
    Clause("approval.large", "A body of up to 64 KiB is read", OURS, PROVOKED),
    Clause("approval.content-type", "Any Content-Type is accepted, also none", SEEN, PROVOKED),
    Clause("approval.id-case", "An id in the other case starts its event, too", SEEN, PROVOKED, once),
    Clause("approval.many", "Every id of an accepted request counts, not only the first", DOC, PROVOKED, once),
    Clause("approval.all-or-nothing", "A good id together with a bad one is refused with 400", OURS, PROVOKED),
    Clause("approval.version", "An approval without a known api-version is refused with 400", DOC, PROVOKED, once),
    Clause("approval.no-effect", "What is refused, or names no event, starts nothing", DOC, PROVOKED, once),
    Clause("approval.started", "The approval of a Started event is answered 200", DOC, PROVOKED),
    Clause("approval.ended", "The approval of an event that has just ended is answered 200", OURS, PROVOKED),
    # Errors
    Clause("error.path", "A path that does not exist is answered 404", DOC),
    Clause("error.shape", 'The refusal of a header or version is `{"error":"..."}` as JSON in UTF-8', SEEN),
    Clause("error.everywhere", "Every other refusal has that shape, too", OURS),
    Clause("error.header", "The refusal without the header has our words", OURS),
    Clause("error.version", "The refusal of a version has our words", OURS, NOTHING, once),
    Clause("error.rate", "Too many requests are answered 429 with Retry-After", DOC, NOTHING, once),
    # /metadata/instance
    Clause("instance.document", "/metadata/instance is answered with compute and network", OURS, NOTHING, once),
    Clause("instance.keys", "compute has the keys that clients of Scheduled Events read", OURS, NOTHING, once),
    Clause("instance.text", "Every single value in it is text", OURS, NOTHING, once),
    Clause("instance.leaf", "A leaf with format=text is answered as text", OURS, NOTHING, once),
    Clause("instance.leaf-json", "A leaf without format=text is refused with 400", OURS, NOTHING, once),
    Clause("instance.any-version", "Any date from 2017-04-02 on is an api-version here", OURS, NOTHING, once),
    Clause("instance.version", "A request without api-version is refused with 400", OURS, NOTHING, once),
    Clause("instance.no-version", "An earlier date, or no date, is refused with 400", OURS, NOTHING, once),
    Clause("instance.header", "A request without `Metadata: true` is refused with 400", OURS, NOTHING, once),
    Clause("instance.proxy", "A request with X-Forwarded-For is refused with 400", OURS, NOTHING, once),
    Clause("instance.versions", "/metadata/versions lists the versions", OURS, NOTHING, once),
    Clause("instance.name", "Resources write this VM's name as compute.name does", SEEN, EVENT, once),
    # Life of an event
    Clause("life.appears", "What was provoked is announced", DOC, PROVOKED, once),
    Clause("life.notice", "NotBefore is ahead by at least the notice of the event's type", DOC, PROVOKED),
    Clause("life.same-id", "An event keeps its EventId until it is gone", SEEN, PROVOKED, once),
    Clause("life.same-facts", "What an event says of itself stays, but for VMs that are dropped", OURS, EVENT),
    Clause("life.started", "An event is shown as Started", DOC, PROVOKED),
    Clause("life.shown", "Started stays listed for at least two seconds", OURS, PROVOKED, once),
    Clause("life.gone", "An event that is over is no longer listed", DOC, PROVOKED),
    Clause("life.forwards", "An event never goes back: not from Started, nor from gone", DOC, PROVOKED, once),
)

BY_ID = {clause.id: clause for clause in ALL}
"""In the order of docs/dev/rules.md."""
