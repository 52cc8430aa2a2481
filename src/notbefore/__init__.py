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
    from notbefore.client import (
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
    from notbefore.core.errors import RefusedError
else:

    def __getattr__(name: str) -> object:
        # Only now: the service, and `notbefore --version`, need nothing of the guest's library.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "RefusedError":
            from notbefore.core.errors import RefusedError

            return RefusedError
        from notbefore import client

        return getattr(client, name)
