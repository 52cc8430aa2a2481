"""A secret that signs in once: what `serve --demo` prints as a link."""

import hmac
import secrets
import threading


class Once:
    """Worth one sign-in with a token that whoever has the link need not know."""

    def __init__(self, bearer: str) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._bearer: str | None = bearer
        self._lock = threading.Lock()

    def take(self, secret: str) -> str | None:
        """The token, to the first who comes with the secret."""
        if not hmac.compare_digest(secret.encode(), self.secret.encode()):
            return None
        with self._lock:
            bearer, self._bearer = self._bearer, None
        return bearer
