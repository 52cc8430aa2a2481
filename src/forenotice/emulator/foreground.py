"""A command that serves until it is interrupted: its signals, its ready file, and what it prints meanwhile."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Self

from forenotice.core import errors
from forenotice.runtime import start_thread
from forenotice.settings import SettingError
from forenotice.wire import versions

STDOUT = 1
AWAKE_SECONDS = 1.0
"""How often the main thread wakes, to notice a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    at: datetime
    action: str
    message: str
    facts: Mapping[str, object] = field(default_factory=dict)


def check_place(flags: Mapping[str, object]) -> None:
    if flags.get("emulator_port") is not None and flags.get("emulator_metadata") is not None:
        raise SettingError("--port and --metadata both set the port for guests: give one of them")


@contextmanager
def interrupting(stop: Callable[[], None]) -> Iterator[None]:
    """Call this on SIGINT and SIGTERM."""

    def interrupt(*_: object) -> None:
        # In a thread: the interrupted code may hold the very lock that is needed.
        start_thread(stop, "interrupt")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def sleep(until: threading.Event) -> None:
    """A signal that comes just before the main thread falls asleep is handled when it wakes, so it wakes regularly."""
    while not until.wait(AWAKE_SECONDS):
        pass


def ready(endpoint: object, **more: object) -> dict[str, object]:
    """What programs want to know once guests are served."""
    url = f"http://{endpoint}"
    place = f"{url}/metadata/scheduledevents?api-version={versions.NEWEST.name}"
    return {"endpoint": url, "url": place, **more, "pid": os.getpid()}


class ReadyFile:
    """Readers see all of it or none, and never that of an earlier run. It is removed at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = b""

    def __enter__(self) -> Self:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None
        return self

    def write(self, values: Mapping[str, object]) -> None:
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        self._content = line(values).encode()
        try:
            draft.write_bytes(self._content)
            draft.replace(self._path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise self._unwritable(error) from None

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            # Another run may have written its own meanwhile; ours names our process.
            if self._content and self._path.read_bytes() == self._content:
                self._path.unlink()

    def _unwritable(self, error: OSError) -> errors.RefusedError:
        return errors.RefusedError(f"the ready file {self._path} cannot be written: {error.strerror}")


def line(values: Mapping[str, object]) -> str:
    return json.dumps(values, ensure_ascii=False) + "\n"


def report(first: str, lines: Iterable[LogLine], *, as_json: bool) -> None:
    """Print; guests are served on when nobody reads it any more."""
    with suppress(OSError):
        _put(first)
        for each in lines:
            at = each.at.isoformat().replace("+00:00", "Z")
            as_object = {"at": at, "action": each.action, "message": each.message, **each.facts}
            _put(line(as_object) if as_json else f"{each.at:%H:%M:%S}  {each.message}\n")


def _put(text: str) -> None:
    """Without Python's buffers: a reader that does not read must not keep us from ending."""
    rest = text.encode()
    while rest:
        rest = rest[os.write(STDOUT, rest) :]
