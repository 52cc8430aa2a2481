"""The faults there are: one table, one row each. docs/faults.md is this table, and a test compares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TypedDict, Unpack

from forenotice.core import errors
from forenotice.core.documents import Document
from forenotice.core.timing import Timing
from forenotice.metadata import responses
from forenotice.metadata.responses import Response
from forenotice.settings.values import LONGEST, Span
from forenotice.toml import nearest
from forenotice.wire import document as wire_document
from forenotice.wire.versions import Version

NO_TIME = timedelta(0)
LONGEST_DELAY = timedelta(minutes=10)

# What a poll is shown in place of the document


class Part(Enum):
    """How much of the body is sent."""

    WHOLE = "whole"
    HALF = "half"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentView:
    """What a poll is shown, before it is bytes. A document that looks different has another tag, so that no 304 hides
    the fault from a client that knows the true one."""

    document: Document
    version: Version
    part: Part = Part.WHOLE

    def tagged(self, sign: str) -> "DocumentView":
        return replace(self, document=replace(self.document, tag=f"{self.document.tag}.{sign}"))

    def response(self, condition: str | None) -> tuple[Response, int]:
        """What is sent, and how many bytes of it are missing at the end."""
        if self.part is Part.NONE:
            return responses.with_body(200, b""), 0
        etag = wire_document.etag(self.document)
        if self.part is Part.WHOLE and condition is not None and wire_document.matches(condition, etag):
            return responses.not_modified(self.document), 0
        body = wire_document.render(self.document, self.version)
        found = responses.with_body(200, body, responses.JSON + responses.validators(self.document))
        return found, (len(body) + 1) // 2 if self.part is Part.HALF else 0


Baseline = dict[str, Document]
"""The documents when a fault began, by scope."""
Change = Callable[[DocumentView, Baseline, timedelta], DocumentView]


def stale(view: DocumentView, baseline: Baseline, _: timedelta) -> DocumentView:
    return replace(view, document=baseline.setdefault(view.document.scope, view.document))


def restarted(view: DocumentView, baseline: Baseline, _: timedelta) -> DocumentView:
    before = baseline.setdefault(view.document.scope, view.document).incarnation - 1
    incarnation = max(1, view.document.incarnation - before)
    return replace(view, document=replace(view.document, incarnation=incarnation)).tagged(f"from-{before}")


def skewed(view: DocumentView, _: Baseline, amount: timedelta) -> DocumentView:
    events = tuple(replace(event, not_before=event.not_before + amount) for event in view.document.events)
    return replace(view, document=replace(view.document, events=events)).tagged(f"skew-{amount.total_seconds():g}")


def with_dates(*, iso: bool) -> Change:
    def change(view: DocumentView, _: Baseline, __: timedelta) -> DocumentView:
        return replace(view, version=replace(view.version, iso_dates=iso)).tagged("iso" if iso else "rfc1123")

    return change


def with_sorted_keys(view: DocumentView, _: Baseline, __: timedelta) -> DocumentView:
    return replace(view, version=replace(view.version, keys=tuple(sorted(view.version.keys)))).tagged("sorted")


def halved(view: DocumentView, _: Baseline, __: timedelta) -> DocumentView:
    return replace(view, part=Part.HALF if view.part is Part.WHOLE else view.part)


def emptied(view: DocumentView, _: Baseline, __: timedelta) -> DocumentView:
    return replace(view, part=Part.NONE)


# What a fault does


class On(StrEnum):
    """Which requests meet a fault."""

    POLLS = "polls"
    APPROVALS = "approvals"
    ALL = "all"
    """Also `/metadata/instance` and `/metadata/versions`."""


class Since(StrEnum):
    """From when a delay is counted."""

    ARRIVAL = "arrival"
    FIRST = "first"
    """The first request that met the fault; later ones wait for the same moment."""
    SWITCH = "switch"
    """The fault was switched on."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The request is carried out and answered later."""

    since: Since


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """An error is answered, and the request is not carried out."""

    status: int
    message: str
    retry: bool = False
    """`Retry-After` gives the amount."""


@dataclass(frozen=True, slots=True)
class ConnectionReset:
    """Nothing is answered, and the request is not carried out."""


