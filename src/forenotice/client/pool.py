"""Connections that are kept for the next question; each is lent to one asker at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

KEPT = 2
"""One that polls and one for whatever comes beside it."""


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    def __init__(self, make: Callable[[str, int], C]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._idle: list[tuple[tuple[str, int], C]] = []
        self._lent: list[C] = []
        self._closed = False

    @contextmanager
    def lend(self, host: str, port: int) -> Iterator[C]:
        """ConnectionAbortedError: the pool is closed."""
        place = (host, port)
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("it was closed here")
            mine = next((kept for kept in self._idle if kept[0] == place), None)
            if mine is not None:
                self._idle.remove(mine)
            connection = self._make(host, port) if mine is None else mine[1]
            self._lent.append(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._lent.remove(connection)
                self._idle.insert(0, (place, connection))
                # Those of another place, or of a busier time, are not needed any more.
                surplus = self._idle[0 if self._closed else KEPT :]
                del self._idle[len(self._idle) - len(surplus) :]
            for _, each in surplus:
                each.close()

    def close(self) -> None:
        """What is under way ends at once."""
        with self._lock:
            self._closed = True
            everything = [*self._lent, *(connection for _, connection in self._idle)]
            self._idle.clear()
        for connection in everything:
            connection.close()
