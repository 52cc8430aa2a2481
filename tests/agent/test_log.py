"""What the agent says while it runs."""

import io
import json
import os
import threading
import time
from typing import Any

from tests.agent.parts import RUNTIME

from forenotice.agent.log import Log, Outlet
from forenotice.agent.rules.saga import State
from forenotice.clock import MachineClock
from forenotice.settings import LogFormat, LogLevel


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_object_a_line() -> None:
    stream = io.StringIO()
    log = Log(MachineClock(), LogLevel.INFO, LogFormat.AUTO, stream)
    log.debug("Not heard", action="a.b")
    log.info("Something is done", action="a.b", name="x\n")
    log.error("Something is broken", action="a.c")
    first, second = lines(stream)
    assert (first["event"], first["action"], first["level"], first["name"]) == (
        "Something is done",
        "a.b",
        "info",
        "x\n",
    )
    assert second["level"] == "error"


def test_for_people() -> None:
    stream = io.StringIO()
    log = Log(MachineClock(), LogLevel.DEBUG, LogFormat.CONSOLE, stream)
    log.debug("Heard", action="a.b", name="x\x1b", state=State.SEEN, resources=("a", "b"), times=2)
    assert stream.getvalue().endswith("debug   Heard  name='x\\x1b' state='seen' resources='a, b' times=2\n")


def test_trouble_is_told_on_change_and_on_doubling() -> None:
    stream = io.StringIO()
    log = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, stream)
    for _ in range(9):
        log.trouble("It fails", action="t", reason="one")
    log.trouble("It fails", action="t", reason="two")
    log.over("It works again", action="t")
    log.over("It works again", action="t")
    assert [(line.get("reason"), line.get("times")) for line in lines(stream)] == [
        ("one", 1),
        ("one", 2),
        ("one", 4),
        ("one", 8),
        ("two", 1),
        (None, None),
    ]


def test_a_stream_that_is_gone_does_no_harm() -> None:
    stream = io.StringIO()
    stream.close()
    Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, stream).info("Nobody hears", action="a")


def test_a_pipe_that_nobody_reads_stops_nobody() -> None:
    reading, writing = os.pipe()
    with open(writing, "w") as stream, open(reading) as reader:
        outlet = Outlet(stream, RUNTIME, waiting=3)
        log = Log(MachineClock(), LogLevel.INFO, LogFormat.AUTO, outlet)
        log.info("Heard", action="a")
        outlet.flush(5)
        for _ in range(10):
            log.info("Too much", action="a", what="x" * 65536)
        outlet.flush(0.01)
        told: list[dict[str, Any]] = []

        def read() -> None:
            while not told or told[-1]["event"] != "And again":
                told.append(json.loads(reader.readline()))

        thread = threading.Thread(target=read)
        thread.start()
        outlet.flush(5)
        log.info("Heard again", action="a")
        log.info("And again", action="a")
        thread.join(60)
    lost = 10 - len([line for line in told if line["event"] == "Too much"])
    assert [line["event"] for line in told[-2:]] == ["Heard again", "And again"]
    assert lost > 0
    assert sum(line.get("lost_lines", 0) for line in told) == lost
    assert "lost_lines" not in told[-1]


def test_an_outlet_that_nobody_reads_any_more_does_no_harm() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:
        outlet = Outlet(stream, RUNTIME)
        log = Log(MachineClock(), LogLevel.INFO, LogFormat.AUTO, outlet)
        log.info("Nobody hears", action="a")
        log.info("Nor this", action="a")
        before = time.monotonic()
        outlet.flush(5)
        assert time.monotonic() - before < 4
