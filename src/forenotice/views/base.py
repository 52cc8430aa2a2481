"""What all views share: requests and responses, pages of lists, errors, examples, and types of fields."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar, dataclass_transform, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta

from forenotice import validation
from forenotice.core import errors, fleet, operations, windows
from forenotice.core.operations import EventType, Kind, Source, Status
from forenotice.validation import pattern

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

EXAMPLES: dict[type, msgspec.Struct] = {}
"""One of each struct, for the API's description."""


class _Keywords(msgspec.StructMeta):
    """Fields are given by name, also in subclasses."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "_Keywords":
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class View(msgspec.Struct, metaclass=_Keywords, frozen=True):
    def given(self) -> dict[str, Any]:
        """The fields that were sent, where others stay as they are."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}


class Response(View):
    """Whoever reads one ignores fields of a later version."""


class Request(View, forbid_unknown_fields=True):
    """A field that is misspelt is refused, not ignored."""


def example(kind: type[S], /, **values: Any) -> S:
    """Fields that are not given are as in all examples (`COMMON`), or null, or empty."""
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in values:
            empty = None if type(None) in get_args(field.type) else (get_origin(field.type) or field.type)
            values[field.name] = COMMON[field.name] if field.name in COMMON else empty and empty()
    EXAMPLES[kind] = made = kind(**values)
    return made


