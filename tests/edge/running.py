"""Edges, in this process and in their own, and a stand-in for the service at a real NATS."""

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NotFoundError
from tests.acceptance.running import PROGRAMS, Said, ask, environment, until
from tests.metadata.running import APPROVAL, DEADLINE, PATH

from forenotice import settings
from forenotice.clock import SystemClock
from forenotice.cluster import messages, streams
from forenotice.cluster.messages import Approval, Beat, Heard, HostState, Question, Reply
from forenotice.cluster.subjects import ALL_BEATS, ALL_QUESTIONS, CENTRE_INBOX, DOCS, UP, Subjects, host_of
from forenotice.edge.daemon import Edge, Pace
from forenotice.metadata.options import Limits, Options
from forenotice.metadata.server import new_event_loop
from forenotice.runtime import Runtime

T = TypeVar("T")

SELDOM = Pace(read=3600, beat=3600, started=3600)
"""Nothing is done because it is time for it."""
NOWHERE = "nats://127.0.0.1:1"
"""Nothing listens there."""


class Loop:
    """In a thread of its own."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE)

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        async def work() -> T:
            return function(*arguments)

        return self.run(work())

    def close(self) -> None:
        async def others() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(others())
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE)
        self.loop.close()


@dataclass(frozen=True)
class Stored:
    """One message in the stream for the service."""

    message: Approval | Heard
    id: str


class Bus:
    """What the service does at NATS: it publishes states, hears beats and answers questions. It takes nothing."""

    def __init__(self, urls: Sequence[str], credentials: Path | None = None) -> None:
        self._loop = Loop()
        self.beats: dict[str, list[Beat]] = defaultdict(list)
        self.questions: dict[str, list[Question]] = defaultdict(list)
        self.answers: dict[str, Callable[[Question], Reply | None]] = {}
        """By host; None: no answer."""
        self.reply = b""
        """Instead of any."""
        self._client = self._loop.run(self._connect(urls, credentials))
        self.js = self._client.jetstream()

    async def _connect(self, urls: Sequence[str], credentials: Path | None) -> Client:
        client = Client()
        await client.connect(
            list(urls),
            user_credentials=credentials and str(credentials),
            inbox_prefix=CENTRE_INBOX,
            reconnect_time_wait=0.05,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            error_cb=_ignore,
        )
        await streams.ensure(client.jetstream(), 1)
        await client.subscribe(ALL_BEATS, cb=self._hear)
        await client.subscribe(ALL_QUESTIONS, cb=self._answer)
        return client

    def close(self) -> None:
        self._loop.run(self._client.close())
        self._loop.close()

    def publish(self, *states: HostState) -> None:
        for state in states:
            self.put(state.host, messages.encode_state(state))

    def put(self, host: str, data: bytes) -> None:
        self._loop.run(self.js.publish(Subjects.of(host).docs, data))

    def send(self, host: str, data: bytes) -> None:
        """As if it had been published; the stream does not have it."""

        async def work() -> None:
            await self._client.publish(Subjects.of(host).live, data)
            await self._client.flush()

        self._loop.run(work())

    def stop_telling(self) -> None:
        """States are in the stream from now on, and edges are not told."""
        (docs,) = [each for each in streams.configurations(1) if each.name == DOCS]
        self._loop.run(self.js.update_stream(replace(docs, republish=None)))

    def limit_what_is_sent(self, most: int | None) -> None:
        """The stream for the service has so many messages at most; None: there is no such stream."""
        (up,) = [each for each in streams.configurations(1) if each.name == UP]
        if most is None:
            self._loop.run(self.js.delete_stream(UP))
        else:
            self._loop.run(streams.ensure(self.js, 1))
            self._loop.run(self.js.update_stream(replace(up, max_msgs=most)))

    def watch_what_is_sent(self, host: str) -> list[str]:
        """Grows by the id of each message that the edge of a host sends."""
        ids: list[str] = []

        async def note(message: Msg) -> None:
            ids.append((message.headers or {})["Nats-Msg-Id"])

        self._loop.run(self._client.subscribe(f"nb.up.{Subjects.of(host).docs.removeprefix('nb.docs.')}.*", cb=note))
        return ids

    def stored(self, host: str) -> list[Stored]:
        """What the edge of a host has sent to the stream, in order."""
        return self._loop.run(self._stored(Subjects.of(host)))

    async def _stored(self, subjects: Subjects) -> list[Stored]:
        kinds: dict[str | None, type[Approval | Heard]] = {subjects.approve: Approval, subjects.heard: Heard}
        state = (await self.js.stream_info(UP)).state
        found = []
        for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
            with contextlib.suppress(NotFoundError):
                message = await self.js.get_msg(UP, seq=sequence)
                if kind := kinds.get(message.subject):
                    decoded = messages.decode(message.data or b"", kind)
                    found.append(Stored(decoded, (message.headers or {})["Nats-Msg-Id"]))
        return found

    def approvals(self, host: str) -> list[Approval]:
        return [each.message for each in self.stored(host) if isinstance(each.message, Approval)]

    def heard(self, host: str) -> list[Heard]:
        return [each.message for each in self.stored(host) if isinstance(each.message, Heard)]

    async def _hear(self, message: Msg) -> None:
        self.beats[host_of(message.subject)].append(messages.decode(message.data, Beat))

    async def _answer(self, message: Msg) -> None:
        question = messages.decode(message.data, Question)
        host = host_of(message.subject)
        self.questions[host].append(question)
        answer = self.answers.get(host)
        reply = self.reply or messages.encode(answer(question) if answer else None)
        if reply != b"null":
            await message.respond(reply)


@contextlib.contextmanager
def bus_at(urls: Sequence[str], credentials: Path | None = None) -> Iterator[Bus]:
    bus = Bus(urls, credentials)
    try:
        yield bus
    finally:
        bus.close()


async def _ignore(_: Exception) -> None: ...


class Asking:
    """Guests of an edge, wherever it runs."""

    guests: str
    metrics_at: str

    def ask(
        self,
        target: str = PATH,
        *,
        method: str = "GET",
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        source: str = "127.1.0.21",
        seconds: float = DEADLINE,
    ) -> Said:
        headers = {"Metadata": "true"} if headers is None else headers
        return ask(self.guests, method, target, body, headers, source=source, seconds=seconds)

    def approve(self, body: bytes = APPROVAL, source: str = "127.1.0.21") -> Said:
        return self.ask(method="POST", body=body, source=source)

    def incarnation(self, source: str = "127.1.0.21") -> int:
        """0: there is no document for it."""
        said = self.ask(source=source)
        return int(said.json["DocumentIncarnation"]) if said.status == 200 else 0

    @property
    def metrics(self) -> str:
        said = ask(self.metrics_at, "GET", "/metrics")
        assert said.status == 200
        return said.body.decode()

    def metric(self, name: str) -> float:
        (line,) = [line for line in self.metrics.splitlines() if line.startswith(f"forenotice_edge_{name} ")]
        return float(line.split()[-1])

    @property
    def readiness(self) -> int:
        return ask(self.metrics_at, "GET", "/readyz").status


def flags_of(host: str, urls: Sequence[str], data: Path, more: Mapping[str, Any]) -> dict[str, Any]:
    places = {"metadata": ["127.0.0.1:0"], "edge_metrics": "127.0.0.1:0"}
    return {"edge_host": host, "nats": list(urls), "data": str(data), "guest_rate": "off", **places, **more}


class RunningEdge(Asking):
    """An edge on a loop of its own."""

    def __init__(
        self,
        host: str,
        urls: Sequence[str],
        data: Path,
        *,
        pace: Pace = SELDOM,
        limits: Limits | None = None,
        **more: Any,
    ) -> None:
        self.host = host
        self.clock = SystemClock()
        self._loop = Loop()
        found = settings.load_edge(flags_of(host, urls, data, more), {})
        found.directory.mkdir(parents=True, exist_ok=True)
        options = replace(Options.of(found), limits=limits or Limits())
        self._stopping = self._loop.call(asyncio.Event)
        self.edge = self._loop.call(lambda: Edge(found, options, Runtime(clock=self.clock), pace))
        self._ended: Future[None] = asyncio.run_coroutine_threadsafe(self.edge.run(self._stopping), self._loop.loop)
        until(lambda: self.edge.status.at is not None or self._ended.done())
        if self._ended.done():
            self._loop.close()
            self._ended.result()
        self.guests = str(self.edge.server.listening[0].at)
        self.metrics_at = str(self.edge.status.at)

    def refresh(self) -> None:
        """A second has passed."""
        self._loop.call(self.edge.server.refresh)

    def stop(self) -> None:
        self._loop.call(self._stopping.set)
        try:
            self._ended.result(DEADLINE)
        finally:
            self._loop.close()


@contextlib.contextmanager
def running(host: str, urls: Sequence[str], data: Path, **more: Any) -> Iterator[RunningEdge]:
    edge = RunningEdge(host, urls, data, **more)
    try:
        yield edge
    finally:
        edge.stop()


_NUMBERS = itertools.count(1)


class EdgeProcess(Asking):
    """One `forenotice edge run` after another, with the same directory."""

    def __init__(self, home: Path, host: str, urls: Sequence[str], *flags: str, before: Sequence[str] = ()) -> None:
        self.host = host
        self.data = home / "data"
        self._log = home / f"edge-{next(_NUMBERS)}.log"
        self._env = environment(home)
        places = ("--metadata", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--data", str(self.data))
        servers = [word for url in urls for word in ("--nats", url)]
        edge = (str(PROGRAMS / "forenotice"), "edge", "run", "--host", host, *servers, *places, "--log-format", "json")
        # However the tests end, the edge ends with them.
        self._command = ("setpriv", "--pdeathsig", "KILL", *before, *edge, "--guest-rate", "off", *flags)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "EdgeProcess":
        assert self.process is None
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        (started,) = until(lambda: self.logged("edge.started"), what=lambda: self._log.read_text())
        self.guests, self.metrics_at = started["metadata"][0], started["metrics"]
        return self

    def logged(self, action: str) -> list[dict[str, Any]]:
        """The lines of this kind since the last start."""
        text = self._log.read_text()
        assert self.process is None or self.process.poll() is None, f"the edge has ended: {text}"
        return [entry for entry in map(json.loads, text.split("\n")[:-1]) if entry["action"] == action]

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        code = self.process.wait(DEADLINE)
        self.process = None
        return code


@contextlib.contextmanager
def process(home: Path, host: str, urls: Sequence[str], *flags: str, **how: Any) -> Iterator[EdgeProcess]:
    """It must end in peace unless the test ended it."""
    edge = EdgeProcess(home, host, urls, *flags, **how)
    try:
        yield edge.start()
        if edge.process is not None:
            assert edge.terminate() == 0
            assert not [line for line in edge.logged("edge.stopped") if "exception" in line]
    finally:
        if edge.process is not None:
            edge.kill()
