"""The emulator's control: it listens at once, and loads its application when the first caller comes."""

import asyncio
import ipaddress
import os
import socket

from forenotice.core import errors
from forenotice.emulator.emulator import Emulator
from forenotice.runtime import Started
from forenotice.settings import Address

BACKLOG = 64
GRACE_SECONDS = 1
"""For requests that are in progress when it stops; a longer one goes on in a thread that nobody waits for."""


class Control:
    """Most emulators are never controlled: then Starlette is never loaded."""

    def __init__(self, emulator: Emulator, at: Address, *, to_others: bool = False) -> None:
        """Binds its socket; callers wait until it has started."""
        self._emulator = emulator
        self._host = at.host
        self._listening = _listen(at, to_others=to_others)
        self._loop = asyncio.SelectorEventLoop()
        self._stopping = asyncio.Event()
        self._thread: Started | None = None

    @property
    def address(self) -> Address:
        name = self._listening.getsockname()
        return Address(host=name[0], port=name[1])

    def start(self) -> None:
        self._thread = self._emulator.runtime.start_thread(self._run, "emulator-control")

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._thread = None
        self._listening.close()
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        if not await self._is_called():
            return
        from forenotice.control.server import ControlServer
        from forenotice.emulator.api import App, Controller
        from forenotice.emulator.portal.app import Pages

        controller = Controller(self._emulator)
        pages = Pages(controller)
        app = App(controller, host=self._host, pages=pages, is_page=pages.take)
        server = ControlServer(app, self._host, 0, grace=GRACE_SECONDS, on_stop=pages.live.end)
        await server.start(self._listening)
        await self._stopping.wait()
        await server.stop()

    async def _is_called(self) -> bool:
        called = asyncio.Event()
        self._loop.add_reader(self._listening, called.set)
        waits = [asyncio.create_task(event.wait()) for event in (called, self._stopping)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        self._loop.remove_reader(self._listening)
        for wait in waits:
            wait.cancel()
        return called.is_set()


def _listen(at: Address, *, to_others: bool) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)[0]
        if not to_others and not ipaddress.ip_address(place[0]).is_loopback:
            raise errors.RefusedError(
                f"the emulator's control asks for no token, and others can reach {at}: "
                "give --control 127.0.0.1:8255, or --open-control to let others drive it"
            )
        return socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        # Only a failed look-up has a negative number; some of these texts have the address in them already.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)
        raise errors.RefusedError(f"cannot listen on {at} ({reason.lower()}): give another --control") from None
