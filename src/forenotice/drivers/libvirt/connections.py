"""Connections to libvirt hosts: one for each URI, kept alive, watched for events and made again when they are lost.

A call to libvirt can block for ever (a stopped daemon, a QEMU that hangs), so each runs in a thread of its own and is
waited for until a deadline.
"""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

import libvirt
import structlog

from forenotice.core import backoff, errors, libvirt_uri
from forenotice.drivers.libvirt import domains
from forenotice.runtime import Runtime

log = structlog.get_logger()

ANSWER_SECONDS = 30.0
"""For one call, unless its caller says otherwise."""
KEEPALIVE_SECONDS, KEEPALIVES = 5, 4
"""A connection is lost when so many keepalives, sent at this interval, were not answered."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds between two attempts to connect."""
FIRST_HANG, LONGEST_HANG = 60.0, 3600.0
"""Seconds until an attempt that hangs is left behind for another, since nobody tells it if its host is powered off. It
keeps its thread, so each further one is given twice the time."""

T = TypeVar("T")
Listener = Callable[[str, str | None], None]
"""Gets a URI, and the UUID of a domain that has changed; None: the connection was made or lost."""


class HostError(errors.ForenoticeError):
    """libvirt has refused a call."""

    code = "libvirt"

    def __init__(self, message: str, number: int = -1) -> None:
        super().__init__(message)
        self.number = number
        """VIR_ERR_..."""


class UnreachableError(errors.UnavailableError):
    """A host does not answer."""

    code = "unreachable"


class Call(Generic[T]):
    """A call in a thread of its own, which goes on if nobody waits for it any longer."""

    def __init__(self, runtime: Runtime, make: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        self._make = make
        runtime.start_thread(self._run, "libvirt call")

    def is_over(self, seconds: float = 0.0) -> bool:
        """Waits for it so long."""
        with contextlib.suppress(TimeoutError):
            self._future.exception(max(0.0, seconds))
        return self._future.done()

    def result(self) -> T:
        return self._future.result()

    def _run(self) -> None:
        try:
            self._future.set_result(self._make())
        except BaseException as error:
            self._future.set_exception(error)


class Connection:
    """To one host. It connects when it is first asked, and again after it was lost."""

    def __init__(self, uri: str, runtime: Runtime, tell: Listener) -> None:
        libvirt_uri.require(uri)
        self.uri = uri
        self._runtime = runtime
        self._tell = tell
        self._lock = threading.Lock()
        self._link: Any = None
        """A virConnect."""
        self._opening: Call[Any] | None = None
        self._attempt = 0
        self._hangs = 0
        """Attempts to connect that were left behind since one has ended."""
        self._hangs_at = 0.0
        """When the one that is under way is left behind."""
        self._failures = 0
        self._again_at = 0.0
        self._why = ""

    @property
    def is_connected(self) -> bool:
        return self._link is not None

    def ask(self, function: Callable[[Any], T], seconds: float = ANSWER_SECONDS) -> T:
        """What the function makes of a `libvirt.virConnect`.

        HostError: libvirt refused it. UnreachableError: it could not be asked, or has not answered; what it was asked
        may happen all the same.
        """
        deadline = self._runtime.monotonic() + seconds
        call = self.begin(function, seconds)
        if not call.is_over(deadline - self._runtime.monotonic()):
            raise UnreachableError(f"{self.uri} has not answered for {seconds:g} s")
        return call.result()

    def begin(self, function: Callable[[Any], T], seconds: float = ANSWER_SECONDS) -> Call[T]:
        """As `ask`, for a call that its caller waits for; the seconds are for the connection."""
        link = self._connected(seconds)
        return Call(self._runtime, lambda: self._made(function, link))

    def run(self, function: Callable[[Any], T], seconds: float = ANSWER_SECONDS) -> T:
        """As `begin`, in the thread of the caller: only the connection is waited for with a limit."""
        return self._made(function, self._connected(seconds))

    def close(self) -> None:
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            _release(link)

    def _made(self, function: Callable[[Any], T], link: Any) -> T:
        try:
            return function(link)
        except libvirt.libvirtError as error:
            raise self._translated(error, link) from None

    def _connected(self, seconds: float) -> Any:
        deadline = self._runtime.monotonic() + seconds
        while True:
            with self._lock:
                if self._link is not None:
                    return self._link
                opening = self._opening = self._attempt_to_open()
            if not opening.is_over(deadline - self._runtime.monotonic()):
                raise UnreachableError(f"{self.uri} has not answered for {seconds:g} s")
            self._take(opening)

    def _attempt_to_open(self) -> Call[Any]:
        """The one under way, or another."""
        now = self._runtime.monotonic()
        if self._opening is not None:
            if now < self._hangs_at or self._opening.is_over():
                return self._opening
            self._hangs += 1
        elif now < self._again_at:
            raise UnreachableError(self._why)
        self._attempt += 1
        self._hangs_at = now + backoff.pause(self._hangs + 1, FIRST_HANG, LONGEST_HANG)
        return Call(self._runtime, partial(self._open, self._attempt))

    def _take(self, opening: Call[Any]) -> None:
        with self._lock:
            if self._opening is not opening:
                return
            self._opening = None
            self._hangs = 0
            try:
                self._link = opening.result()
            except libvirt.libvirtError as error:
                self._failures += 1
                pause = backoff.pause(self._failures, FIRST_PAUSE, LONGEST_PAUSE)
                self._again_at = self._runtime.monotonic() + pause
                self._why = f"{self.uri} cannot be reached: {reason(error)}"
                raise UnreachableError(self._why) from None
            self._failures = 0
        log.info("Connected to a host", action="libvirt.connected", uri=self.uri)
        self._tell(self.uri, None)

    def _open(self, attempt: int) -> Any:
        _start_events(self._runtime)
        link = libvirt.open(self.uri)
        # A driver that works within this process has neither keepalives nor an end.
        with contextlib.suppress(libvirt.libvirtError):
            link.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVES)
        with contextlib.suppress(libvirt.libvirtError):
            link.registerCloseCallback(lambda *_: self._drop(link, "it was closed"), None)
        link.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._changed, None)
        with contextlib.suppress(libvirt.libvirtError):
            link.domainEventRegisterAny(None, libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE, self._described, None)
        if attempt != self._attempt:
            # It was left behind, and nobody takes it.
            _release(link)
        return link

    def _changed(self, _link: Any, domain: Any, *_: object) -> None:
        self._tell(self.uri, domain.UUIDString())

    def _described(self, _link: Any, domain: Any, _kind: int, uri: str, *_: object) -> None:
        if uri == domains.VM:
            self._tell(self.uri, domain.UUIDString())

    def _translated(self, error: Any, link: Any) -> errors.ForenoticeError:
        why, code = reason(error), number(error)
        if _is_alive(link):
            return HostError(why, code)
        self._drop(link, why)
        return UnreachableError(f"the connection to {self.uri} was lost: {why}")

    def _drop(self, link: Any, why: str) -> None:
        with self._lock:
            if self._link is not link:
                return
            self._link = None
        log.warning("Lost the connection to a host", action="libvirt.lost", uri=self.uri, error=why)
        # Not here: this may be the thread of events, which it needs.
        self._runtime.start_thread(lambda: _release(link), "libvirt close")
        self._tell(self.uri, None)


