"""What the agent logs while it runs, and what Prometheus reads, by its own parser."""

import io
import json
import os
import sys
import threading
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.agent.parts import RUNTIME, logged

from forenotice import __version__
from forenotice.agent.context import FAMILIES, PREFIX, Log, Metrics, Outlet
from forenotice.agent.rules.policy import Phase
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


# Metrics


class Reader:
    """A Metrics at a time that the test sets, read as Prometheus reads it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics(lambda: self.now)

    def value(self, name: str, **labels: str) -> float | None:
        found = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(self.metrics.render())
            for sample in family.samples
        }
        return found.get((PREFIX + name, tuple(sorted(labels.items()))))


@pytest.fixture
def reader() -> Reader:
    return Reader()


def test_every_family_is_described_and_has_its_type(reader: Reader) -> None:
    for name in ("freeze_measured_seconds", "freeze_expected_seconds"):
        reader.metrics.show(name, 1.0)
    reader.metrics.stepped("nginx", Phase.PREPARE, ok=True, seconds=1.0)
    read = {family.name: family for family in text_string_to_metric_families(reader.metrics.render())}
    assert len(read) == len(FAMILIES)
    for family in FAMILIES:
        # The parser names a counter without its ending.
        found = read[PREFIX + family.name.removesuffix("_total")]
        assert (found.type, found.documentation) == (family.kind, family.help)
        assert found.samples, f"{family.name} has no value"
        assert all(set(sample.labels) == set(family.labels) for sample in found.samples)
        assert (family.kind == "counter") == family.name.endswith("_total")


def test_counters_are_zero_at_the_start(reader: Reader) -> None:
    assert reader.value("polls_total", result="error") == 0
    assert reader.value("events_total", type="Preempt") == 0
    assert reader.value("sagas", state="preparing") == 0
    assert reader.value("sagas", state="done") is None
    assert reader.value("approvals_total", result="refused") == 0
    assert reader.value("peer_messages_total", result="received") == 0
    assert reader.value("resumed_total") == reader.value("journal_errors_total") == reader.value("ready") == 0
    assert reader.value("freeze_measured_seconds") is None
    assert reader.value("build_info", version=__version__) == 1


def test_polls_and_the_time_since_a_good_one(reader: Reader) -> None:
    reader.now += 5
    assert reader.value("seconds_since_good_poll") == 5
    for result in ("ok", "unchanged", "unchanged"):
        reader.metrics.polled(result)
    reader.now += 7
    reader.metrics.polled("error")
    assert [reader.value("polls_total", result=result) for result in ("ok", "unchanged", "error")] == [1, 2, 1]
    assert reader.value("seconds_since_good_poll") == 7


def test_the_endpoint_makes_no_labels(reader: Reader) -> None:
    for kind in ("Freeze", "Freeze", "C7061BAC-AFDC-4513-B24B-AA5F13A16123", 'x"\n'):
        reader.metrics.saw(kind)
    assert [reader.value("events_total", type=kind) for kind in ("Freeze", "other")] == [2, 2]
    assert "C7061BAC" not in reader.metrics.render()


def test_values_as_they_are_now(reader: Reader) -> None:
    reader.metrics.handles({State.PREPARING: 2, State.STARTED: 1, State.DONE: 9})
    reader.metrics.handles({State.PREPARED: 1})
    assert [reader.value("sagas", state=state) for state in ("preparing", "prepared", "started")] == [0, 1, 0]
    for value in (9.0, None):
        reader.metrics.show("freeze_expected_seconds", value)
        assert reader.value("freeze_expected_seconds") == value


def test_steps_and_how_long_they_took(reader: Reader) -> None:
    name = 'back\\slash "quoted"\nnew line \\n {}=, ü'
    for ok, seconds in ((True, 1.5), (False, 2.0), (True, 0.25)):
        reader.metrics.stepped(name, Phase.PREPARE, ok=ok, seconds=seconds)
    reader.metrics.stepped(name, Phase.RECOVER, ok=True, seconds=3.0)
    assert reader.value("steps_total", handler=name, phase="prepare", result="ok") == 2
    assert reader.value("steps_total", handler=name, phase="prepare", result="failed") == 1
    assert reader.value("handler_seconds_sum", handler=name, phase="prepare") == 3.75
    assert reader.value("handler_seconds_count", handler=name, phase="recover") == 1


def test_metrics_are_read_while_threads_count(reader: Reader) -> None:
    def work(number: int) -> None:
        for step in range(1000):
            reader.metrics.polled("ok")
            reader.metrics.count("steps_total", f"{number} {step}", "prepare", "ok")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            reader.metrics.render()
    finally:
        sys.setswitchinterval(interval)
    assert reader.value("polls_total", result="ok") == 4000
