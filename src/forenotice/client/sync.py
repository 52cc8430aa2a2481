"""The blocking client: no event loop, one thread."""

import threading
from collections.abc import Iterator
from typing import Self, TypeVar

from forenotice.client import changes
from forenotice.client.changes import Change, News
from forenotice.client.endpoint import BaseClient, Outcome, Pause, Request, Steps, Stream, resume
from forenotice.client.events import Document, Event
from forenotice.client.http import LARGEST_BODY, Connection, Pool, ProtocolError

R = TypeVar("R")
T = TypeVar("T")


class Client(BaseClient):
    """The metadata endpoint of this VM. May be used by several threads."""

    def _open(self, connect_timeout: float) -> None:
        self._closed = threading.Event()
        self._pool = Pool(lambda host, port: Connection(host, port, connect_timeout=connect_timeout))

    @property
    def me(self) -> str:
        """This VM's name, as Resources write it. EndpointError: only the endpoint knows it, and it cannot be asked."""
        return self.run(self.remote.me())

    def document(self) -> Document:
        return self.run(self.remote.document())

    def events(self, *, mine: bool = False) -> tuple[Event, ...]:
        """What is announced now; with `mine`, to this VM."""
        return self.run(self.remote.events(mine))

    def approve(self, event: Event | str, *more: Event | str) -> None:
        """Approve events, or those with these ids: this VM is ready, and they need not wait for their NotBefore.

        RefusedError: the endpoint refuses it. EndpointError: try again.
        """
        self.run(self.remote.approve(event, *more))

    def follow(self) -> Iterator[News]:
        """The result of one request after another, until `close`."""
        return self._stream(changes.follow(self.remote))

    def watch(self, *, mine: bool = False) -> Iterator[Change]:
        """What happens to events, until `close`; with `mine`, to those that name this VM. Errors are only logged."""
        return self._stream(changes.watch(self.remote, mine))

    def close(self) -> None:
        """For good, also from another thread: `follow` and `watch` end there at once."""
        self._closed.set()
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, steps: Steps[R]) -> R:
        """Carry out steps of the endpoint."""
        outcome: Outcome = None
        try:
            while True:
                outcome = self._perform(resume(steps, outcome))
        except StopIteration as ended:
            result: R = ended.value
            return result

    def _stream(self, stream: Stream[T]) -> Iterator[T]:
        outcome: Outcome = None
        while not self._closed.is_set():
            step = resume(stream, outcome)
            if isinstance(step, Request | Pause):
                outcome = self._perform(step)
            else:
                outcome = None
                yield step

    def _perform(self, step: Request | Pause) -> Outcome:
        if isinstance(step, Pause):
            self._closed.wait(step.seconds)
            return None
        try:
            with self._pool.lend(step.host, step.port) as connection:
                return connection.request(
                    step.method, step.target, step.headers, step.body, timeout=step.timeout, largest=LARGEST_BODY
                )
        except (OSError, ProtocolError) as error:
            return error
