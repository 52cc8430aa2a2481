"""The faults there are: one table, one row each. docs/faults.md is this table, and a test compares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum, StrEnum
from types import MappingProxyType

from forenotice.core import errors
from forenotice.core.documents import Document
from forenotice.metadata import responses
from forenotice.metadata.responses import Response
from forenotice.settings.spans import LONGEST, Span
from forenotice.wire import document as wire_document
from forenotice.wire.versions import Version


class Part(Enum):
    """How much of the body is sent."""

    WHOLE = "whole"
    HALF = "half"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a poll is shown, before it is bytes. A document that looks different has another tag, so that no 304 hides
    the fault from a client that knows the true one."""

    document: Document
    version: Version
    part: Part = Part.WHOLE

    def tagged(self, sign: str) -> "Shown":
        return replace(self, document=replace(self.document, tag=f"{self.document.tag}.{sign}"))


@dataclass(slots=True)
class Began:
    """How things were when a fault began."""

    documents: dict[str, Document] = field(default_factory=dict)
    """By scope."""

    def document(self, now: Document) -> Document:
        return self.documents.setdefault(now.scope, now)


Change = Callable[[Shown, Began, timedelta], Shown]


def stale(shown: Shown, began: Began, _: timedelta) -> Shown:
    return replace(shown, document=began.document(shown.document))


def restarted(shown: Shown, began: Began, _: timedelta) -> Shown:
    before = began.document(shown.document).incarnation - 1
    incarnation = max(1, shown.document.incarnation - before)
    return replace(shown, document=replace(shown.document, incarnation=incarnation)).tagged(f"from-{before}")


def skewed(shown: Shown, _: Began, amount: timedelta) -> Shown:
    events = tuple(replace(event, not_before=event.not_before + amount) for event in shown.document.events)
    document = replace(shown.document, events=events)
    return replace(shown, document=document).tagged(f"skew-{amount.total_seconds():g}")


def with_iso_dates(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, version=replace(shown.version, iso_dates=True)).tagged("iso")


def with_rfc1123_dates(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, version=replace(shown.version, iso_dates=False)).tagged("rfc1123")


def with_sorted_keys(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, version=replace(shown.version, keys=tuple(sorted(shown.version.keys)))).tagged("sorted")


def halved(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, part=Part.HALF if shown.part is Part.WHOLE else shown.part)


def emptied(shown: Shown, _: Began, __: timedelta) -> Shown:
    return replace(shown, part=Part.NONE)


def answer(shown: Shown, condition: str | None) -> tuple[Response, int]:
    """What is sent, and how many bytes of it are missing at the end."""
    if shown.part is Part.NONE:
        return responses.with_body(200, b""), 0
    etag = wire_document.etag(shown.document)
    if shown.part is Part.WHOLE and condition is not None and wire_document.matches(condition, etag):
        return responses.not_modified(shown.document), 0
    body = wire_document.render(shown.document, shown.version)
    found = responses.with_body(200, body, responses.JSON + responses.validators(shown.document))
    return found, (len(body) + 1) // 2 if shown.part is Part.HALF else 0


NO_TIME = timedelta(0)
LONGEST_HOLD = timedelta(minutes=10)


class On(StrEnum):
    """Which requests meet a fault."""

    POLLS = "polls"
    APPROVALS = "approvals"
    ALL = "all"
    """Also `/metadata/instance` and `/metadata/versions`."""


class Since(StrEnum):
    """From when a hold is counted."""

    ARRIVAL = "arrival"
    FIRST = "first"
    """The first request that met the fault; later ones wait for the same moment."""
    SWITCH = "switch"
    """The fault was switched on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holds:
    """The request is carried out and answered later."""

    since: Since


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuses:
    """An error is answered, and the request is not carried out."""

    status: int
    message: str
    retry: bool = False
    """The amount is said in `Retry-After`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resets:
    """Nothing is answered, and the request is not carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Says:
    """This is answered, word for word, and the request is not carried out. Only recordings have it."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The request is carried out, and a document that it is answered with looks different."""

    document: Change
    date: bool = False
    """The amount is added to the `Date` of every answer, errors too."""


