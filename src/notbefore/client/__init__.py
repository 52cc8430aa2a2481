"""The library for guests: what is announced to this VM, and its approval."""

from typing import TYPE_CHECKING

from notbefore.client.blocking import Client
from notbefore.client.changes import Appeared, Change, Gone, Started
from notbefore.client.errors import EndpointError
from notbefore.client.events import Document, Event
from notbefore.client.pace import Pace
from notbefore.client.polling import News

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
    from notbefore.client.asynchronous import AsyncClient
else:

    def __getattr__(name: str) -> object:
        # asyncio takes as much memory as all the rest, and the agent needs none of it.
        if name == "AsyncClient":
            from notbefore.client.asynchronous import AsyncClient

            return AsyncClient
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
