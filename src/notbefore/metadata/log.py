"""The log of the endpoint. What writes it is loaded when there is something to say: it is as large as all the rest."""

from typing import Any


class Log:
    def __getattr__(self, level: str) -> Any:
        try:
            import structlog
        except OSError:
            # Where no descriptor is left, nothing can be loaded; who must not miss a line has loaded it before.
            return lambda *_, **__: None
        return getattr(structlog.get_logger(), level)


log = Log()
