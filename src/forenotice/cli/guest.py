"""`forenotice guest`: inside a VM, its events, their approval, and what keeps it from receiving them."""

import ipaddress
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from statistics import median
from time import monotonic

from forenotice import settings
from forenotice.cli import commands, output
from forenotice.cli.commands import command, several, switch
from forenotice.cli.output import Output
from forenotice.client import Client
from forenotice.client import errors as client_errors
from forenotice.client.endpoint import HEADERS, HOST_NAME, TARGET
from forenotice.client.errors import EndpointError
from forenotice.client.events import Document
from forenotice.client.http import Connection, ProtocolError, Response
from forenotice.client.negotiation import NEWEST
from forenotice.core.operations import EventType
from forenotice.settings import table
from forenotice.settings.values import GUEST_RATE
from forenotice.wire import versions

app = commands.Group()


class Guest:
    """What a command inside a VM works with."""

    def __init__(self, flags: Mapping[str, object], *, json: bool) -> None:
        found = settings.load_guest(flags, os.environ)
        self.client = Client(found.endpoint, name=found.name)
        self.out = Output(json=json)


@command(app, "events", switch("--mine", "Only those that name this VM."), make=Guest, rows=table.GUEST)
def events(ctx: Guest, mine: bool) -> None:
    """List the events of this VM and of those that share its document."""
    with ctx.client as client:
        document = client.document()
        me = client.me if mine and document.events else ""
    listed = [event for event in document.events if not me or event.names(me)]
    if ctx.out.json:
        ctx.out.data({"DocumentIncarnation": document.incarnation, "Events": [event.as_listed() for event in listed]})
        return
    now = ctx.out.now + timedelta(seconds=client.ahead)
    ctx.out.table(
        ("event", "type", "status", "resources", "not before", "source", "duration", "description"),
        (
            (
                event.id,
                event.type,
                event.status,
                event.resources,
                # What cannot be read as a time may still mean something to people.
                output.told(event.deadline, now) if event.deadline else event.not_before_text,
                event.source,
                _duration(event.duration_seconds),
                event.description,
            )
            for event in listed
        ),
        none=f"Nothing is announced{' to this VM' if mine else ''} (incarnation {document.incarnation}).",
    )


def _duration(seconds: int | None) -> str:
    if seconds is None:
        return ""
    return "unknown" if seconds < 0 else f"{seconds} s"


@command(app, "approve", several("event"), make=Guest, rows=table.GUEST)
def approve(ctx: Guest, event: tuple[str, ...]) -> None:
    """Approve events: this VM, and all that share them, are ready."""
    with ctx.client as client:
        client.approve(*event)
    ctx.out.result({"approved": event}, *(f"Approved {each}." for each in event))


@command(app, "doctor", make=Guest, rows=table.GUEST)
def doctor(ctx: Guest) -> int:
    """Find what keeps this VM from receiving its events, and what to do about it."""
    with ctx.client as client:
        checks = list(examine(client, os.environ))
    healthy = all(check.level is not Level.PROBLEM for check in checks)
    if ctx.out.json:
        ctx.out.data({"healthy": healthy, "checks": [asdict(check) for check in checks]})
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            text = f"{check.said}: {check.advice}" if check.advice else check.said
            ctx.out.line(f"{check.level:<8}", f"{check.name:<{width}} ", text, style=STYLES[check.level])
    return 0 if healthy else 1


# The doctor: requests such as guests send

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


@dataclass(frozen=True, slots=True)
class Check:
    level: Level
    name: str
    said: str
    advice: str = ""


_ok, _warning, _problem = (partial(Check, level) for level in Level)


class Prober:
    """Sends requests slowly enough not to be refused for their rate."""

    def __init__(self, client: Client, spacing: float) -> None:
        at = client.remote.at
        self.api_version = client.api_version
        self.seconds = 0.0
        """How long the last request took."""
        self.reason = ""
        """Why it had no response."""
        self._connection = Connection(at.host, at.port)
        self._spacing = spacing
        self._pause = threading.Event()

    def get(self, api_version: str = "", headers: Mapping[str, str] = HEADERS) -> Response | None:
        target = TARGET + (api_version or self.api_version)
        self._pause.wait(self._spacing)
        begun = monotonic()
        try:
            return self._connection.request("GET", target, headers, timeout=TIMEOUT, largest=LARGEST)
        except (OSError, ProtocolError) as error:
            self.reason = client_errors.reason(error)
            return None
        finally:
            self.seconds = monotonic() - begun

    def close(self) -> None:
        self._connection.close()


def _status(response: Response | None) -> int:
    """0: there was no response."""
    return response.status if response else 0


