"""The library for guests: what is announced to this VM, and its approval."""

from typing import TYPE_CHECKING

from forenotice.client.blocking import Client
from forenotice.client.changes import Appeared, Change, Gone, Started
from forenotice.client.errors import EndpointError
from forenotice.client.events import Document, Event
from forenotice.client.pace import Pace
from forenotice.client.polling import News

__all__ = [
    "Appeared",
    "AsyncClient",
    "Change",
    "Client",
    "Document",
    "EndpointError",
    "Event",
    "Gone",
    "News",
    "Pace",
    "Started",
]


if TYPE_CHECKING:
    from forenotice.client.asynchronous import AsyncClient
else:

    def __getattr__(name: str) -> object:
        # asyncio takes as much memory as all the rest, and the agent needs none of it.
        if name == "AsyncClient":
            from forenotice.client.asynchronous import AsyncClient

            return AsyncClient
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
