"""A secret that signs in once, for some minutes: what `serve --demo` prints as a link."""

import hmac
import secrets
import threading
from collections.abc import Callable
from time import monotonic

MINUTES = 15


class Once:
    """Worth one sign-in with a token that whoever has the link need not know."""

    def __init__(self, bearer: str, seconds_now: Callable[[], float] = monotonic) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._bearer: str | None = bearer
        self._seconds_now = seconds_now
        self._expires_at = seconds_now() + MINUTES * 60
        self._lock = threading.Lock()

    def take(self, secret: str) -> str | None:
        """The token, for the first use of the secret before it expires."""
        if not hmac.compare_digest(secret.encode(), self.secret.encode()):
            return None
        with self._lock:
            bearer, self._bearer = self._bearer, None
        return bearer if self._seconds_now() < self._expires_at else None
