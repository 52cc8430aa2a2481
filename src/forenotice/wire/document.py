"""A scope's document as bytes of one api-version, its ETag, and whether If-None-Match names that."""

import re

import msgspec

from forenotice.core.documents import Document, visible_not_before
from forenotice.core.fleet import ScopeKind
from forenotice.core.operations import Event
from forenotice.wire import dates
from forenotice.wire.versions import Version

_RESOURCE_TYPE = "VirtualMachine"
_TAG = re.compile(r'(?:W/)?(?:"([^"]*)"|([^\s",]+))', re.IGNORECASE)


def render(document: Document, version: Version) -> bytes:
    prefix = "_" if version.underscore and document.kind is not ScopeKind.CLOUD_SERVICE else ""
    return msgspec.json.encode(
        {
            "DocumentIncarnation": document.incarnation,
            "Events": [_rendered(event, version, prefix) for event in document.events if event.type in version.types],
        }
    )


def etag(document: Document) -> str:
    """The ETag header's value, quoted: incarnation and key of the scope, the same in all versions."""
    return f'"{document.incarnation}-{document.tag}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Whether If-None-Match names this ETag: quoted, bare, weak, in a list, or by `*`."""
    wanted = etag.strip('"')
    return any(quoted == wanted or bare in (wanted, "*") for quoted, bare in _TAG.findall(if_none_match))


def _rendered(event: Event, version: Version, prefix: str) -> dict[str, object]:
    not_before, write = visible_not_before(event), dates.iso if version.iso_dates else dates.http
    everything: dict[str, object] = {
        "EventId": event.id.upper(),
        "EventStatus": event.status,
        "EventType": event.type,
        "ResourceType": _RESOURCE_TYPE,
        "Resources": [prefix + name for name in event.resources],
        "NotBefore": "" if not_before is None else write(not_before),
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.duration,
    }
    return {key: everything[key] for key in version.keys}
