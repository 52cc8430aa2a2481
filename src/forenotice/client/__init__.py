"""The library for guests: events announced to this VM, and their approval."""

from typing import TYPE_CHECKING

from forenotice.client.changes import Appeared, Change, Gone, News, Started
from forenotice.client.endpoint import Pace
from forenotice.client.errors import EndpointError
from forenotice.client.events import Document, Event
from forenotice.client.sync import Client

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
    from forenotice.client.aio import AsyncClient
else:

    def __getattr__(name: str) -> object:
        # asyncio takes as much memory as all the rest, and the agent needs none of it.
        if name == "AsyncClient":
            from forenotice.client.aio import AsyncClient

            return AsyncClient
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
