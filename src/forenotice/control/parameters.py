"""Parameters in the queries of the API: pages, orders and filters of lists."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from forenotice.control import export
from forenotice.control.router import Query
from forenotice.core.edges import EdgeState
from forenotice.core.journal import OF_TOKENS
from forenotice.core.operations import EventType, Kind, Status
from forenotice.core.roles import Access, Need
from forenotice.core.rollouts import RolloutHostStatus, RolloutStatus
from forenotice.store.journal import JournalFilter
from forenotice.validation import pattern
from forenotice.views import base
from forenotice.views.base import HOST_PATTERN, PATTERN, SCOPE_PATTERN, Name, Word

LIMIT = 100
LARGEST_PAGE = 1000


def _several(expression: str) -> Meta:
    """With commas between them, and spaces around. Whoever reads it says what is wrong with it."""
    whole = f"^[ ,]*{expression} *(,[ ,]*{expression} *)*[ ,]*$"
    return Meta(max_length=1000, extra_json_schema={"pattern": whole})


Names = Annotated[str, _several(PATTERN)]
ScopeNames = Annotated[str, _several(SCOPE_PATTERN)]
HostNames = Annotated[str, _several(HOST_PATTERN)]
NAMES = Meta(description="Names or patterns with commas between them: `rack1-*,!rack1-07`.")
HOST_NAMES = Meta(
    description="Names, patterns or labels with commas between them: `rack1-*,!rack1-07`, `label:rack=r1`."
)
TimeText = Annotated[
    str,
    pattern(
        "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ].*",
        "must be a time such as 2026-01-31T12:00:00Z",
        extra_json_schema={"format": "date-time"},
    ),
]
"""In RFC 3339; a number is not taken for seconds since 1970."""
IdOrName = Annotated[Name, Meta(description="Its id, or its name.")]
Limit = Annotated[int, Meta(ge=1, le=LARGEST_PAGE, description="How many at most.")]
After = Annotated[Word | None, Meta(description="What `next` was in the page before, of the same sort.")]
PREVIOUS = Meta(description="What `next` was in the page before.")
SORT = Meta(description="What the list is sorted by; `-` before it turns it round.")
ByAge = Annotated[Literal["created_at", "-created_at"], SORT]
Live = Annotated[bool | None, Meta(description="Only those that have not ended, or only those that have.")]


class Paged(Query):
    after: After = None
    limit: Limit = LIMIT

    def arguments(self) -> dict[str, Any]:
        found = super().arguments()
        return found | {"descending": found.pop("sort").startswith("-")} if "sort" in found else found


class ByName(Paged):
    sort: Annotated[Literal["name", "-name"], SORT] = "name"


class Oldest(Paged):
    """The oldest first."""

    sort: ByAge = "created_at"


class HostQuery(ByName):
    name: Annotated[HostNames | None, HOST_NAMES] = None
    cordoned: Annotated[bool | None, Meta(description="Only those that take no VMs, or only the others.")] = None


class VmQuery(ByName):
    name: Annotated[Names | None, NAMES] = None
    host: Name | None = None
    group: Name | None = None
    spot: Annotated[bool | None, Meta(description="Only those that may be evicted, or only the others.")] = None


class GroupQuery(ByName):
    name: Annotated[ScopeNames | None, NAMES] = None


class SubscriptionQuery(ByName):
    name: Annotated[Names | None, NAMES] = None


class Apply(base.Request):
    prune: Annotated[bool, Meta(description="Remove what the document does not name.")] = False
    move: Annotated[bool, Meta(description="Record that VMs run where the document says; no driver moves them.")] = (
        False
    )
    dry_run: Annotated[bool, Meta(description="Only tell the difference.")] = False


class DriftQuery(Query):
    host: Name | None = None
    vm: Name | None = None
    limit: Limit = LARGEST_PAGE


class EdgeQuery(Paged):
    state: EdgeState | None = None
    refused: Annotated[bool | None, Meta(description="Only those that could not read a state, or the others.")] = None


class OperationQuery(Oldest):
    live: Live = None
    status: Status | None = None
    host: Name | None = None
    kind: Kind | None = None
    rollout: Annotated[Word | None, Meta(description="Only those of a rollout, by its id.")] = None

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"rollout": self.rollout and self.rollout.lower()}


class EventQuery(Oldest):
    live: Live = None
    status: base.EventStatus | None = None
    event_type: EventType | None = msgspec.field(name="type", default=None)
    group: Name | None = None
    vm: Annotated[Name | None, Meta(description="Only those that name it.")] = None

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"status": self.status and Status(self.status)}


class RolloutQuery(Oldest):
    sort: ByAge = "-created_at"
    live: Live = None
    status: RolloutStatus | None = None


class RolloutHostQuery(Paged):
    status: RolloutHostStatus | None = None


class DeliveryQuery(Query):
    after: Annotated[base.Position, PREVIOUS] = 0
    limit: Limit = LIMIT


class _EntryQuery(base.Request):
    action: Annotated[Word | None, Meta(description="Such as `event.approved`; `event.` means all of them.")] = None
    scope: Annotated[Word | None, Meta(description="`group:NAME` or `vm:NAME`.")] = None
    event: Word | None = None


class EntryFilter(_EntryQuery):
    """What an entry must match; what is not given is not looked at."""

    operation: Word | None = None
    rollout: Word | None = None
    host: Word | None = None
    vm: Annotated[
        Word | None, Meta(description="Entries that name it, and those of events and operations that named it.")
    ] = None
    by: Annotated[Word | None, Meta(description="Who did it, such as `operator:admin`.")] = None
    since: Annotated[TimeText | None, Meta(description="From this moment on.")] = None
    until: Annotated[TimeText | None, Meta(description="Before this moment.")] = None

    def filter(self, access: Access) -> JournalFilter:
        """As the service takes it, without what the caller may not see."""
        return JournalFilter(
            action=self.action,
            scope=self.scope,
            event=self.event,
            operation=self.operation and self.operation.lower(),
            rollout=self.rollout and self.rollout.lower(),
            host=self.host,
            vm=self.vm,
            by=self.by,
            since=base.read_moment(self.since, "since in the query") if self.since else None,
            until=base.read_moment(self.until, "until in the query") if self.until else None,
            without=None if access.may(Need.ADMINISTER) else OF_TOKENS,
            seen=access.scopes,
        )


class HistoryQuery(EntryFilter):
    after: Annotated[base.Position | None, PREVIOUS] = None
    limit: Limit = LIMIT
    newest_first: bool = False


class ExportQuery(EntryFilter):
    format: export.Format = export.Format.JSONL


class StreamQuery(_EntryQuery):
    after: Annotated[base.Position | None, Meta(description="The same; the header goes first.")] = None