class Connections:
    """All that this process has, by URI."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._kept: dict[str, Connection] = {}
        self._listeners: list[Listener] = []

    def to(self, uri: str) -> Connection:
        """RefusedError: this is no URI."""
        with self._lock:
            if uri not in self._kept:
                self._kept[uri] = Connection(uri, self._runtime, self._tell)
            return self._kept[uri]

    def drop(self, uri: str) -> None:
        """Close it without waiting; it is made again for whoever asks."""
        with self._lock:
            connection = self._kept.get(uri)
        if connection is not None:
            Call(self._runtime, connection.close)

    def watch(self, listener: Listener) -> None:
        """It is called in the thread of libvirt's events, for all connections, and must return at once."""
        with self._lock:
            self._listeners = [*self._listeners, listener]

    def close(self) -> None:
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        for connection in kept:
            Call(self._runtime, connection.close).is_over(KEEPALIVE_SECONDS)

    def _tell(self, uri: str, uuid: str | None) -> None:
        for listener in self._listeners:
            listener(uri, uuid)


_shared: Connections | None = None


def shared(runtime: Runtime) -> Connections:
    """Those that all drivers and the inventory of this process have in common."""
    global _shared
    if _shared is None:
        _shared = Connections(runtime)
    return _shared


_told = threading.local()
"""`error`: what libvirt has last told this thread."""


def number(error: Any) -> int:
    """VIR_ERR_..., of a libvirtError."""
    return int(_facts(error)[0])


def reason(error: Any) -> str:
    """Of a libvirtError, in one line."""
    if number(error) == libvirt.VIR_ERR_XML_DETAIL:
        # It quotes what it could not read, and whoever may set a host's address can name any file of this machine.
        return "what it has is not XML"
    return " ".join((_facts(error)[2] or str(error)).split())


def _facts(error: Any) -> tuple[Any, ...]:
    """Before Python has read the error of a call, garbage may be collected: if a domain is in it, libvirt forgets the
    error. But it has told it before."""
    found: tuple[Any, ...] = error.err or getattr(_told, "error", (-1, -1, ""))
    return found


def _note(_: object, error: tuple[Any, ...]) -> None:
    _told.error = error


_events_lock = threading.Lock()
_events_begun = False


def _start_events(runtime: Runtime) -> None:
    """Before the first connection: libvirt has one loop of events for each process."""
    global _events_begun
    with _events_lock:
        if _events_begun:
            return
        # Otherwise libvirt prints every error.
        libvirt.registerErrorHandler(_note, None)
        libvirt.virEventRegisterDefaultImpl()
        runtime.start_thread(_run_events, "libvirt events")
        _events_begun = True


def _run_events() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


def _is_alive(link: Any) -> bool:
    try:
        return bool(link.isAlive())
    except libvirt.libvirtError:
        return False


def _release(link: Any) -> None:
    """Without its callbacks, libvirt closes it once nobody uses it: others may still be in the middle of a call."""
    for number in list(getattr(link, "domainEventCallbackID", ())):
        with contextlib.suppress(libvirt.libvirtError):
            link.domainEventDeregisterAny(number)
    with contextlib.suppress(libvirt.libvirtError):
        link.unregisterCloseCallback()