def decode(body: bytes, kind: type[T], place: str = "the body") -> T:
    if not body:
        raise errors.RefusedError(f"{place} is missing: send JSON")
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise errors.RefusedError(validation.sentence(error, kind, place)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.RefusedError(
            f"{place} is not JSON ({error}): send JSON in UTF-8, without lone surrogates (\\ud800), NaN and Infinity"
        ) from None


def convert(values: object, kind: type[T], place: str, *, strict: bool = True) -> T:
    """The same of values that were read already; not strict: of text, such as a query's."""
    try:
        return msgspec.convert(values, kind, strict=strict, dec_hook=_read)
    except msgspec.ValidationError as error:
        raise errors.RefusedError(validation.sentence(error, kind, place)) from None


def _read(kind: Any, value: object) -> object:
    """Types of our own read themselves from what was sent."""
    return kind.read(value)


def in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise errors.RefusedError("a time must be of the years 1 to 9999 in UTC") from None


def read_moment(text: str, name: str) -> datetime:
    """A time as text, such as in a query."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise errors.RefusedError(f"{name} must be a time with its zone, such as 2026-01-31T12:00:00Z")
    return in_utc(found)


def require_reason(reason: str) -> str:
    """The same wherever it is given."""
    if len(reason) > LONGEST_REASON or not re.fullmatch(REASON, reason):
        raise errors.RefusedError(
            f"a reason is at most {LONGEST_REASON} printable characters: leave out lines, control and direction marks"
        )
    return reason


CODES = {
    "refused": (400, "The request is malformed or makes no sense: change it."),
    "unauthorized": (401, "A valid token is needed."),
    "forbidden": (403, "The token's role or scopes do not allow it."),
    "not_found": (404, "There is no such thing, or nothing that the token may see; `facts` name it."),
    "method_not_allowed": (405, "The method is not possible here; the header `Allow` says which are."),
    "too_slow": (408, "The body did not come in time."),
    "conflict": (409, "The present state does not allow it; `facts` hold that state."),
    "too_large": (413, "The body is too large."),
    "too_many": (429, "The token sends too many requests: try again after `Retry-After` seconds."),
    "error": (500, "A defect of the service, whose log says more."),
    "unavailable": (503, "The service cannot do it just now: try again after `Retry-After` seconds."),
    "overdue": (503, "It took too long and was rolled back: ask for less at once, or try again later."),
    "unsound": (503, "The database cannot be used as it is: an administrator must act."),
}
"""The codes of errors, with their status and meaning."""


class ErrorFacts(Response):
    code: Annotated[str, Meta(extra_json_schema={"enum": list(CODES)})]
    message: str
    """One sentence: what is wrong, and what would be right."""
    facts: dict[str, Any]
    """What the sentence speaks of, for programs."""


class Error(Response):
    error: ErrorFacts


class Page(Response, Generic[T]):
    items: list[T]
    next: str | int | None
    """Give it as `after` for what follows; null at the end."""


def page(items: list[T], limit: int, key: str) -> Page[T]:
    """What follows comes after `key` of the last item."""
    return Page(items=items, next=getattr(items[-1], key) if len(items) == limit else None)


class Removed(Response):
    removed: str


class Matches(Response, Generic[T]):
    """The first of what was looked for, and whether there is more."""

    items: list[T] = []
    more: bool = False


NO_CONTROL_CHARACTERS = "must not hold control characters"
# Neither control characters nor any that turn the direction of a text, or are not seen at all.
REASON = r"[^\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*"
LONGEST_REASON = 1000
PATTERN = r"!?[A-Za-z0-9._*?-]{1,64}"
HOST_PATTERN = r"!?(label:[A-Za-z0-9._/-]{1,64}=[A-Za-z0-9._/*?-]{1,64}|[A-Za-z0-9._*?-]{1,64})"
SCOPE_PATTERN = r"!?((group|vm):)?[A-Za-z0-9._*?-]{1,64}"
YEAR_MINUTES = 366 * 24 * 60
LAST_POSITION = 2**63 - 1

Name = Annotated[str, pattern(fleet.NAME.pattern, fleet.IS_NAME)]
Label = Annotated[str, pattern(fleet.LABEL.pattern, "must be 1 to 64 letters, digits, '.', '_', '/' or '-'")]
# Without control characters: they end up in logs, terminals and databases.
_TEXT = r"[^\x00-\x1f\x7f]*"
Text = Annotated[str, pattern(_TEXT, NO_CONTROL_CHARACTERS, max_length=256)]
LongText = Annotated[str, pattern(_TEXT, NO_CONTROL_CHARACTERS, max_length=1000)]
Word = Annotated[str, pattern(_TEXT, NO_CONTROL_CHARACTERS, min_length=1, max_length=200)]
Url = Annotated[str, pattern(_TEXT, NO_CONTROL_CHARACTERS, min_length=1, max_length=2000)]
Selector = Annotated[str, pattern(_TEXT, NO_CONTROL_CHARACTERS, min_length=1, max_length=70_000)]
Reason = Annotated[
    str, pattern(REASON, "must be printable, without lines, control and direction marks", max_length=LONGEST_REASON)
]
Id = Annotated[str, pattern("[A-Za-z0-9-]+", "must be an id: letters, digits and '-'", max_length=64)]
Moment = Annotated[datetime, Meta(tz=True)]
Position = Annotated[int, Meta(ge=0, le=LAST_POSITION)]
Domain = Annotated[int, Meta(ge=0, le=999)]
Seconds = Annotated[int, Meta(ge=0, le=3600)]
FreezeSeconds = Annotated[int, Meta(ge=1, le=operations.LONGEST_FREEZE)]
Minutes = Annotated[float, Meta(ge=0, le=YEAR_MINUTES)]
Amount = Annotated[float, Meta(ge=0, le=fleet.MAX_AMOUNT)]
Addresses = Annotated[list[Text], Meta(max_length=fleet.MAX_ADDRESSES)]
Windows = Annotated[list[Text], Meta(max_length=windows.MOST, examples=[["mon-fri 22:00-04:00 Europe/Berlin"]])]
EventStatus = Literal["Scheduled", "Started", "Completed", "Canceled", "Failed"]
"""An event is never Planned."""

validation.REPLACED |= fleet.RENAMED_POLICIES

# Moments and ids of the examples, and what things with the same name are in all of them.
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOON = NOW.replace(minute=15)
LATER = NOW.replace(minute=30)
EVENT = "602D9444-D2CD-49C7-8624-8643E7171297"
OPERATION = "0b6f1c6e-6f0e-4a53-9d0e-6a1f6b9a2a11"
ROLLOUT = "5f3c9f0a-2a55-4b0e-8a53-0c7d0e2f6b7a"
ID = "8a506c35-679a-4f78-9d76-1f2e3d4c5b6a"
COMMON: dict[str, Any] = {
    "id": ID,
    "event": EVENT,
    "operation": OPERATION,
    "rollout": None,
    "at": NOW,
    "created_at": NOW,
    "begins_at": NOW,
    "announced_at": NOW,
    "not_before": SOON,
    "ends_at": LATER,
    "by": "operator:admin",
    "host": "rack1-01",
    "scope": "group:web",
    "group": "web",
    "vms": ["web-0"],
    "resources": ["web-0"],
    "kind": Kind.RESTART,
    "type": EventType.REBOOT,
    "source": Source.USER,
    "status": Status.SCHEDULED,
    "description": "Virtual machine is going to be restarted as requested by authorized user.",
    "duration_seconds": -1,
    "wave": 1,
    "update_domains": [0],
}

example(Error, error=ErrorFacts(code="not_found", message="there is no VM 'web-9'", facts={"vm": "web-9"}))
example(Removed, removed="web-0")