Effect = Holds | Refuses | Resets | Says | Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    name: str
    effect: Effect
    on: On
    amount: timedelta | None = None
    """What it is by default; None: there is none to give."""
    lasts: timedelta | None = None
    """By default; None: until it is switched off."""
    sees: str
    """What the client sees."""
    seen: str
    """Where that was seen."""

    def accept(
        self,
        *,
        amount: timedelta | None = None,
        times: int | None = None,
        lasts: timedelta | None = None,
        speed: float = 1,
    ) -> "Extent":
        """What comes of what is asked for, if this fault can be so. The speed divides what is not given, and limits."""
        if times is not None and times < 1:
            raise errors.RefusedError(f"a fault cannot happen {times} times: give 1 or more")
        if lasts is not None and lasts <= NO_TIME:
            raise errors.RefusedError("a fault cannot last no time: give a duration such as 30s")
        if self.effect == Holds(since=Since.SWITCH):
            # How much and how long are the same here.
            if amount is not None and lasts is not None:
                raise errors.RefusedError(f"{self.name} lasts for its amount: give one of the two")
            if amount == NO_TIME:
                raise errors.RefusedError(f"{self.name} cannot last no time: give a duration such as 5s")
            given = amount or lasts
            amount = lasts = (self.amount or NO_TIME) / speed if given is None else given
        if amount is not None:
            self._check_amount(amount, speed)
        return Extent(
            amount=(self.amount or NO_TIME) / speed if amount is None else amount,
            lasts=self.lasts / speed if self.lasts and lasts is None else lasts,
        )

    def _check_amount(self, amount: timedelta, speed: float) -> None:
        if self.amount is None:
            raise errors.RefusedError(f"{self.name} has no amount: leave it out")
        signed = isinstance(self.effect, Changes)
        if amount < NO_TIME and not signed:
            raise errors.RefusedError(f"the amount of {self.name} cannot be negative: give one such as 2s")
        longest = LONGEST_HOLD if isinstance(self.effect, Holds) else LONGEST
        if abs(amount) > longest / speed:
            raise errors.RefusedError(f"the amount of {self.name} is too long: give at most {_written(longest)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much of a fault there is, and how long."""

    amount: timedelta
    lasts: timedelta | None
    """None: until it is switched off."""


ALL = (
    Fault(
        name="slow-first-answer",
        effect=Holds(since=Since.FIRST),
        on=On.POLLS,
        amount=timedelta(minutes=2),
        sees="The first poll, and every one sent meanwhile, is answered only after two minutes.",
        seen="Microsoft's description of Scheduled Events: a first call, which switches them on, may take up to two"
        " minutes.",
    ),
    Fault(
        name="empty-body",
        effect=Changes(document=emptied),
        on=On.POLLS,
        sees="A poll is answered 200 with no body at all, and with no ETag.",
        seen="Captured from the real service on 2018-11-26 with api-version 2017-08-01, as an answer to a first call.",
    ),
    Fault(
        name="error-500",
        effect=Refuses(status=500, message="Internal server error. Try again"),
        on=On.ALL,
        sees="A request is answered 500 and not carried out: an approval has no effect.",
        seen="The metadata service's token endpoint (Azure/azure-sdk-for-net#19241); cloud-init asks again after it"
        " (canonical/cloud-init#1271).",
    ),
    Fault(
        name="error-503",
        effect=Refuses(status=503, message="Service unavailable. Try again later", retry=True),
        on=On.ALL,
        amount=timedelta(seconds=5),
        sees="A request is answered 503 with Retry-After, 5 seconds by default, and not carried out.",
        seen="One of the answers of the metadata service after which azure-init asks again (Azure/azure-init#63); ours"
        " when its store is out of reach.",
    ),
    Fault(
        name="error-410",
        effect=Refuses(status=410, message="Gone. The metadata service is being updated: try again within 70 seconds"),
        on=On.ALL,
        sees="A request is answered 410 and not carried out.",
        seen="Microsoft's description of the metadata service: it is being updated, and is back within 70 seconds"
        " (coreos/ignition#1806).",
    ),
    Fault(
        name="error-429",
        effect=Refuses(status=429, message="Too many requests. Send at most 5 per second", retry=True),
        on=On.ALL,
        amount=timedelta(seconds=1),
        sees="A request is answered 429 with Retry-After, 1 second by default, and not carried out.",
        seen="Microsoft's description of the metadata service: more than five requests per second of one VM, whichever"
        " of its processes sends them.",
    ),
    Fault(
        name="reset",
        effect=Resets(),
        on=On.ALL,
        sees="The connection is reset (TCP RST) in place of an answer, and the request is not carried out.",
        seen="By operators of any HTTP service that is restarted; no report names this endpoint.",
    ),
    Fault(
        name="half-document",
        effect=Changes(document=halved),
        on=On.POLLS,
        sees="A poll is answered with the Content-Length of the whole document and half of its bytes, then closed.",
        seen="By operators of any HTTP service that dies in the middle of an answer; no report names this endpoint.",
    ),
    Fault(
        name="latency",
        effect=Holds(since=Since.ARRIVAL),
        on=On.ALL,
        amount=timedelta(seconds=2),
        sees="Every request is carried out and answered 2 seconds late.",
        seen="A handler for AKS had to raise its timeout for Scheduled Events from 1 to 5 seconds"
        " (maksim-paskal/aks-node-termination-handler#73).",
    ),
    Fault(
        name="stale-document",
        effect=Changes(document=stale),
        on=On.POLLS,
        lasts=timedelta(seconds=50),
        sees="For 50 seconds polls are answered with the document as it was when the fault began.",
        seen="By operators of any HTTP service behind a cache; no report names this endpoint.",
    ),
    Fault(
        name="incarnation-restart",
        effect=Changes(document=restarted),
        on=On.POLLS,
        sees="DocumentIncarnation falls to 1 and grows from there, with ETags of its own.",
        seen="The real service, when a scope is heard again after a day of silence.",
    ),
    Fault(
        name="clock-skew",
        effect=Changes(document=skewed, date=True),
        on=On.ALL,
        amount=timedelta(minutes=5),
        sees="Date and every NotBefore are 5 minutes ahead of the client's clock, or behind it with a negative amount.",
        seen="VMs whose clock is off, on Azure too (Azure/AKS#1317, cockroachdb/cockroach#13808).",
    ),
    Fault(
        name="other-key-order",
        effect=Changes(document=with_sorted_keys),
        on=On.POLLS,
        sees="The keys of each event come in alphabetical order.",
        seen="Azure-Samples/scheduled-events-mock-server, whose Flask sorts them.",
    ),
    Fault(
        name="iso-dates",
        effect=Changes(document=with_iso_dates),
        on=On.POLLS,
        sees="NotBefore is written 2016-09-19T18:29:47Z in every api-version.",
        seen="Azure-Samples/scheduled-events-mock-server; the published examples of api-version 2017-03-01.",
    ),
    Fault(
        name="rfc1123-dates",
        effect=Changes(document=with_rfc1123_dates),
        on=On.POLLS,
        sees="NotBefore is written Mon, 19 Sep 2016 18:29:47 GMT in api-version 2017-03-01, too.",
        seen="The real service, though its description of that version shows ISO dates.",
    ),
    Fault(
        name="frozen",
        effect=Holds(since=Since.SWITCH),
        on=On.ALL,
        amount=timedelta(seconds=5),
        sees="Nothing is answered for 5 seconds; what was asked meanwhile is carried out and answered then.",
        seen="Any VM that is paused: a Freeze event lasts seconds for those inside.",
    ),
)
"""Those of the document change it in this order."""

_BY_NAME: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in ALL})


def find(name: str) -> Fault:
    found = _BY_NAME.get(name)
    if found is None:
        raise errors.RefusedError(f"there is no fault {name[:80]!r}: {_suggestion(name)}")
    return found


def read_amount(text: str) -> timedelta:
    """`2s`, or `-5m` for a clock that is behind."""
    span = Span.read(text.removeprefix("-"))
    return -span if text.startswith("-") else span


def _suggestion(name: str) -> str:
    # Imported only now: it is not small, and most names are right.
    from difflib import get_close_matches

    near = get_close_matches(name, _BY_NAME, 1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(_BY_NAME)}"


def _written(span: timedelta) -> str:
    return f"{span.days}d" if span.days else f"{span.seconds // 60}m"
