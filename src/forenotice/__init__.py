"""Scheduled Events for virtual machines."""

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
    "RefusedError",
    "Started",
    "__version__",
]

__version__ = "0.1.0"


TYPE_CHECKING = False  # without importing typing
if TYPE_CHECKING:
    from forenotice.client import (
        Appeared,
        AsyncClient,
        Change,
        Client,
        Document,
        EndpointError,
        Event,
        Gone,
        News,
        Pace,
        Started,
    )
    from forenotice.core.errors import RefusedError
else:

    def __getattr__(name: str) -> object:
        # Only now: the service, and `forenotice --version`, need nothing of the guest's library.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "RefusedError":
            from forenotice.core.errors import RefusedError

            return RefusedError
        from forenotice import client

        return getattr(client, name)
