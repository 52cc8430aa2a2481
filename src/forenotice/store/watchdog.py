"""Notices that PostgreSQL hangs, neither answering nor failing, and closes the connections to it."""

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import psycopg
import structlog

log = structlog.get_logger()

Connection = psycopg.Connection[Any]


class Watchdog:
    """Sends the server a simple query every few seconds; without an answer in time, closes all connections to it.

    The server's own timeouts do not help: a stopped process does not look at its clock."""

    def __init__(self, connect: Callable[[], Connection], *, within: float = 10.0, every: float = 2.0) -> None:
        self.within = within
        self.every = every
        self._connect = connect
        self._connections: WeakSet[Connection] = WeakSet()
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, connection: Connection) -> None:
        with self._changing:
            self._connections.add(connection)

    def start(self, stop: threading.Event) -> None:
        """Until `stop`; once is enough."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, args=(stop,), name="postgresql", daemon=True)
            self._thread.start()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self.every):
            try:
                asking = self._connect()
            except psycopg.errors.ConnectionTimeout:
                self._let_go()
                continue
            except psycopg.Error:
                # It is away, which everybody notices.
                continue
            try:
                while _answers(asking, self.within):
                    if stop.wait(self.every):
                        return
                self._let_go()
            except psycopg.Error:
                pass
            finally:
                asking.close()

    def _let_go(self) -> None:
        with self._changing:
            connections = list(self._connections)
            self._connections.clear()
        if connections:
            log.error("The database hangs; connections are closed", action="store.hangs", connections=len(connections))
        for connection in connections:
            with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)


def _answers(connection: Connection, seconds: float) -> bool:
    server = connection.pgconn
    server.send_query(b"SELECT 1")
    server.flush()
    waiting = select.poll()
    waiting.register(server.socket, select.POLLIN)
    while waiting.poll(seconds * 1000):
        server.consume_input()
        while not server.is_busy():
            if server.get_result() is None:
                return True
    return False
