"""A log that takes nothing is no reason to serve nobody."""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.acceptance.running import DEADLINE, HOST, NEWEST, PROGRAMS, ask, environment, until

from forenotice.failures import WITHIN_SECONDS

STRANGER = "127.34.9.9"
POLLS = 30


def free_ports() -> tuple[str, str]:
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as two:
        return f"{HOST}:{one.getsockname()[1]}", f"{HOST}:{two.getsockname()[1]}"


@pytest.mark.parametrize("log", ["full disk", "pipe that nobody reads"])
def test_strangers_are_answered_whatever_becomes_of_the_log(log: str, tmp_path: Path) -> None:
    guests, operators = free_ports()
    command = [str(PROGRAMS / "forenotice"), "serve", "--metadata", guests, "--control", operators]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    descriptor = writing if log.startswith("pipe") else os.open("/dev/full", os.O_WRONLY)
    served = subprocess.Popen(
        command, env=environment(tmp_path), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=descriptor
    )
    try:
        until(lambda: _is_ready(operators))
        for _ in range(POLLS):
            said = ask(
                guests,
                "GET",
                f"/metadata/scheduledevents?api-version={NEWEST}",
                headers={"Metadata": "true"},
                source=STRANGER,
            )
            assert said.status == 404
        assert ask(operators, "GET", "/readyz").status == 200
        if not log.startswith("pipe"):
            assert _metric(operators, "forenotice_log_lines_dropped_total") > 0
        turned = _metrics(operators, "forenotice_thread_turned_seconds")
        assert {labels["thread"] for labels, _ in turned} == {"delivery", "guests", "inventory", "roll", "tick"}
        assert all(seconds < WITHIN_SECONDS for _, seconds in turned)
        assert _metric(operators, "forenotice_clock_behind_seconds") == 0
        assert _metric(operators, "forenotice_clock_jumps_total") == 0
        served.send_signal(signal.SIGTERM)
        assert served.wait(DEADLINE) == 0
    finally:
        served.kill()
        served.wait()
        os.close(reading)
        os.close(writing)


def _is_ready(operators: str) -> bool:
    try:
        return ask(operators, "GET", "/readyz").status == 200
    except OSError:
        return False


def _metric(operators: str, name: str) -> float:
    [(_, value)] = _metrics(operators, name)
    return value


def _metrics(operators: str, name: str) -> list[tuple[dict[str, str], float]]:
    text = ask(operators, "GET", "/metrics").body.decode()
    families = text_string_to_metric_families(text)
    return [(sample.labels, sample.value) for family in families for sample in family.samples if sample.name == name]
