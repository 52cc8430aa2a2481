"""The api-versions of the endpoint: one table, one row each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from forenotice.core.operations import EventType

_SIX_KEYS = ("EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore")
_SEVEN_KEYS = (*_SIX_KEYS, "Description")
_EIGHT_KEYS = (*_SEVEN_KEYS, "EventSource")
_NINE_KEYS = (*_EIGHT_KEYS, "DurationInSeconds")

_THREE_TYPES = frozenset({EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY})
_FOUR_TYPES = _THREE_TYPES | {EventType.PREEMPT}
_FIVE_TYPES = _FOUR_TYPES | {EventType.TERMINATE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What one api-version shows, and what it asks of a request."""

    name: str
    types: frozenset[EventType]
    """The event types it knows; others are not listed."""
    keys: tuple[str, ...]
    """The keys of an event, in the order of the document."""
    iso_dates: bool = False
    """`NotBefore` in ISO 8601; otherwise RFC 1123."""
    underscore: bool = False
    """Names of VMs, not of role instances, carry a leading underscore."""
    header_enforced_on_post: bool = True


ALL = (
    Version(
        name="2017-03-01",
        types=_THREE_TYPES,
        keys=_SIX_KEYS,
        iso_dates=True,
        underscore=True,
        header_enforced_on_post=False,
    ),
    Version(name="2017-08-01", types=_THREE_TYPES, keys=_SIX_KEYS),
    Version(name="2017-11-01", types=_FOUR_TYPES, keys=_SIX_KEYS),
    Version(name="2019-01-01", types=_FIVE_TYPES, keys=_SIX_KEYS),
    Version(name="2019-04-01", types=_FIVE_TYPES, keys=_SEVEN_KEYS),
    Version(name="2019-08-01", types=_FIVE_TYPES, keys=_EIGHT_KEYS),
    Version(name="2020-07-01", types=_FIVE_TYPES, keys=_NINE_KEYS),
)
"""Oldest first."""

NEWEST = ALL[-1]
NEWEST_THREE = tuple(version.name for version in reversed(ALL[-3:]))
"""Names, newest first, as an error body lists them."""

AS_PUBLISHED: Mapping[str, Version] = MappingProxyType({version.name: version for version in ALL})
"""By name."""
FIRST_AS_SEEN = replace(ALL[0], iso_dates=False)
"""The real service sent RFC 1123 dates here too, though its description shows ISO 8601."""
AS_SEEN: Mapping[str, Version] = MappingProxyType({**AS_PUBLISHED, FIRST_AS_SEEN.name: FIRST_AS_SEEN})


def lookup(name: str) -> Version | None:
    return AS_PUBLISHED.get(name)
