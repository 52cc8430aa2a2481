"""The metadata endpoint as a guest uses it, without a socket: where it is, its last document, what to request next.

Methods are generators of steps, which the blocking and the asynchronous client carry out alike. A request that fails
is thrown into the generator as the OSError or ProtocolError that it failed with.
"""

import os
import re
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import msgspec

from forenotice import __version__
from forenotice.client import discovery, errors
from forenotice.client.discovery import Candidate
from forenotice.client.errors import EndpointError
from forenotice.client.events import NO_EVENTS, Document, Event, decode
from forenotice.client.http import ProtocolError, Response
from forenotice.client.negotiation import NEWEST, Negotiation
from forenotice.clock import MachineClock
from forenotice.core import backoff
from forenotice.core.errors import RefusedError

R = TypeVar("R")
T = TypeVar("T")

TARGET = "/metadata/scheduledevents?api-version="
"""The version comes after it."""
HEADERS: Mapping[str, str] = {"Metadata": "true", "User-Agent": f"forenotice/{__version__}"}
PREFER = "Prefer"
EPOCH = "forenotice-epoch"
"""Of two documents with the same value, that with the lower incarnation is the older one."""
LONGEST_TAG = 1024
"""Also of an epoch."""
STEPS = 5
"""Versions that are tried in the time from one poll to the next: as many as the real service bears."""
AWAY = 6
"""Failures in a row after which the endpoint is looked for once more."""
UNSURE = 2.0
"""Seconds by which clocks may differ unnoticed: `Date` has whole ones."""
STEADY = 1.0
"""Seconds by which a known difference must be wrong to be given up."""
NAME_VARIABLE = "FORENOTICE_NAME"
NAME_TARGET = "/metadata/instance/compute/name?api-version={version}&format=text"
NAME_VERSION = "2021-02-01"
HOST_NAME = "host name"

