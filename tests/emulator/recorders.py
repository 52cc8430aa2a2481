"""A recorder at work on an endpoint, and recordings made by hand."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.acceptance.running import until

from forenotice.client import discovery
from forenotice.client.endpoint import USUAL, Pace
from forenotice.emulator.recordings import FORMAT, Observation, Recorder, Start, Writer

NEWEST = "2020-07-01"
NOON = datetime(2026, 3, 9, 12, 0, 0, tzinfo=UTC)
IMPATIENT = replace(USUAL, timeout=1, longest_retry_after=0.02)
"""Once something has been heard."""
START = Start(format=FORMAT, url="http://169.254.169.254", api_version=NEWEST, at=NOON)


class Working:
    def __init__(
        self, url: str, file: Path, *, append: bool = False, api_version: str = NEWEST, pace: Pace = IMPATIENT
    ) -> None:
        self.told: list[Observation] = []
        self.recorder = Recorder(
            discovery.parse(url, "test"), api_version, every=0.01, report=self.told.append, pace=pace
        )
        self._writer = Writer(file, self.recorder.start, append=append)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._writer:
            self.recorder.run(self._writer)

    def heard(self, changes: int) -> Observation:
        """The last of so many changes, once there are as many."""
        until(lambda: len(self.told) >= changes, 20, what=lambda: f"{changes} changes, but {self.told}")
        return self.told[changes - 1]

    def stop(self) -> None:
        self.recorder.stop()
        self._thread.join()


@contextmanager
def recording(url: str, file: Path, *, append: bool = False, api_version: str = NEWEST) -> Iterator[Working]:
    working = Working(url, file, append=append, api_version=api_version)
    try:
        yield working
    finally:
        working.stop()


def lines(file: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
