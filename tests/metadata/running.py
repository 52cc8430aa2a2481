"""A real endpoint on a loop of its own, a fleet to publish, and bytes to throw at it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from forenotice import publication
from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.documents import Document
from forenotice.core.fleet import Listening, Policy, Scope, ScopeKind, Vm
from forenotice.core.lifecycle import StartRequests
from forenotice.core.operations import HOST_MAINTENANCE, Event, EventType, Source, Status
from forenotice.core.timing import Timing
from forenotice.failures import Liveness
from forenotice.metadata.connection import Connection
from forenotice.metadata.options import Limits, Options
from forenotice.metadata.published import LoopPublisher, PublishedFleet
from forenotice.metadata.server import MetadataServer, new_event_loop
from forenotice.metadata.upstream import ServiceUpstream
from forenotice.publication import Publication
from forenotice.settings import Address, Listener

T = TypeVar("T")

DEADLINE = 60.0
NOON = datetime(2026, 3, 9, 12, 0, 0, tzinfo=UTC)
EVENT_ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
PATH = "/metadata/scheduledevents?api-version=2020-07-01"
APPROVAL = f'{{"StartRequests":[{{"EventId":"{EVENT_ID}"}}]}}'.encode()
WEB_ADDRESSES = ("127.1.0.21", "127.1.0.22")
DB_ADDRESS = "127.1.0.31"
ANYWHERE = Listener(at=Address(host="127.0.0.1", port=0))

EVENT = Event(
    id=EVENT_ID,
    operation="1",
    scope="group:web",
    resources=("web-0",),
    update_domain=0,
    type=EventType.FREEZE,
    source=Source.PLATFORM,
    description=HOST_MAINTENANCE,
    duration=9,
    status=Status.SCHEDULED,
    created_at=NOON,
    not_before=NOON + timedelta(minutes=15),
)
WEB = Scope(
    key="group:web",
    kind=ScopeKind.AVAILABILITY_SET,
    tag="webtag",
    incarnation=2,
    policy=Policy(listening=Listening.ALWAYS),
)
DB = Scope(key="vm:db", kind=ScopeKind.STANDALONE, tag="dbtag", policy=Policy(listening=Listening.ALWAYS))
WEB_VMS = tuple(
    Vm(
        name=f"web-{number}",
        vm_id=f"8A506C35-679A-4F78-9D76-00000000000{number}",
        host=f"host-{number}",
        scope=WEB.key,
        update_domain=number,
        addresses=(address,),
    )
    for number, address in enumerate(WEB_ADDRESSES)
)
DB_VM = Vm(
    name="db", vm_id="8a506c35-679a-4f78-9d76-0000000000db", host="host-1", scope=DB.key, addresses=(DB_ADDRESS,)
)
FLEET = (publication.of(WEB, vms=WEB_VMS, events=(EVENT,)), publication.of(DB, vms=(DB_VM,)))
UNLIMITED = Options(rate=None, burst=None)
QUICK = Limits(request_seconds=0.4, idle_seconds=0.8, linger_seconds=0.4, sweep_seconds=0.1)


@dataclass
class RecordingGuests:
    """Stands where the service stands: behind the upstream thread, on its thread."""

    approvals: list[StartRequests] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    heards: list[Mapping[str, datetime]] = field(default_factory=list)
    outcome: Callable[[StartRequests], errors.ForenoticeError | None] = lambda _: None
    gate: threading.Event = field(default_factory=threading.Event)
    """The store answers while it is set."""
    entered: int = 0
    broken: Exception | None = None

    def __post_init__(self) -> None:
        self.gate.set()

    def approve(self, approvals: Sequence[StartRequests]) -> list[errors.ForenoticeError | None]:
        self._work()
        self.approvals += approvals
        self.batches.append(len(approvals))
        return [self.outcome(approval) for approval in approvals]

    def heard(self, heard: Mapping[str, datetime]) -> None:
        self._work()
        self.heards.append(dict(heard))

    def _work(self) -> None:
        self.entered += 1
        assert self.gate.wait(DEADLINE)
        if self.broken is not None:
            raise self.broken


class Running:
    """The server in a thread; tests talk to it by sockets and by its publisher."""

    def __init__(
        self,
        *,
        options: Options = UNLIMITED,
        listeners: Sequence[Listener] = (ANYWHERE,),
        fleet: Sequence[Publication] = FLEET,
        timing: Timing | None = None,
        clock: SystemClock | None = None,
        connection: type[Connection] = Connection,
    ) -> None:
        self.guests = RecordingGuests()
        self._connection = connection
        self.clock = clock or SystemClock()
        self.seconds = 0.0
        """The time that its liveness go by."""
        self.liveness = Liveness(clock=lambda: self.seconds)
        self.published = PublishedFleet()
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.publisher = LoopPublisher(self.published, self._loop)
        self.publisher.scopes(fleet)
        self.server = self.call(self._make, options, timing or Timing())
        try:
            self.call(self.server.start, listeners)
        except BaseException:
            self._end()
            raise

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Run something on the loop, and give what it gives."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function(*args))
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(DEADLINE)

    def settle(self) -> None:
        """What was published so far is on the published afterwards."""
        self.call(lambda: None)

    @property
    def port(self) -> int:
        (place,) = [place for place in self.server.bound if isinstance(place, Address)][:1]
        return place.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self, grace: float = 2) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self.server.stop(grace), self._loop).result(DEADLINE)
            self._end()

    def stop_soon(self, grace: float = 2) -> "Future[None]":
        return asyncio.run_coroutine_threadsafe(self.server.stop(grace), self._loop)

    def connect(self, source: str = WEB_ADDRESSES[0]) -> "Client":
        return Client(socket.create_connection(("127.0.0.1", self.port), DEADLINE, (source, 0)))

    def connect_unix(self, path: Path) -> "Client":
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(DEADLINE)
        connected.connect(str(path))
        return Client(connected)

    def ask(
        self,
        target: str = PATH,
        *,
        method: str = "GET",
        headers: Sequence[str] = ("Metadata: true",),
        body: bytes | None = None,
        source: str = WEB_ADDRESSES[0],
    ) -> "Reply":
        """One request on a connection of its own."""
        with self.connect(source) as client:
            reply = client.ask(
                request(target, method=method, headers=(*headers, "Connection: close"), body=body), method
            )
            assert client.is_closed()
            return reply

    def show(self, incarnation: int, *events: Event, scope: Scope = WEB) -> None:
        self.publisher.documents(
            [Document(scope=scope.key, tag=scope.tag, kind=scope.kind, incarnation=incarnation, events=tuple(events))]
        )

    def _make(self, options: Options, timing: Timing) -> MetadataServer:
        return MetadataServer(
            published=self.published,
            upstream=ServiceUpstream(self.guests, options.limits, self.liveness),
            clock=self.clock,
            timing=timing,
            options=options,
            connection=self._connection,
        )

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes

    def __getitem__(self, name: str) -> str:
        return self.headers[name.lower()]

    @property
    def text(self) -> str:
        return self.body.decode()


class Client:
    """A raw connection that reads one reply after another."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._buffer = bytearray()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, data: bytes, method: str = "GET") -> Reply:
        self.send(data)
        return self.reply(method)

    def statuses(self, count: int) -> list[int]:
        return [self.reply().status for _ in range(count)]

    def reply(self, method: str = "GET") -> Reply:
        while b"\r\n\r\n" not in self._buffer:
            self._read()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1"
        headers: dict[str, str] = {}
        for name, _, value in (each.partition(": ") for each in fields):
            assert name.lower() not in headers
            headers[name.lower()] = value
        length = 0 if method == "HEAD" or int(status) in (100, 304) else int(headers["content-length"])
        while len(self._buffer) < length:
            self._read()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return Reply(int(status), headers, bytes(body))

    def take(self, size: int) -> None:
        """Read so many bytes and keep them for the reply."""
        wanted = len(self._buffer) + size
        while len(self._buffer) < wanted:
            self._read()

    def is_closed(self) -> bool:
        """Whether the server closes this connection, and has sent nothing more."""
        with contextlib.suppress(ConnectionResetError):
            self._buffer += self.socket.recv(65536)
        return not self._buffer

    def is_silent(self, seconds: float = 0.15) -> bool:
        """Whether nothing comes for a while."""
        self.socket.settimeout(seconds)
        try:
            self._read()
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(DEADLINE)
        return False

    def _read(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError(f"closed after {self._buffer[:200]!r}")
        self._buffer += data


def request(
    target: str = PATH,
    *,
    method: str = "GET",
    headers: Sequence[str] = ("Metadata: true",),
    body: bytes | None = None,
    version: str = "1.1",
) -> bytes:
    length = [] if body is None else [f"Content-Length: {len(body)}"]
    lines = [f"{method} {target} HTTP/{version}", "Host: 169.254.169.254", *headers, *length, "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


@contextlib.contextmanager
def running(**given: Any) -> Iterator[Running]:
    """As Running, with the same arguments."""
    server = Running(**given)
    try:
        yield server
    finally:
        server.stop()


def until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + DEADLINE
    pause = threading.Event()
    while not condition():
        assert monotonic() < deadline, "this did not happen in time"
        pause.wait(0.005)


def passed(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed since this was called."""
    due = monotonic() + seconds
    return lambda: monotonic() >= due


def limited(**limits: float) -> Options:
    return Options(rate=None, limits=replace(Limits(), **limits))  # type: ignore[arg-type]


def auto(scope: Scope, last_heard: datetime | None = None) -> Scope:
    return replace(scope, policy=Policy(), last_heard=last_heard)
