"""`forenotice guest doctor`: what keeps this VM from receiving its events, found by requests such as guests send."""

import ipaddress
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import median
from time import monotonic

from forenotice.cli.output import Output
from forenotice.client import Client
from forenotice.client import errors as client_errors
from forenotice.client.endpoint import HEADERS, HOST_NAME, TARGET
from forenotice.client.errors import EndpointError
from forenotice.client.events import Document
from forenotice.client.http import Connection, ProtocolError, Response
from forenotice.client.negotiation import NEWEST
from forenotice.core.operations import EventType
from forenotice.settings.values import GUEST_RATE
from forenotice.wire import versions

TIMEOUT = 10.0
LARGEST = 1024 * 1024
SPACING = 0.25
"""Seconds between requests: fewer than 5 a second."""
POLLS = 4
SLOW = 2.0
HELD = 0.8
"""Seconds after which a response was held, if it was allowed to be."""
NO_SUCH_VERSION = "1900-01-01"
PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    level: Level
    said: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The result of one request."""

    answer: Response | None = None
    reason: str = ""
    """Why there was no response."""
    seconds: float

    @property
    def status(self) -> int:
        """0: there was no response."""
        return 0 if self.answer is None else self.answer.status


class Prober:
    """Sends requests slowly enough not to be refused for their rate."""

    def __init__(self, host: str, port: int, api_version: str, spacing: float) -> None:
        self.api_version = api_version
        self._connection = Connection(host, port)
        self._spacing = spacing
        self._pause = threading.Event()

    def ask(self, api_version: str | None = None, headers: Mapping[str, str] = HEADERS) -> Probe:
        target = TARGET + (api_version or self.api_version)
        self._pause.wait(self._spacing)
        begun = monotonic()
        try:
            answer = self._connection.request("GET", target, headers, timeout=TIMEOUT, largest=LARGEST)
        except (OSError, ProtocolError) as error:
            return Probe(reason=client_errors.reason(error), seconds=monotonic() - begun)
        return Probe(answer=answer, seconds=monotonic() - begun)

    def close(self) -> None:
        self._connection.close()


class Doctor:
    def __init__(self, client: Client, environ: Mapping[str, str], *, spacing: float = SPACING) -> None:
        self._client = client
        self._environ = environ
        self._spacing = spacing

    def checks(self) -> Iterator[Check]:
        document: Document | None = None
        try:
            document = self._client.document()
        except EndpointError as error:
            yield _problem("endpoint", error.message)
        at = self._client.remote.at
        if document is not None:
            yield _ok("endpoint", f"{at.url} answers ({at.how})")
        yield proxy(at.host, self._environ)
        with closing(Prober(at.host, at.port, self._client.api_version, self._spacing)) as prober:
            first = prober.ask()
            yield route(first)
            if first.status:
                yield header(prober)
                yield version(prober, first)
                yield clock(self._client.ahead)
                yield rate(prober)
                yield long_poll(prober)
        if document is not None:
            yield self._name(document)

    def _name(self, document: Document) -> Check:
        try:
            name = self._client.run(self._client.remote.find_name())
        except EndpointError as error:
            return _problem("name", error.message, "try again, or set FORENOTICE_NAME to the name in Resources")
        naming_it, all_of_them = sum(event.names(name.text) for event in document.events), len(document.events)
        named = f"named by {naming_it} of {all_of_them} events now" if all_of_them else "no event is announced now"
        said = f"{name.text} ({name.how}), {named}"
        if name.how == HOST_NAME:
            return _warning("name", said, "if Resources write it otherwise, set FORENOTICE_NAME")
        return _ok("name", said)


def route(first: Probe) -> Check:
    if first.status:
        return _ok("route", f"connected, and the response took {first.seconds:.2f} s")
    return _problem("route", f"no response ({first.reason})", "there must be a route to it, and no firewall in between")


def proxy(host: str, environ: Mapping[str, str]) -> Check:
    # Never their values: they may hold passwords.
    found = " and ".join(name for name in PROXY_VARIABLES if environ.get(name))
    if not found:
        return _ok("proxy", "no proxy is set here")
    if _is_spared(host, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return _ok("proxy", f"{found} set, but not for {host}")
    said = f"{found} set: forenotice does not use it, but other clients would be refused"
    return _warning("proxy", said, f"add {host} to NO_PROXY")


def header(prober: Prober) -> Check:
    status = prober.ask(headers={}).status
    if status == 400:
        return _ok("header", "a request without `Metadata: true` is refused")
    said = f"a request without `Metadata: true` gets {status or 'no response'}, not 400"
    return _warning("header", said, "something in between adds the header, or this is an emulator")


def version(prober: Prober, first: Probe) -> Check:
    name = prober.api_version
    if first.status != 200:
        known = ", ".join(client_errors.newest_versions(first.answer)) if first.answer else ""
        said = f"api-version {name} gets {first.status}" + (f"; known are {known}" if known else "")
        return _problem("version", said, "ask the operator of the endpoint for the reason")
    if name != NEWEST:
        said = (
            f"api-version {name} is the newest that the endpoint and forenotice both know: it has no {_lacking(name)}"
        )
        return _warning("version", said, "handlers and rules do not see these")
    other = prober.ask(NO_SUCH_VERSION)
    if other.status == 200:
        return _warning("version", f"api-version {name} is accepted, but so is any other", "is it an emulator?")
    newest = max(client_errors.newest_versions(other.answer) if other.answer else (), default="")
    also = f"; {newest} is known, too" if newest > name else ""
    return _ok("version", f"api-version {name} is accepted{also}")


def _lacking(name: str) -> str:
    older = versions.lookup(name)
    assert older is not None
    keys = [key for key in versions.NEWEST.keys if key not in older.keys]
    types = [kind.value for kind in EventType if kind in versions.NEWEST.types - older.types]
    return ", ".join([*keys, *types])


def clock(ahead: float) -> Check:
    if not ahead:
        return _ok("clock", "this clock and the endpoint's agree within 2 s")
    said = f"the endpoint's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this one"
    return _warning("clock", said, "set this one by NTP; forenotice allows for the difference, other clients do not")


def rate(prober: Prober) -> Check:
    probes = [prober.ask() for _ in range(POLLS)]
    took = median(probe.seconds for probe in probes)
    said = f"{POLLS} polls, {took * 1000:.0f} ms each"
    refused = sum(probe.status == 429 for probe in probes)
    if refused:
        return _warning(
            "rate",
            f"{said}, {refused} refused (429)",
            f"programs in this VM send more than {GUEST_RATE} requests a second",
        )
    if took > SLOW:
        return _warning("rate", said, "the endpoint is slow: little would be left of a Preempt's 30 seconds")
    return _ok("rate", said)


def long_poll(prober: Prober) -> Check:
    answer = prober.ask().answer
    tag = "" if answer is None else answer.headers.get("etag", "")
    if tag:
        held = prober.ask(headers={**HEADERS, "If-None-Match": tag, "Prefer": "wait=1"})
        if held.status == 304 and held.seconds > HELD:
            return _ok("long poll", "supported: changes arrive at once")
    return _ok("long poll", "not supported: polled once a second")


def report(checks: Sequence[Check]) -> dict[str, object]:
    return {"healthy": exit_code(checks) == 0, "checks": [asdict(check) for check in checks]}


def show(checks: Sequence[Check], out: Output) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        advice = f": {check.advice}" if check.advice else ""
        out.line(f"{check.level:<8}", f"{check.name:<{width}} ", f"{check.said}{advice}", style=STYLES[check.level])


def exit_code(checks: Sequence[Check]) -> int:
    return int(any(check.level is Level.PROBLEM for check in checks))


def _ok(name: str, said: str) -> Check:
    return Check(name=name, level=Level.OK, said=said)


def _warning(name: str, said: str, advice: str) -> Check:
    return Check(name=name, level=Level.WARNING, said=said, advice=advice)


def _problem(name: str, said: str, advice: str = "") -> Check:
    return Check(name=name, level=Level.PROBLEM, said=said, advice=advice)


def _is_spared(host: str, no_proxy: str) -> bool:
    for entry in no_proxy.replace(",", " ").split():
        if entry in ("*", host):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False
