"""What the agent is doing and why: a file in the state directory, for `forenotice agent status`."""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from forenotice.agent import locking
from forenotice.agent.rules.saga import Pause, Saga
from forenotice.clock import MachineClock
from forenotice.core import errors

FILE = "status.json"
STALE = timedelta(seconds=30)
"""A running agent has written it since, if it could."""


class StepStatus(msgspec.Struct, frozen=True, kw_only=True):
    phase: str
    handler: str
    progress: str
    attempt: int
    said: str


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Another VM that the event names."""

    name: str
    ready_at: datetime | None
    """Since when; None: it has not said that it is."""
    trouble: str
    """Why it has not acknowledged what this agent tells it, or is not believed; empty when all is well."""


class SagaStatus(msgspec.Struct, frozen=True, kw_only=True):
    event_id: str
    type: str
    state: str
    why: str
    resources: tuple[str, ...]
    not_before: datetime | None
    seen_at: datetime
    would_approve_at: datetime | None = None
    done_at: datetime | None
    announced_seconds: int | None
    pause: Pause | None
    steps: tuple[StepStatus, ...]
    peers: tuple[PeerStatus, ...] = ()


class Status(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    written_at: datetime
    name: str
    observe: bool = False
    """Nothing is run or approved."""
    clock_ahead: float = 0.0
    """Seconds by which the endpoint's clock is ahead of this machine's; peers are told times by the endpoint's."""
    endpoint: str
    polling: bool
    polling_why: str
    ready: bool
    ready_why: str
    journal: bool
    """Whether the state directory can be written: else nothing is prepared or approved."""
    sagas: tuple[SagaStatus, ...]
    recent: tuple[SagaStatus, ...]


NOBODY: Mapping[str, tuple[PeerStatus, ...]] = {}


def of_sagas(sagas: Sequence[Saga], company: Mapping[str, tuple[PeerStatus, ...]] = NOBODY) -> tuple[SagaStatus, ...]:
    """`company` are the peers, by saga."""
    return tuple(
        SagaStatus(
            event_id=saga.id,
            type=saga.event.type,
            state=saga.state,
            why=saga.why,
            resources=saga.event.resources,
            not_before=saga.event.deadline,
            seen_at=saga.seen_at,
            would_approve_at=saga.would_approve_at,
            done_at=saga.done_at,
            announced_seconds=saga.event.duration_seconds,
            pause=saga.pause,
            steps=tuple(
                StepStatus(
                    phase=step.phase,
                    handler=step.handler,
                    progress=step.progress,
                    attempt=step.attempt,
                    said=step.said,
                )
                for step in saga.steps
            ),
            peers=company.get(saga.id, ()),
        )
        for saga in sagas
    )


def write(directory: Path, status: Status) -> None:
    """OSError when it cannot be written; a reader sees the old one or the new one."""
    new = directory / f"{FILE}.new"
    new.unlink(missing_ok=True)
    with open(new, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(msgspec.json.encode(status) + b"\n")
    new.replace(directory / FILE)


def read(directory: Path) -> tuple[Status | None, bool | None]:
    """What was last written, if anything was, and whether the agent runs; None when that cannot be told."""
    running = locking.is_running(directory)
    try:
        with open(directory / FILE, "rb", opener=_without_waiting) as file:
            found = msgspec.json.decode(file.read(), type=Status)
    except FileNotFoundError:
        return None, running
    except OSError as error:
        raise errors.UnavailableError(f"the state directory {directory} cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise errors.UnavailableError(f"{directory / FILE} cannot be read: {error}") from None
    if running is None and abs(MachineClock().now() - found.written_at) < STALE:
        running = True
    return found, running


def _without_waiting(path: str, flags: int) -> int:
    """If it is a pipe, opening it would wait for the other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
