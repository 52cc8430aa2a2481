"""What a handler's hooks write down: a line for each preparation and each recovery, with the EventId in it."""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from forenotice.emulator.requests import Requested, Requests

LARGEST = 1024 * 1024
FAILED = "failed"
"""The first word of a line about a preparation that failed."""
MOST_APPROVALS = 10_000

Lines = Sequence[str]


class Preparation(StrEnum):
    NONE = "none"
    DONE = "done"
    FAILED = "failed"


class HookFile:
    """One that hooks append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[str]:
        """Those that are complete."""
        try:
            with self.path.open("rb") as file:
                text = file.read(LARGEST).decode(errors="replace")
        except OSError:
            # A hook may as well write it anew.
            return []
        return text.split("\n")[:-1]


def about(lines: Lines, event_id: str) -> list[str]:
    return [line for line in lines if event_id in line.upper()]


def preparation(lines: Lines, event_id: str) -> Preparation:
    """How the last one for this event went."""
    told = about(lines, event_id)
    if not told:
        return Preparation.NONE
    return Preparation.FAILED if has_failed(told[-1]) else Preparation.DONE


def has_failed(line: str) -> bool:
    return line.split()[0].lower() == FAILED


class Witness(Requests):
    """Requests, and with each approval what had been prepared when it came. It looks before the approval is answered:
    what a handler does only after that is not there yet."""

    def __init__(self, prepared: HookFile) -> None:
        super().__init__()
        self.witnessed: deque[tuple[Requested, Lines]] = deque(maxlen=MOST_APPROVALS)
        self._prepared = prepared

    def record(self, request: Requested) -> None:
        if request.is_approval:
            self.witnessed.append((request, self._prepared.lines()))
        super().record(request)
