"""A receiver of a webhook driver's calls, on loopback: it checks what comes, and answers as it is told."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.delivery.receiving import listening

from forenotice import signatures
from forenotice.clock import SystemClock

SECRET = "a secret of sixteen or more"


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Said = tuple[int, Any]


class Receiver:
    def __init__(self, answer: Callable[[Asked], Said]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.forged: list[Asked] = []
        self.url = ""

    def take(self, asked: Asked) -> Said:
        self.asked.append(asked)
        signature = asked.headers.get(signatures.SIGNATURE.lower(), "")
        timestamp = asked.headers.get(signatures.TIMESTAMP.lower(), "")
        if not signatures.is_valid(SECRET, asked.body, timestamp, signature, SystemClock().now()):
            self.forged.append(asked)
        return self.answer(asked)


def everything_done(asked: Asked) -> Said:
    return 200, {"done": [vm["name"] for vm in asked.json["vms"]]}


@contextmanager
def receiving(answer: Callable[[Asked], Said] = everything_done) -> Iterator[Receiver]:
    receiver = Receiver(answer)

    def respond(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        named = {name.lower(): value for name, value in headers.items()}
        status, said = receiver.take(Asked(method, path, named, body))
        return status, {}, said if isinstance(said, bytes) else json.dumps(said).encode()

    with listening(respond) as port:
        receiver.url = f"http://127.0.0.1:{port}/act"
        yield receiver
    assert receiver.forged == []
