"""The client that waits for what it asked: no event loop, one thread."""

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, TypeVar

from forenotice.client.changes import Change
from forenotice.client.connection import Connection, ProtocolError
from forenotice.client.events import Document, Event
from forenotice.client.exchange import LARGEST_BODY
from forenotice.client.finding import LEASES
from forenotice.client.flow import Ask, Flow, Outcome, Pause, Stream, resume
from forenotice.client.pace import USUAL, Pace
from forenotice.client.polling import News
from forenotice.client.pool import Pool
from forenotice.client.session import Session

R = TypeVar("R")
T = TypeVar("T")


class Client:
    """This VM, towards the endpoint that tells it what is going to happen.

    Without an endpoint, FORENOTICE_ENDPOINT or else the usual places; without a name, FORENOTICE_NAME or else what the
    endpoint calls this VM. May be used by several threads.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        name: str | None = None,
        pace: Pace = USUAL,
        leases: Sequence[str] = LEASES,
    ) -> None:
        self.session = Session(endpoint, name, pace, leases)
        """What both clients share."""
        self._closed = threading.Event()
        self._pool = Pool(lambda host, port: Connection(host, port, connect_timeout=pace.connect_timeout))

    @property
    def me(self) -> str:
        """This VM's name, as Resources write it. EndpointError: it is to be had from the endpoint, but not now."""
        return self.run(self.session.me())

    @property
    def endpoint(self) -> str:
        """Its address, or while it has not been found where it is looked for first."""
        return self.session.endpoint.at.url

    @property
    def api_version(self) -> str:
        """The version that it is asked in: the newest, or the newest that the endpoint knows, too."""
        return self.session.endpoint.negotiation.version

    @property
    def ahead(self) -> float:
        """Seconds by which the endpoint's clock is ahead of this machine's; differences up to 2 count as none."""
        return self.session.endpoint.ahead

    @property
    def patient(self) -> bool:
        """Let the server hold polls where it can; otherwise once a second, from the next request on."""
        return self.session.patient

    @patient.setter
    def patient(self, patient: bool) -> None:
        self.session.patient = patient

    def document(self) -> Document:
        return self.run(self.session.document())

    def events(self, *, mine: bool = False) -> tuple[Event, ...]:
        """What is announced now; with `mine`, to this VM."""
        return self.run(self.session.events(mine))

    def approve(self, event: Event | str, *more: Event | str) -> None:
        """Say that this VM is ready: the events, or those with these ids, need not wait for their NotBefore.

        RefusedError: the endpoint will not have it. EndpointError: try again.
        """
        self.run(self.session.approve(event, *more))

    def follow(self) -> Iterator[News]:
        """What became of one request after another, until `close`."""
        return self._stream(self.session.follow())

    def watch(self, *, mine: bool = False) -> Iterator[Change]:
        """What happens to events, until `close`; with `mine`, to those that name this VM. Errors are only logged."""
        return self._stream(self.session.watch(mine))

    def close(self) -> None:
        """For good, also from another thread: `follow` and `watch` end there at once."""
        self._closed.set()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def run(self, flow: Flow[R]) -> R:
        """Carry out a flow of the session."""
        try:
            step = next(flow)
            while True:
                step = resume(flow, self._perform(step))
        except StopIteration as ended:
            result: R = ended.value
            return result

    def _stream(self, stream: Stream[T]) -> Iterator[T]:
        outcome: Outcome = None
        while not self._closed.is_set():
            step = resume(stream, outcome)
            if isinstance(step, Ask | Pause):
                outcome = self._perform(step)
            else:
                outcome = None
                yield step

    def _perform(self, step: Ask | Pause) -> Outcome:
        if isinstance(step, Pause):
            self._closed.wait(step.seconds)
            return None
        try:
            with self._pool.lend(step.host, step.port) as connection:
                return connection.ask(
                    step.method, step.target, step.headers, step.body, timeout=step.timeout, largest=LARGEST_BODY
                )
        except (OSError, ProtocolError) as error:
            return error