_NAME = re.compile(r'[^\s<>{}"]{1,256}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a guest polls, how long it waits, and how it slows down after failures: seconds, all of them."""

    interval: float = 1.0
    """From one poll to the next."""
    wait: int = 10
    """How long a long poll may last; whole seconds (RFC 7240). Any longer, a connection that died unnoticed would hide
    a Preempt."""
    at_once: float = 0.9
    """A server that responds to a long poll earlier than this, with nothing new, does not support it."""
    probe: float = 300.0
    """Until long polling, or the newest api-version, is tried again at a server without support for it."""
    first_timeout: float = 130.0
    """Until there was a document: the real service may take two minutes for its first response."""
    timeout: float = 10.0
    """Afterwards, in addition to `wait`; doubles with every timeout."""
    connect_timeout: float = 5.0
    first_pause: float = 1.0
    """After a failure; doubles with each that follows."""
    longest_pause: float = 10.0
    """Preempt gives 30 seconds in all."""
    longest_retry_after: float = 120.0
    behind: float = 30.0
    """For which older documents are ignored. A server behind a load balancer catches up much sooner; one whose database
    was restored unnoticed never does."""

    def after(self, failures: int, error: EndpointError) -> float:
        pause = backoff.pause(failures, self.first_pause, self.longest_pause)
        return max(pause, min(error.retry_after, self.longest_retry_after))

    def patience(self, timeouts: int) -> float:
        """The timeout of a response, after so many timeouts in a row."""
        return backoff.pause(timeouts + 1, self.timeout, self.first_timeout)


USUAL = Pace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A step that is answered by an http.Response."""

    host: str
    port: int
    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    timeout: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Steps: TypeAlias = Generator[Request | Pause, Any, R]
"""End with a result."""
Stream: TypeAlias = Generator[Request | Pause | T, Any, None]
"""Yields results among its steps; what is sent for a result is ignored."""
Outcome: TypeAlias = Response | OSError | ProtocolError | None


def resume(steps: Generator[T, Any, Any], outcome: Outcome) -> T:
    """Pass on the outcome of the last step; gives the next. StopIteration: it has ended, with its result."""
    return steps.throw(outcome) if isinstance(outcome, Exception) else steps.send(outcome)


@dataclass(frozen=True, slots=True)
class Name:
    text: str
    how: str
    """Where it is from, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A document as it came."""

    version: str
    body: bytes
    tag: str
    epoch: str
    ahead: float
    document: Document

    def is_older_than(self, other: "Known | None") -> bool:
        """False unless both have the same epoch: elsewhere incarnations may start again."""
        if other is None or not self.epoch or self.epoch != other.epoch:
            return False
        return self.document.incarnation < other.document.incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """The result of a poll."""

    known: Known | None
    """None: there was no document yet."""
    shown: bool
    """The endpoint sent it, or said that it still holds; not so if it sent nothing, or an older one."""
    date: datetime | None
    waited: bool
    """It was a long poll, which shows whether the server supports them."""


class Endpoint:
    def __init__(self, url: str | None, name: str | None, pace: Pace, leases: Sequence[str]) -> None:
        self._given = self._chosen = discovery.given(url, os.environ)
        self._leases = leases
        self.pace = pace
        self.patient = True
        """Use long polls where the server supports them."""
        self.negotiation = Negotiation(pace.probe)
        self._timeouts = self._failures = 0
        self._behind_since: float | None = None
        """When the first of nothing but older documents came."""
        self.known: Known | None = None
        self.ahead = 0.0
        """Seconds by which its clock is ahead of this machine's."""
        self.name: Name | None = None
        """This VM's, for good; a host name is only a guess, and the endpoint is asked again."""
        variable = os.environ.get(NAME_VARIABLE)
        if found := name or variable:
            self.name = Name(found, NAME_VARIABLE if found == variable else "given")

    @property
    def at(self) -> Candidate:
        """Where it is, or else where it is looked for first."""
        return self._chosen or discovery.WELL_KNOWN

    def poll(self, wait: int = 0) -> Steps[Polled]:
        """EndpointError: there is no usable response, which does not mean that there are no events."""
        try:
            polled = yield from self._poll(wait)
        except EndpointError:
            self._failures += 1
            if self._failures >= AWAY:
                self._chosen = self._given
                self.negotiation.accepted = ""
            raise
        self._failures = 0
        return polled

    def document(self) -> Steps[Document]:
        known = (yield from self.poll()).known
        return known.document if known else NO_EVENTS

    def events(self, mine: bool) -> Steps[tuple[Event, ...]]:
        document = yield from self.document()
        return (yield from self.relevant(document, mine))

    def relevant(self, document: Document, mine: bool) -> Steps[tuple[Event, ...]]:
        """The events that are about this VM, as far as its name is known; unless `mine`, all of them."""
        if not mine or not document.events:
            return document.events
        me = (yield from self.find_name()).text
        return tuple(event for event in document.events if event.names(me))

    def approve(self, *events: Event | str) -> Steps[None]:
        ids = [event if isinstance(event, str) else event.id for event in events]
        body = msgspec.json.encode({"StartRequests": [{"EventId": event_id} for event_id in ids]})
        version = self.negotiation.version
        response = yield from self._approve(version, body)
        if self.negotiation.is_refused(version, response):
            yield from self.poll()
            if self.negotiation.version != version:
                response = yield from self._approve(self.negotiation.version, body)
        if response.status == 400:
            raise RefusedError(errors.refused(self.at, response).message)
        if response.status != 200:
            raise errors.refused(self.at, response)

    def me(self) -> Steps[str]:
        return (yield from self.find_name()).text

    def find_name(self) -> Steps[Name]:
        """EndpointError: it could not be asked. A guess then would hide this VM's own events."""
        if self.name is not None:
            return self.name
        # An older endpoint knows the version of its events, but may not know ours.
        first = NAME_VERSION if self.negotiation.version == NEWEST else self.negotiation.version
        response = yield from self._request("GET", NAME_TARGET.format(version=first))
        if response.status == 400:
            if not self.negotiation.accepted:
                with suppress(EndpointError):
                    yield from self.poll()
            second = NAME_VERSION if first != NAME_VERSION else self.negotiation.version
            response = yield from self._request("GET", NAME_TARGET.format(version=second))
        text = response.body.decode("utf-8-sig", "replace").strip()
        if response.status == 200 and _NAME.fullmatch(text):
            self.name = Name(text, "the endpoint")
            return self.name
        if response.status in (400, 404) or (response.status == 200 and text):
            # An endpoint that has no /metadata/instance: emulators.
            return Name(socket.gethostname().partition(".")[0], HOST_NAME)
        if response.status != 200:
            raise errors.refused(self.at, response)
        raise EndpointError(f"{self.at.url} did not say what this VM is called", cause="no name")

    def _approve(self, version: str, body: bytes) -> Steps[Response]:
        return self._request("POST", TARGET + version, {"Content-Type": "application/json"}, body)

    def _request(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Steps[Response]:
        """A response of whatever status, from an endpoint that is known to be one."""
        if self._chosen is None:
            yield from self.poll()
        candidate = self.at
        try:
            return (yield from self._send(candidate, method, target, headers or {}, body))
        except (OSError, ProtocolError) as error:
            raise errors.unreachable([(candidate, error)]) from None

    def _poll(self, wait: int) -> Steps[Polled]:
        # Others may poll meanwhile, and get another document.
        known = self.known
        candidate = self._chosen
        headers: dict[str, str] = {}
        asked_at = time.monotonic()
        if candidate is None:
            # No tag: that of one service means nothing to another.
            version = self.negotiation.version = NEWEST
            candidate, response = yield from self._find()
        else:
            version = self.negotiation.begin()
            headers = _condition(known, version, wait)
            response = yield from self._get(candidate, version, headers, wait)
        while lower := self.negotiation.lower(version, response):
            yield Pause(self.pace.interval / STEPS)
            version = lower
            headers = _condition(known, version, wait)
            asked_at = time.monotonic()
            response = yield from self._get(candidate, version, headers, wait)
        if response.status in (200, 304):
            self.negotiation.accepted = version
        date = errors.date_of(response)
        if date is not None:
            self.ahead = clock_ahead(date, MachineClock().now(), time.monotonic() - asked_at, self.ahead)
        found = self._read(candidate, version, response, known if headers else None)
        if found is not None and found.is_older_than(self.known):
            self._behind_since = self._behind_since or time.monotonic()
            if time.monotonic() - self._behind_since < self.pace.behind:
                # From a server behind a load balancer that is a moment behind: nothing new.
                return Polled(known=self.known, shown=False, date=date, waited=False)
        self._behind_since = None
        if response.status != 304 or self.known is known:
            self.known = found
        shown = response.status == 304 or bool(response.body.strip())
        return Polled(known=found, shown=shown, date=date, waited=PREFER in headers)

    def _get(self, candidate: Candidate, version: str, headers: Mapping[str, str], wait: int) -> Steps[Response]:
        wait = wait if PREFER in headers else 0
        try:
            return (yield from self._send(candidate, "GET", TARGET + version, headers, None, wait))
        except (OSError, ProtocolError) as error:
            self.negotiation.forget()
            raise errors.unreachable([(candidate, error)]) from None

    def _find(self) -> Steps[tuple[Candidate, Response]]:
        """The first that responds as a metadata service does; it is used from then on."""
        failures: list[tuple[Candidate, Exception]] = []
        for candidate in discovery.candidates(self._leases):
            try:
                response = yield from self._send(candidate, "GET", TARGET + NEWEST, {}, None)
            except (OSError, ProtocolError) as error:
                failures.append((candidate, error))
                continue
            if _is_metadata_service(response):
                self._chosen = candidate
                return candidate, response
            failures.append((candidate, errors.refused(candidate, response)))
        raise errors.unreachable(failures)

    def _send(
        self,
        candidate: Candidate,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        wait: int = 0,
    ) -> Steps[Response]:
        timeout = self.pace.first_timeout if self.known is None else self.pace.patience(self._timeouts) + wait
        try:
            response: Response = yield Request(
                host=candidate.host,
                port=candidate.port,
                method=method,
                target=target,
                headers={**HEADERS, **headers},
                body=body,
                timeout=timeout,
            )
        except TimeoutError:
            self._timeouts += 1
            raise
        self._timeouts = 0
        return response

    def _read(self, candidate: Candidate, version: str, response: Response, named: Known | None) -> Known | None:
        """What was `named` in the request is what a 304 confirms."""
        known = named or self.known
        tag, epoch = (_short(response.headers.get(name, "")) for name in ("etag", EPOCH))
        if response.status == 304 and named is not None:
            body, tag, epoch = named.body, named.tag, named.epoch
        elif response.status != 200:
            raise errors.refused(candidate, response)
        elif not response.body.strip():
            # The real service does that at times: no news, and nothing is gone.
            return self.known
        else:
            body = response.body
        same = known is not None and (known.version, known.body, known.tag, known.epoch, known.ahead)
        if same == (version, body, tag, epoch, self.ahead):
            return known
        try:
            document = decode(body, self.ahead)
        except ValueError as error:
            message = f"{candidate.url} gave no Scheduled Events document: {error}"
            raise EndpointError(message, cause="no document") from None
        return Known(version=version, body=body, tag=tag, epoch=epoch, ahead=self.ahead, document=document)


class BaseClient:
    """What both clients have: the endpoint, and what is known of it."""

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        name: str | None = None,
        pace: Pace = USUAL,
        leases: Sequence[str] = discovery.LEASES,
    ) -> None:
        """Without an endpoint, FORENOTICE_ENDPOINT or else the usual places.

        Without a name, FORENOTICE_NAME or else the name that the endpoint has for this VM.
        """
        self.remote = Endpoint(endpoint, name, pace, leases)
        self._open(pace.connect_timeout)

    def _open(self, connect_timeout: float) -> None:
        raise NotImplementedError

    @property
    def endpoint(self) -> str:
        """Its address; before it was found, the address that is tried first."""
        return self.remote.at.url

    @property
    def api_version(self) -> str:
        """The version of requests: the newest, or the newest that the endpoint knows, too."""
        return self.remote.negotiation.version

    @property
    def ahead(self) -> float:
        """Seconds by which the endpoint's clock is ahead of this machine's; differences up to 2 count as none."""
        return self.remote.ahead

    @property
    def patient(self) -> bool:
        """Use long polls where the server supports them; otherwise poll once a second, from the next request on."""
        return self.remote.patient

    @patient.setter
    def patient(self, patient: bool) -> None:
        self.remote.patient = patient


def clock_ahead(date: datetime, now: datetime, took: float, known: float) -> float:
    """By the `Date` of a response that came `now` and took so many seconds, during any of which it may be dated."""
    # On average half a second of the second that it names has passed.
    least = (date - now).total_seconds() + 0.5
    most = least + took
    if least - STEADY <= known <= most + STEADY:
        return known
    nearest = min(max(0.0, least), most)
    return nearest if abs(nearest) > UNSURE else 0.0


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_TAG else ""


def _condition(known: Known | None, version: str, wait: int) -> dict[str, str]:
    # A tag is of an incarnation, whatever the version: a 304 would leave us without what this one adds.
    if known is None or not known.tag or known.version != version:
        return {}
    condition = {"If-None-Match": known.tag}
    return {**condition, PREFER: f"wait={wait}"} if wait else condition


def _is_metadata_service(response: Response) -> bool:
    """It gives a document, or nothing, or an error in the protocol's shape."""
    if response.status != 200:
        return bool(errors.message_of(response) or errors.newest_versions(response))
    try:
        return not response.body.strip() or bool(decode(response.body))
    except ValueError:
        return False
