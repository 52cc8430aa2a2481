"""A scope's document as bytes of one api-version, and the tag by which a guest knows it has not changed."""

import re

import msgspec

from forenotice.core.documents import Document
from forenotice.core.fleet import ScopeKind
from forenotice.core.operations import Event, Status
from forenotice.wire import dates
from forenotice.wire.versions import Version

_RESOURCE_TYPE = "VirtualMachine"
_TAG = re.compile(r'(?:W/)?(?:"([^"]*)"|([^\s",]+))', re.IGNORECASE)


def render(document: Document, version: Version) -> bytes:
    prefix = "_" if version.underscore and document.kind is not ScopeKind.CLOUD_SERVICE else ""
    return msgspec.json.encode(
        {
            "DocumentIncarnation": document.incarnation,
            "Events": [_shown(event, version, prefix) for event in document.events if event.type in version.types],
        }
    )


def etag(document: Document) -> str:
    """Quoted, as a header carries it; the same in all versions."""
    return f'"{document.incarnation}-{document.tag}"'


def epoch(document: Document) -> str:
    """Of documents with the same epoch, the one with the higher incarnation is newer."""
    return document.tag


def matches(if_none_match: str, etag: str) -> bool:
    """Whether the header names this tag: quoted, bare, weak, in a list, or by `*`."""
    wanted = etag.strip('"')
    return any(quoted == wanted or bare in (wanted, "*") for quoted, bare in _TAG.findall(if_none_match))


def _shown(event: Event, version: Version, prefix: str) -> dict[str, object]:
    write = dates.iso if version.iso_dates else dates.http
    everything: dict[str, object] = {
        "EventId": event.id.upper(),
        "EventStatus": event.status,
        "EventType": event.type,
        "ResourceType": _RESOURCE_TYPE,
        "Resources": [prefix + name for name in event.resources],
        "NotBefore": "" if event.status is Status.STARTED else write(event.not_before),
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.duration,
    }
    return {key: everything[key] for key in version.keys}
