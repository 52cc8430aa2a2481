"""What the outside tells of its own accord, for the driver's calls that wait for it."""

import hashlib
import hmac
import threading
from collections.abc import Mapping

from forenotice.core.driver_calls import Finished

Letter = tuple[str, int]
"""Of which operation, and of which attempt."""
PREFIX = "fnc_"


def token(key: str, letter: Letter) -> str:
    """Lets its bearer tell the result of this one call, and nothing else; the same for a call that is repeated."""
    operation, attempt = letter
    said = f"{operation}.{attempt}"
    return f"{PREFIX}{said}.{hmac.new(key.encode(), said.encode(), hashlib.sha256).hexdigest()}"


def letter_of(key: str, bearer: str) -> Letter | None:
    """Whose token it is; None: nobody's."""
    operation, _, rest = bearer.removeprefix(PREFIX).partition(".")
    attempt, _, _ = rest.partition(".")
    if not (attempt.isascii() and attempt.isdigit() and len(attempt) <= 9):
        return None
    found = operation, int(attempt)
    return found if hmac.compare_digest(token(key, found).encode(), bearer.encode()) else None


class Letterbox:
    def __init__(self) -> None:
        self._letters: Mapping[Letter, Finished] = {}
        self._changed = threading.Condition()
        self.closed = threading.Event()
        """The service ends: nobody waits any longer."""
        self.key = ""
        """Of the calls' tokens."""

    def show(self, letters: Mapping[Letter, Finished]) -> None:
        """All that there are just now."""
        with self._changed:
            self._letters = letters
            self._changed.notify_all()

    def wait(self, letter: Letter, seconds: float) -> Finished | None:
        """None: it has not come by then, or the box is closed."""
        with self._changed:
            self._changed.wait_for(lambda: letter in self._letters or self.closed.is_set(), seconds)
            return self._letters.get(letter)

    def close(self) -> None:
        self.closed.set()
        self.show({})
