"""Logs are one JSON object a line, whoever logs."""

import json
import subprocess
import sys

SCRIPT = """
import logging
import structlog
from forenotice import logs
from forenotice.settings.values import LogFormat, LogLevel

logs.configure(LogLevel.INFO, LogFormat.JSON)
log = structlog.get_logger()
log.debug("Not shown", action="test.debug")
log.info("Ours", action="test.ours", number=1)
logging.getLogger("some.library").info("not shown")
logging.getLogger("some.library").warning("careful, %s", "please")
try:
    raise ValueError("no good")
except ValueError:
    logging.getLogger("some.library").exception("it failed")
"""


CONSOLE = """
import structlog
from forenotice import logs
from forenotice.settings.values import LogFormat, LogLevel

logs.configure(LogLevel.INFO, LogFormat.CONSOLE)

def fail(token):
    raise ValueError("no good")

try:
    fail("fn_" + "secret")
except ValueError:
    structlog.get_logger().exception("It failed", action="test.failed")
"""


def test_tracebacks_tell_no_local_variables() -> None:
    done = subprocess.run([sys.executable, "-c", CONSOLE], capture_output=True, text=True, check=True, timeout=30)
    assert "ValueError: no good" in done.stderr
    assert "fn_secret" not in done.stderr


def test_ours_and_those_of_libraries_look_alike() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == ""
    ours, careful, failed = map(json.loads, done.stderr.splitlines())
    assert (ours["action"], ours["event"], ours["number"], ours["level"]) == ("test.ours", "Ours", 1, "info")
    assert (careful["action"], careful["said"], careful["level"]) == ("library", "careful, please", "warning")
    assert (failed["said"], failed["level"]) == ("it failed", "error")
    assert failed["exception"].endswith("ValueError: no good")
    assert all(entry["timestamp"].endswith("Z") for entry in (ours, careful, failed))
