"""What the agent logs while it runs."""

import io
import json
import os
import threading
import time
from typing import Any

from tests.agent.parts import RUNTIME, logged

from forenotice.agent.context import Log, Outlet
from forenotice.agent.rules.saga import State
from forenotice.clock import MachineClock
from forenotice.settings import LogFormat, LogLevel


def made(stream: Any, log_format: LogFormat = LogFormat.AUTO, level: LogLevel = LogLevel.INFO) -> Log:
    return Log(MachineClock(), level, log_format, stream)


def test_one_object_a_line() -> None:
    stream = io.StringIO()
    log = made(stream)
    log.debug("Not shown", action="a.b")
    log.info("Something is done", action="a.b", name="x\n")
    log.error("Something is broken", action="a.c")
    for line in (lines := logged(stream)):
        del line["timestamp"]
    assert lines == [
        {"level": "info", "event": "Something is done", "action": "a.b", "name": "x\n"},
        {"level": "error", "event": "Something is broken", "action": "a.c"},
    ]
    stream.close()
    log.info("Nobody reads this", action="a")


def test_for_people() -> None:
    stream = io.StringIO()
    log = made(stream, LogFormat.CONSOLE, LogLevel.DEBUG)
    log.debug("Shown", action="a.b", name="x\x1b", state=State.SEEN, resources=("a", "b"), times=2)
    assert stream.getvalue().endswith("debug   Shown  name='x\\x1b' state='seen' resources='a, b' times=2\n")


def test_repeated_failures_are_logged_on_change_and_on_doubling() -> None:
    stream = io.StringIO()
    log = made(stream)
    for reason in (*["one"] * 9, "two"):
        log.trouble("It fails", action="t", reason=reason)
    for _ in range(2):
        log.over("It works again", action="t")
    found = [(line.get("reason"), line.get("times")) for line in logged(stream)]
    assert found == [*(("one", times) for times in (1, 2, 4, 8)), ("two", 1), (None, None)]


def test_a_pipe_that_nobody_reads_stops_nobody() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stream, open(reading) as reader:
        outlet = Outlet(stream, RUNTIME, waiting=3)
        log = made(outlet)
        log.info("First", action="a")
        outlet.flush(5)
        for _ in range(10):
            log.info("Too much", action="a", what="x" * 65536)
        outlet.flush(0.01)
        found: list[dict[str, Any]] = []

        def read() -> None:
            while not found or found[-1]["event"] != "Last":
                found.append(json.loads(reader.readline()))

        thread = threading.Thread(target=read)
        thread.start()
        outlet.flush(5)
        log.info("Next", action="a")
        log.info("Last", action="a")
        thread.join(60)
    lost = 10 - len([line for line in found if line["event"] == "Too much"])
    assert [line["event"] for line in found[-2:]] == ["Next", "Last"]
    assert lost > 0
    assert sum(line.get("lost_lines", 0) for line in found) == lost
    assert "lost_lines" not in found[-1]


def test_a_reader_that_has_gone_does_no_harm() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:
        outlet = Outlet(stream, RUNTIME)
        for _ in range(2):
            made(outlet).info("Nobody reads this", action="a")
        before = time.monotonic()
        outlet.flush(5)
        assert time.monotonic() - before < 4
