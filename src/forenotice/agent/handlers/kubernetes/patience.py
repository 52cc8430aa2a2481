"""How long to go on, and how often to ask."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from forenotice.agent.handlers.kubernetes.api import ApiError

T = TypeVar("T")


class Patience:
    def __init__(self, until: float, *, pause: float = 1.0, longest: float = 5.0) -> None:
        self._until = until
        self.pause = pause
        """Seconds before asking again."""
        self.longest = longest
        """And when that did not help for a while."""
        self._waiting = threading.Event()
        self._said = ""

    @property
    def left(self) -> float:
        return self._until - time.monotonic()

    def wait(self, seconds: float) -> None:
        self._waiting.wait(max(0.0, min(seconds, self.left)))

    def keep_asking(self, question: Callable[[], T]) -> T:
        """Until it is answered, refused for good, or the time is up."""
        pause = self.pause
        while True:
            try:
                return question()
            except ApiError as error:
                if not error.passes or self.left <= 0:
                    raise
                self.tell(f"asking again: {error}")
                self.wait(max(pause, error.retry_after))
                pause = min(2 * pause, self.longest)

    def tell(self, text: str) -> None:
        """Progress, unless it was told already."""
        if text != self._said:
            print(text, flush=True)
        self._said = text