def examine(client: Client, environ: Mapping[str, str], *, spacing: float = SPACING) -> Iterator[Check]:
    document: Document | None = None
    try:
        document = client.document()
    except EndpointError as error:
        yield _problem("endpoint", error.message)
    at = client.remote.at
    if document is not None:
        yield _ok("endpoint", f"{at.url} answers ({at.how})")
    yield proxy(at.host, environ)
    with closing(Prober(client, spacing)) as prober:
        first = prober.get()
        if first is None:
            advice = "there must be a route to it, and no firewall in between"
            yield _problem("route", f"no response ({prober.reason})", advice)
        else:
            yield _ok("route", f"connected, and the response took {prober.seconds:.2f} s")
            yield _header(prober)
            yield _version(prober, first)
            yield _clock(client.ahead)
            yield _rate(prober)
            yield _long_poll(prober)
    if document is not None:
        yield _name(client, document)


def proxy(host: str, environ: Mapping[str, str]) -> Check:
    # Never their values: they may hold passwords.
    found = " and ".join(name for name in PROXY_VARIABLES if environ.get(name))
    if not found:
        return _ok("proxy", "no proxy is set here")
    if _is_spared(host, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return _ok("proxy", f"{found} set, but not for {host}")
    said = f"{found} set: forenotice does not use it, but other clients would be refused"
    return _warning("proxy", said, f"add {host} to NO_PROXY")


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


def _header(prober: Prober) -> Check:
    status = _status(prober.get(headers={}))
    if status == 400:
        return _ok("header", "a request without `Metadata: true` is refused")
    said = f"a request without `Metadata: true` gets {status or 'no response'}, not 400"
    return _warning("header", said, "something in between adds the header, or this is an emulator")


def _version(prober: Prober, first: Response) -> Check:
    name = prober.api_version
    if first.status != 200:
        known = ", ".join(client_errors.newest_versions(first))
        said = f"api-version {name} gets {first.status}" + (f"; known are {known}" if known else "")
        return _problem("version", said, "ask the operator of the endpoint for the reason")
    if name != NEWEST:
        said = (
            f"api-version {name} is the newest that the endpoint and forenotice both know: it has no {_lacking(name)}"
        )
        return _warning("version", said, "handlers and rules do not see these")
    other = prober.get(NO_SUCH_VERSION)
    if _status(other) == 200:
        return _warning("version", f"api-version {name} is accepted, but so is any other", "is it an emulator?")
    newest = max(client_errors.newest_versions(other) if other else (), default="")
    also = f"; {newest} is known, too" if newest > name else ""
    return _ok("version", f"api-version {name} is accepted{also}")


def _lacking(name: str) -> str:
    older = versions.lookup(name)
    assert older is not None
    keys = [key for key in versions.NEWEST.keys if key not in older.keys]
    types = [kind.value for kind in EventType if kind in versions.NEWEST.types - older.types]
    return ", ".join([*keys, *types])


def _clock(ahead: float) -> Check:
    if not ahead:
        return _ok("clock", "this clock and the endpoint's agree within 2 s")
    said = f"the endpoint's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this one"
    return _warning("clock", said, "set this one by NTP; forenotice allows for the difference, other clients do not")


def _rate(prober: Prober) -> Check:
    polls = [(_status(prober.get()), prober.seconds) for _ in range(POLLS)]
    took = median(seconds for _, seconds in polls)
    said = f"{POLLS} polls, {took * 1000:.0f} ms each"
    if refused := sum(status == 429 for status, _ in polls):
        advice = f"programs in this VM send more than {GUEST_RATE} requests a second"
        return _warning("rate", f"{said}, {refused} refused (429)", advice)
    if took > SLOW:
        return _warning("rate", said, "the endpoint is slow: little would be left of a Preempt's 30 seconds")
    return _ok("rate", said)


def _long_poll(prober: Prober) -> Check:
    response = prober.get()
    if tag := response.headers.get("etag", "") if response else "":
        held = prober.get(headers={**HEADERS, "If-None-Match": tag, "Prefer": "wait=1"})
        if _status(held) == 304 and prober.seconds > HELD:
            return _ok("long poll", "supported: changes arrive at once")
    return _ok("long poll", "not supported: polled once a second")


def _name(client: Client, document: Document) -> Check:
    try:
        name = client.run(client.remote.find_name())
    except EndpointError as error:
        return _problem("name", error.message, "try again, or set FORENOTICE_NAME to the name in Resources")
    naming_it, all_of_them = sum(event.names(name.text) for event in document.events), len(document.events)
    named = f"named by {naming_it} of {all_of_them} events now" if all_of_them else "no event is announced now"
    said = f"{name.text} ({name.how}), {named}"
    if name.how == HOST_NAME:
        return _warning("name", said, "if Resources write it otherwise, set FORENOTICE_NAME")
    return _ok("name", said)
