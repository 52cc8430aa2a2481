"""What the outside tells of its own accord, for the driver's calls that wait for it."""

import threading
from collections.abc import Mapping

from forenotice.core.driving import Finished

Letter = tuple[str, int]
"""Of which operation, and of which attempt."""


class Letterbox:
    def __init__(self) -> None:
        self._letters: Mapping[Letter, Finished] = {}
        self._changed = threading.Condition()
        self.closed = threading.Event()
        """The service ends: nobody waits any longer."""

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
