"""What happens next by itself, in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from forenotice.core.operations import Operation, Status
from forenotice.emulator.emulator import Emulator


@dataclass(frozen=True, slots=True)
class Forthcoming:
    at: datetime
    said: str


def following(emulator: Emulator) -> Forthcoming | None:
    """To be asked while nothing changes."""
    return min(_due(emulator), key=lambda each: each.at, default=None)


def _due(emulator: Emulator) -> Iterator[Forthcoming]:
    """What is first of equals comes first."""
    operation, player = emulator.stage.following, emulator.player
    if operation is not None and operation.due_at is not None:
        yield Forthcoming(operation.due_at, _of_operation(emulator, operation))
    if player is not None and player.due is not None:
        yield Forthcoming(player.due, "the scenario goes on with its next step")
    if emulator.faults.due is not None:
        yield Forthcoming(emulator.faults.due, _of_faults(emulator, emulator.faults.due))


def _of_operation(emulator: Emulator, operation: Operation) -> str:
    event = next(event for event in emulator.stage.live if event.operation == operation.id)
    ends = "starts: its NotBefore has come" if operation.status is Status.SCHEDULED else "is done and goes"
    return f"{event.type} of {', '.join(event.resources)} {ends}"


def _of_faults(emulator: Emulator, at: datetime) -> str:
    names = [each.fault.name for each in emulator.faults.active if each.end == at]
    return f"{', '.join(names)} is over" if names else "a request that a fault holds back is answered"
