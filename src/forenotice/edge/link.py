"""The edge's connection to NATS: it comes and goes, and nothing is kept for later while it is away."""

import asyncio
import contextlib
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from forenotice.cluster.subjects import DOCS, Subjects
from forenotice.core import errors

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from forenotice.cluster.connection import Servers


class LinkError(errors.UnavailableError):
    """The cluster cannot be reached."""


class _Failure(msgspec.Struct):
    description: str = ""


class _Ack(msgspec.Struct):
    seq: int = 0
    error: _Failure | None = None


class Link:
    def __init__(self, servers: "Callable[[], Servers]", name: str, subjects: Subjects) -> None:
        self._servers = servers
        self._name = name
        self._subjects = subjects
        self._client: Client | None = None

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def run(self, received: Callable[[bytes], None], connected: Callable[[], None]) -> None:
        """Be connected, for ever: `received` gets states as they are published, `connected` is called each time."""
        # Now, because guests are answered already: it takes longer to load than all the rest.
        connection = await asyncio.to_thread(importlib.import_module, "forenotice.cluster.connection")

        async def take(message: "Msg") -> None:
            received(message.data)

        while True:
            self._client, until_lost = await connection.connect(self._servers(), self._name, self._subjects.inbox)
            try:
                with contextlib.suppress(connection.Error):
                    await self._client.subscribe(self._subjects.live, cb=take)
                    connected()
                await until_lost()
            finally:
                await connection.close(self._client)

    async def store(self, subject: str, data: bytes, message_id: str, seconds: float) -> None:
        """Returns when a stream has it on disk. LinkError: it may have it, or not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            try:
                reply = await self.request(subject, data, min(seconds / 2, deadline - loop.time()), message_id)
                ack = msgspec.json.decode(reply, type=_Ack)
                if ack.error is None and ack.seq:
                    return
                reason = ack.error.description if ack.error else "there is no stream for it"
            except (LinkError, msgspec.MsgspecError) as error:
                reason = str(error)
            # A leader may be being elected. The same id is stored once.
            if loop.time() + seconds / 10 >= deadline or not self.connected:
                raise LinkError(f"The cluster did not take it: {reason}")
            await asyncio.sleep(seconds / 10)

    async def request(self, subject: str, data: bytes, seconds: float, message_id: str | None = None) -> bytes:
        reply = await self._request(subject, data, seconds, {"Nats-Msg-Id": message_id} if message_id else None)
        return reply.data

    async def get_state(self, seconds: float) -> bytes | None:
        """By any replica, which may lag; None: none was published."""
        reply = await self._request(f"$JS.API.DIRECT.GET.{DOCS}.{self._subjects.docs}", b"", seconds)
        if status := (reply.headers or {}).get("Status"):
            if status == "404":
                return None
            raise LinkError(f"The cluster answered {status}.")
        return reply.data

    async def send(self, subject: str, data: bytes) -> None:
        """If it can be, now."""
        if self.connected and self._client is not None:
            with contextlib.suppress(Exception):
                await self._client.publish(subject, data)

    async def _request(self, subject: str, data: bytes, seconds: float, headers: dict[str, str] | None = None) -> "Msg":
        if not self.connected or self._client is None:
            raise LinkError
        try:
            return await self._client.request(subject, data, seconds, headers=headers)
        except Exception as error:
            # The client's errors have several roots, and it may be closing.
            raise LinkError(f"The cluster did not answer: {str(error) or type(error).__name__}") from None


async def wait(event: asyncio.Event, seconds: float) -> None:
    """For so long at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
