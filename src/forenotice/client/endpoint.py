"""One metadata service as a guest sees it: where it is, what it said last, and how long to wait for it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from forenotice import __version__
from forenotice.client import documents, finding, refusals, skew
from forenotice.client.errors import EndpointError
from forenotice.client.events import Document
from forenotice.client.exchange import Answer, ProtocolError
from forenotice.client.finding import Candidate
from forenotice.client.flow import Ask, Flow, Pause
from forenotice.client.negotiating import NEWEST, Negotiation
from forenotice.client.pace import Pace
from forenotice.clock import MachineClock
from forenotice.core import errors

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
class Heard:
    """What a poll brought."""

    known: Known | None
    """None: there was no document yet."""
    shown: bool
    """The endpoint showed it, or said that it still holds; not so if it said nothing, or showed an older one."""
    date: datetime | None
    waited: bool
    """The server was asked to wait with its answer, which tells whether it does."""


class Endpoint:
    def __init__(self, given: Candidate | None, search: Callable[[], Sequence[Candidate]], pace: Pace) -> None:
        self._given = self._chosen = given
        self._search = search
        self._pace = pace
        self.negotiation = Negotiation(pace.probe)
        self._timeouts = self._failures = 0
        self._behind_since: float | None = None
        """When the first of nothing but older documents came."""
        self.known: Known | None = None
        self.ahead = 0.0
        """Seconds by which its clock is ahead of this machine's."""

    @property
    def at(self) -> Candidate:
        """Where it is, or else where it is looked for first."""
        return self._chosen or finding.USUAL

    # What a guest says

    def poll(self, wait: int = 0) -> Flow[Heard]:
        """EndpointError: it said nothing that can be used, which is not that there are no events."""
        try:
            heard = yield from self._poll(wait)
        except EndpointError:
            self._failures += 1
            if self._failures >= AWAY:
                self._chosen = self._given
                self.negotiation.accepted = ""
            raise
        self._failures = 0
        return heard

    def approve(self, event_ids: Sequence[str]) -> Flow[None]:
        body = msgspec.json.encode({"StartRequests": [{"EventId": event_id} for event_id in event_ids]})
        version = self.negotiation.version
        answer = yield from self._approve(version, body)
        if self.negotiation.is_refused(version, answer):
            yield from self.poll()
            if self.negotiation.version != version:
                answer = yield from self._approve(self.negotiation.version, body)
        if answer.status == 400:
            raise errors.RefusedError(refusals.refusal(self.at, answer).message)
        if answer.status != 200:
            raise refusals.refusal(self.at, answer)

    def ask(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Flow[Answer]:
        """An answer of whatever status, from an endpoint that is known to be one."""
        if self._chosen is None:
            yield from self.poll()
        candidate = self.at
        try:
            return (yield from self._put(candidate, method, target, headers or {}, body))
        except (OSError, ProtocolError) as error:
            raise refusals.unreachable([(candidate, error)]) from None

    # How it is done

    def _approve(self, version: str, body: bytes) -> Flow[Answer]:
        return self.ask("POST", TARGET + version, {"Content-Type": "application/json"}, body)

    def _poll(self, wait: int) -> Flow[Heard]:
        # Others may ask meanwhile, and hear of another document.
        known = self.known
        candidate = self._chosen
        headers: dict[str, str] = {}
        asked_at = time.monotonic()
        if candidate is None:
            # No tag: that of one service means nothing to another.
            version = self.negotiation.version = NEWEST
            candidate, answer = yield from self._go_round()
        else:
            version = self.negotiation.begin()
            headers = _condition(known, version, wait)
            answer = yield from self._get(candidate, version, headers, wait)
        while lower := self.negotiation.lower(version, answer):
            yield Pause(self._pace.interval / STEPS)
            version = lower
            headers = _condition(known, version, wait)
            asked_at = time.monotonic()
            answer = yield from self._get(candidate, version, headers, wait)
        if answer.status in (200, 304):
            self.negotiation.accepted = version
        date = refusals.date(answer)
        if date is not None:
            self.ahead = skew.ahead(date, MachineClock().now(), time.monotonic() - asked_at, self.ahead)
        found = self._read(candidate, version, answer, known if headers else None)
        if found is not None and found.is_older_than(self.known):
            self._behind_since = self._behind_since or time.monotonic()
            if time.monotonic() - self._behind_since < self._pace.behind:
                # From a server behind a load balancer that is a moment behind: it says nothing new.
                return Heard(known=self.known, shown=False, date=date, waited=False)
        self._behind_since = None
        if answer.status != 304 or self.known is known:
            self.known = found
        shown = answer.status == 304 or bool(answer.body.strip())
        return Heard(known=found, shown=shown, date=date, waited=PREFER in headers)

    def _get(self, candidate: Candidate, version: str, headers: Mapping[str, str], wait: int) -> Flow[Answer]:
        try:
            return (
                yield from self._put(
                    candidate, "GET", TARGET + version, headers, None, wait if PREFER in headers else 0
                )
            )
        except (OSError, ProtocolError) as error:
            self.negotiation.forget()
            raise refusals.unreachable([(candidate, error)]) from None

    def _go_round(self) -> Flow[tuple[Candidate, Answer]]:
        """The first that answers as a metadata service does; from then on it is the one."""
        failures: list[tuple[Candidate, Exception]] = []
        for candidate in self._search():
            try:
                answer = yield from self._put(candidate, "GET", TARGET + NEWEST, {}, None)
            except (OSError, ProtocolError) as error:
                failures.append((candidate, error))
                continue
            if _is_metadata_service(answer):
                self._chosen = candidate
                return candidate, answer
            failures.append((candidate, refusals.refusal(candidate, answer)))
        raise refusals.unreachable(failures)

    def _put(
        self,
        candidate: Candidate,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        wait: int = 0,
    ) -> Flow[Answer]:
        patience = self._pace.first_timeout if self.known is None else self._pace.patience(self._timeouts) + wait
        try:
            answer: Answer = yield Ask(
                host=candidate.host,
                port=candidate.port,
                method=method,
                target=target,
                headers={**HEADERS, **headers},
                body=body,
                timeout=patience,
            )
        except TimeoutError:
            self._timeouts += 1
            raise
        self._timeouts = 0
        return answer

    def _read(self, candidate: Candidate, version: str, answer: Answer, named: Known | None) -> Known | None:
        """What was `named` in the request is what a 304 confirms."""
        known = named or self.known
        tag, epoch = (_short(answer.headers.get(name, "")) for name in ("etag", EPOCH))
        if answer.status == 304 and named is not None:
            body, tag, epoch = named.body, named.tag, named.epoch
        elif answer.status != 200:
            raise refusals.refusal(candidate, answer)
        elif not answer.body.strip():
            # The real service does that at times: no news, and nothing is gone.
            return self.known
        else:
            body = answer.body
        same = known is not None and (known.version, known.body, known.tag, known.epoch, known.ahead)
        if same == (version, body, tag, epoch, self.ahead):
            return known
        try:
            document = documents.decode(body, self.ahead)
            return Known(version=version, body=body, tag=tag, epoch=epoch, ahead=self.ahead, document=document)
        except ValueError as error:
            raise refusals.no_document(candidate, error) from None


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_TAG else ""


def _condition(known: Known | None, version: str, wait: int) -> dict[str, str]:
    # A tag is of an incarnation, whatever the version: a 304 would leave us without what this one adds.
    if known is None or not known.tag or known.version != version:
        return {}
    condition = {"If-None-Match": known.tag}
    return {**condition, PREFER: f"wait={wait}"} if wait else condition


def _is_metadata_service(answer: Answer) -> bool:
    """It gives a document, or nothing, or says in its own way what is wrong."""
    if answer.status != 200:
        return bool(refusals.said(answer) or refusals.newest_versions(answer))
    try:
        return not answer.body.strip() or bool(documents.decode(answer.body))
    except ValueError:
        return False