@dataclass(frozen=True, slots=True)
class FixedResponse:
    """These bytes are answered, and the request is not carried out. Only recordings have it."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """The request is carried out, and a document that it is answered with looks different."""

    document: Change
    date: bool = False
    """The amount is added to the `Date` of every response, errors too."""


Effect = Delay | ErrorResponse | ConnectionReset | FixedResponse | DocumentChange


class FaultOptions(TypedDict, total=False):
    """How a fault is switched on; what is absent or None is its default."""

    amount: timedelta | None
    on: str | None
    """Which requests meet it, such as `polls`."""
    times: int | None
    """How many requests meet it."""
    lasts: timedelta | None


def shortened(options: FaultOptions, timing: Timing) -> FaultOptions:
    """Durations as people write them, divided by the speed."""
    amount, lasts = options.get("amount"), options.get("lasts")
    return {
        **options,
        "amount": None if amount is None else timing.shortened(amount),
        "lasts": None if lasts is None else timing.shortened(lasts),
    }


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    effect: Effect
    on: On
    symptom: str
    """What the client sees."""
    evidence: str
    """Where that was seen."""
    amount: timedelta | None = None
    """The default; None: it takes no amount."""
    lasts: timedelta | None = None
    """The default; None: until it is switched off."""

    def accept(self, *, speed: float = 1, **options: Unpack[FaultOptions]) -> tuple[timedelta, timedelta | None]:
        """Validate the options; gives the amount and how long it lasts (None: until it is switched off), with defaults.

        The speed divides defaults and limits."""
        amount, times, lasts = options.get("amount"), options.get("times"), options.get("lasts")
        if times is not None and times < 1:
            raise errors.RefusedError(f"a fault cannot happen {times} times: give 1 or more")
        if lasts is not None and lasts <= NO_TIME:
            raise errors.RefusedError("a fault cannot last no time: give a duration such as 30s")
        if self.effect == Delay(Since.SWITCH):
            # How much and how long are the same here.
            if amount is not None and lasts is not None:
                raise errors.RefusedError(f"{self.name} lasts for its amount: give one of the two")
            if amount == NO_TIME:
                raise errors.RefusedError(f"{self.name} cannot last no time: give a duration such as 5s")
            given = amount or lasts
            amount = lasts = (self.amount or NO_TIME) / speed if given is None else given
        if amount is not None:
            self._check_amount(amount, speed)
        given = (self.amount or NO_TIME) / speed if amount is None else amount
        return given, self.lasts / speed if self.lasts and lasts is None else lasts

    def _check_amount(self, amount: timedelta, speed: float) -> None:
        if self.amount is None:
            raise errors.RefusedError(f"{self.name} has no amount: leave it out")
        if amount < NO_TIME and not isinstance(self.effect, DocumentChange):
            raise errors.RefusedError(f"the amount of {self.name} cannot be negative: give one such as 2s")
        longest = LONGEST_DELAY if isinstance(self.effect, Delay) else LONGEST
        if abs(amount) > longest / speed:
            written = f"{longest.days}d" if longest.days else f"{longest.seconds // 60}m"
            raise errors.RefusedError(f"the amount of {self.name} is too long: give at most {written}")


ALL = (
    Fault(
        "slow-first-answer",
        Delay(Since.FIRST),
        On.POLLS,
        "The first poll, and every one sent meanwhile, is answered only after two minutes.",
        "Microsoft's description of Scheduled Events: a first call, which switches them on, may take up to two"
        " minutes.",
        amount=timedelta(minutes=2),
    ),
    Fault(
        "empty-body",
        DocumentChange(emptied),
        On.POLLS,
        "A poll is answered 200 with no body at all, and with no ETag.",
        "Captured from the real service on 2018-11-26 with api-version 2017-08-01, as an answer to a first call.",
    ),
    Fault(
        "error-500",
        ErrorResponse(500, "Internal server error. Try again"),
        On.ALL,
        "A request is answered 500 and not carried out: an approval has no effect.",
        "The metadata service's token endpoint (Azure/azure-sdk-for-net#19241); cloud-init asks again after it"
        " (canonical/cloud-init#1271).",
    ),
    Fault(
        "error-503",
        ErrorResponse(503, "Service unavailable. Try again later", retry=True),
        On.ALL,
        "A request is answered 503 with Retry-After, 5 seconds by default, and not carried out.",
        "One of the answers of the metadata service after which azure-init asks again (Azure/azure-init#63); ours when"
        " its store is out of reach.",
        amount=timedelta(seconds=5),
    ),
    Fault(
        "error-410",
        ErrorResponse(410, "Gone. The metadata service is being updated: try again within 70 seconds"),
        On.ALL,
        "A request is answered 410 and not carried out.",
        "Microsoft's description of the metadata service: it is being updated, and is back within 70 seconds"
        " (coreos/ignition#1806).",
    ),
    Fault(
        "error-429",
        ErrorResponse(429, "Too many requests. Send at most 5 per second", retry=True),
        On.ALL,
        "A request is answered 429 with Retry-After, 1 second by default, and not carried out.",
        "Microsoft's description of the metadata service: more than five requests per second of one VM, whichever of"
        " its processes sends them.",
        amount=timedelta(seconds=1),
    ),
    Fault(
        "reset",
        ConnectionReset(),
        On.ALL,
        "The connection is reset (TCP RST) in place of an answer, and the request is not carried out.",
        "By operators of any HTTP service that is restarted; no report names this endpoint.",
    ),
    Fault(
        "half-document",
        DocumentChange(halved),
        On.POLLS,
        "A poll is answered with the Content-Length of the whole document and half of its bytes, then closed.",
        "By operators of any HTTP service that dies in the middle of an answer; no report names this endpoint.",
    ),
    Fault(
        "latency",
        Delay(Since.ARRIVAL),
        On.ALL,
        "Every request is carried out and answered 2 seconds late.",
        "A handler for AKS had to raise its timeout for Scheduled Events from 1 to 5 seconds"
        " (maksim-paskal/aks-node-termination-handler#73).",
        amount=timedelta(seconds=2),
    ),
    Fault(
        "stale-document",
        DocumentChange(stale),
        On.POLLS,
        "For 50 seconds polls are answered with the document as it was when the fault began.",
        "By operators of any HTTP service behind a cache; no report names this endpoint.",
        lasts=timedelta(seconds=50),
    ),
    Fault(
        "incarnation-restart",
        DocumentChange(restarted),
        On.POLLS,
        "DocumentIncarnation falls to 1 and grows from there, with ETags of its own.",
        "The real service, when a scope is heard again after a day of silence.",
    ),
    Fault(
        "clock-skew",
        DocumentChange(skewed, date=True),
        On.ALL,
        "Date and every NotBefore are 5 minutes ahead of the client's clock, or behind it with a negative amount.",
        "VMs whose clock is off, on Azure too (Azure/AKS#1317, cockroachdb/cockroach#13808).",
        amount=timedelta(minutes=5),
    ),
    Fault(
        "other-key-order",
        DocumentChange(with_sorted_keys),
        On.POLLS,
        "The keys of each event come in alphabetical order.",
        "Azure-Samples/scheduled-events-mock-server, whose Flask sorts them.",
    ),
    Fault(
        "iso-dates",
        DocumentChange(with_dates(iso=True)),
        On.POLLS,
        "NotBefore is written 2016-09-19T18:29:47Z in every api-version.",
        "Azure-Samples/scheduled-events-mock-server; the published examples of api-version 2017-03-01.",
    ),
    Fault(
        "rfc1123-dates",
        DocumentChange(with_dates(iso=False)),
        On.POLLS,
        "NotBefore is written Mon, 19 Sep 2016 18:29:47 GMT in api-version 2017-03-01, too.",
        "The real service, though its description of that version shows ISO dates.",
    ),
    Fault(
        "frozen",
        Delay(Since.SWITCH),
        On.ALL,
        "Nothing is answered for 5 seconds; what was asked meanwhile is carried out and answered then.",
        "Any VM that is paused: a Freeze event lasts seconds for those inside.",
        amount=timedelta(seconds=5),
    ),
)
"""Those of the document change it in this order."""

_BY_NAME: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in ALL})


def find(name: str) -> Fault:
    found = _BY_NAME.get(name)
    if found is None:
        raise errors.RefusedError(nearest(name, list(_BY_NAME), "fault"))
    return found


class Amount(timedelta):
    """Of a fault: `2s`, or `-5m` for a clock that is behind."""

    @classmethod
    def read(cls, written: object) -> "Amount":
        text = str(written)
        seconds = Span.read(text.removeprefix("-")).total_seconds()
        return cls(seconds=-seconds if text.startswith("-") else seconds)
