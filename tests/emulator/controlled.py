"""An emulator in this process with its control, and what guests and drivers ask of it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.acceptance.running import NEWEST, Said, ask

from forenotice.emulator.control import Control
from forenotice.emulator.emulator import Emulator
from forenotice.settings import Address

ANY = Address(host="127.0.0.1", port=0)
TARGET = f"/metadata/scheduledevents?api-version={NEWEST}"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Controlled:
    guests: str
    control: str

    @property
    def control_url(self) -> str:
        return f"http://{self.control}"

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Said:
        """A body that is bytes is sent as it is."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return ask(self.control, method, f"/v1/emulator{path}", data, JSON if headers is None else headers)

    def get(self, path: str) -> Any:
        said = self.ask("GET", path)
        assert said.status == 200, said
        return said.json

    def post(self, path: str, **body: object) -> Any:
        said = self.ask("POST", path, body)
        assert said.status in (200, 201), said
        return said.json

    def delete(self, path: str) -> Any:
        said = self.ask("DELETE", path)
        assert said.status == 200, said
        return said.json

    def poll(self, place: str = "") -> Said:
        return ask(place or self.guests, "GET", TARGET, None, {"Metadata": "true"})

    def document(self, place: str = "") -> Any:
        said = self.poll(place)
        assert said.status == 200, said
        return said.json

    def approve(self, event_id: str) -> Said:
        body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
        return ask(self.guests, "POST", TARGET, body, {"Metadata": "true"})


@contextmanager
def controlled(speed: float = 1) -> Iterator[Controlled]:
    emulator = Emulator(as_vm="web-0", speed=speed)
    control = Control(emulator, ANY)
    guests = emulator.start()
    control.start()
    try:
        yield Controlled(str(guests), str(control.address))
    finally:
        control.stop()
        emulator.stop()
