"""A whole service in one thread: tick, rollouts and delivery by turns, with time, ids and threads from the test."""

import os
import random
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path

from tests.databases import new_sqlite
from tests.service.rig import OPERATOR, ManualClock, Rig

from forenotice.client.http import Response
from forenotice.core.operations import Kind
from forenotice.core.rollouts import Options, RolloutSpec
from forenotice.delivery import subscriptions
from forenotice.delivery.worker import Pauses, Worker
from forenotice.runtime import Runtime
from forenotice.service import maintenance, queries, rollouts
from forenotice.service.rollouts import RolloutLoop
from forenotice.service.tick import TickLoop
from forenotice.ssrf import EVERYWHERE, OutgoingClient
from forenotice.store.opener import open_store
from forenotice.views.subscriptions import NewSubscription

LONGEST = timedelta(hours=2)


class Receiver(OutgoingClient):
    """Takes what is sent, every third message only when it is sent again."""

    def __init__(self) -> None:
        super().__init__(private=EVERYWHERE)
        self.messages: list[bytes] = []

    def notify(self, url: str, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
        self.messages.append(body)
        return Response(status=503 if len(self.messages) % 3 == 0 else 200, body=b"", headers={"retry-after": "7"})


class Threads:
    """Runs what would be threads one after the other, in the order of their start."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def start(self, run: Callable[[], None], name: str) -> "Threads":
        assert name in ("driver", "gate", "delivery-request")
        self._waiting.append(run)
        return self

    def join(self, timeout: float | None = None) -> None: ...

    def run_all(self) -> None:
        while self._waiting:
            self._waiting.popleft()()


def play(directory: Path) -> list[str]:
    """Everything that the journal has and a subscriber was sent, from the first start until nothing is live."""
    clock, threads, numbers = ManualClock(), Threads(), count(1)
    begin = clock.now()
    runtime = Runtime(
        clock=clock,
        monotonic=lambda: (clock.now() - begin).total_seconds(),
        new_id=lambda: f"00000000-0000-4000-8000-{next(numbers):012}",
        start_thread=threads.start,
    )
    store = open_store(f"sqlite:///{new_sqlite(directory)}", migrate=False)
    rig = Rig(store, runtime=runtime, speed=60).settle_demo()
    receiver = Receiver()
    deliveries = Worker(rig.service, receiver, pauses=Pauses(chance=random.Random(1)))
    steps = [each.step for each in (TickLoop(rig.service), RolloutLoop(rig.service), deliveries)]
    asked = NewSubscription(name="all", url="https://receiver.example/", secret="a secret of sixteen")
    subscriptions.create(rig.service, OPERATOR, asked)
    [restart] = rig.schedule(Kind.RESTART, "web-0")
    maintenance.approve(rig.service, OPERATOR, restart.events[0].id)
    rollouts.start(rig.service, OPERATOR, RolloutSpec(kind=Kind.HOST_UPDATE, hosts="*", options=Options(batch=2)))
    while clock.now() - begin < LONGEST:
        pause = min(step() for step in steps)
        threads.run_all()
        clock.advance(seconds=max(pause.total_seconds(), 0.25))
        if not (queries.operations(rig.service, live=True).items or pending(rig)):
            break
    with store.read() as reader:
        entries = [f"{seq} {entry}" for seq, entry in reader.journal.page(limit=2000)]
    store.close()
    return [*entries, *map(str, receiver.messages)]


def pending(rig: Rig) -> int:
    return int(subscriptions.show(rig.service, "all", OPERATOR.access).pending)


def test_the_same_twice_whatever_the_order_of_hashes(tmp_path: Path) -> None:
    here = play(tmp_path)
    assert sum("operation.completed" in line for line in here) > 3
    assert any("rollout.completed" in line for line in here)
    assert any(line.startswith("b'") for line in here)
    (tmp_path / "again").mkdir()
    run = [sys.executable, "-m", __name__, str(tmp_path / "again")]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == here


if __name__ == "__main__":
    print(*play(Path(sys.argv[1])), sep="\n")
