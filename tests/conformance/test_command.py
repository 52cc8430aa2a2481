"""`forenotice conformance` as people use it. The handlers here end soon; real ones are elsewhere."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import PROGRAMS, until
from tests.conformance.test_judging import closed_port
from tests.conformance.wrong_server import WrongServer, serving

from forenotice.cli import commands, conformance
from forenotice.cli.main import main
from forenotice.cli.output import Output
from forenotice.conformance.handlers import situations, trial
from forenotice.conformance.handlers.trial import Handler
from forenotice.conformance.handlers.verdicts import Options
from forenotice.conformance.report import Finding, Report, Verdict
from forenotice.core import errors

WITHIN = timedelta(seconds=2)
NEWEST = ("--api-version", "2020-07-01")
NO_HEADER = "GET /metadata/scheduledevents?api-version=2020-07-01 [no Metadata]"
INTERRUPTED = "forenotice: it was interrupted: nothing is reported"
OF_ITS_OWN = "--client has endpoints of its own: leave out"

USAGE = [
    ((), "name the endpoint to check, such as http://169.254.169.254"),
    (("ftp://x",), "'ftp://x' (URL) is not a metadata endpoint: give one such as http://169.254.169.254"),
    (("127.0.0.1", "--speed", "fast"), "'--speed': 'fast' is not a speed"),
    (("127.0.0.1", "--api-version", "2020"), "'--api-version': '2020' is not one of"),
    (("127.0.0.1", "--provoke", "'"), "'--provoke': No closing quotation"),
    (("127.0.0.1", "--provoke", ""), "'--provoke': give a command"),
    (("127.0.0.1", "--only", "reboot", "--namespace"), "--only, --namespace only applies to handlers: give --client"),
    (("169.254.169.254",), "On the real platform a first request switches Scheduled Events on for this VM for a day"),
    (("--client", "x", "--strict", "--speed", "2"), f"{OF_ITS_OWN} --speed, --strict"),
    (("http://x", "--client", "true"), OF_ITS_OWN),
    (("--provoke", "true", "--client", "true"), OF_ITS_OWN),
    (("--client", ""), "'--client': give a command"),
    (("--client", "'"), "'--client': No closing quotation"),
    (("--client", "true", "--within", "soon"), "'--within': 'soon' is not a duration: give one such as"),
    (("--client", "true", "--within", "6m"), "'--within': give from 1s to 5m, not 6m"),
    (("--client", "true", "--only", "rebot"), "--only: there is no situation 'rebot'; did you mean 'reboot'?"),
    (("--client", "true", "--name", ""), "--name: '' is not a VM name: 1 to 64 letters, digits, '.', '_' or '-'"),
]


@pytest.mark.parametrize(("arguments", "told"), USAGE)
def test_usage_is_one_sentence_and_code_2(
    arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(("conformance", *arguments)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert told in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("URL", "--junit", "/"), "--junit: / cannot be written: Is a directory"),
        (("--client", "true", "--junit", "/"), "--junit: / cannot be written: Is a directory"),
        (("URL", "--provoke", "/no/such now"), "--provoke: there is no program '/no/such'"),
        (("--client", "/nowhere"), "--client: '/nowhere' cannot be run: No such file or directory"),
        # What a client requests may be pasted.
        *(
            ((f"URL{path}",), "URL cannot be judged: connection refused")
            for path in ("", "/", "/metadata/scheduledevents?api-version=2020-07-01", "/Metadata/instance")
        ),
    ],
)
def test_what_is_refused_at_once(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closed_port() as url:
        assert main(("conformance", *(word.replace("URL", url) for word in arguments))) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"forenotice: {told.replace('URL', url)}\n")


# An endpoint


def test_a_line_for_each_clause_and_an_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    with serving(WrongServer("no-header-check")) as wrong:
        code = main(("conformance", wrong.url, *NEWEST, "--junit", str(junit)))
    *lines, summary = capsys.readouterr().out.splitlines()
    assert code == 1
    (header,) = (line for line in lines if line.startswith("fail"))
    (instance,) = (line for line in lines if " instance.header " in line)
    told = "without `Metadata: true` is refused with 400"
    assert header == f"fail           header.required          A GET {told}: expected 400, saw 200"
    assert lines[lines.index(header) + 1].strip() == f"request: {NO_HEADER}"
    assert instance.endswith(f"A request {told} (ours): judged only with --strict; expected 400, saw 200")
    assert summary.startswith(f"{wrong.url}: ")
    assert summary.endswith(" not applicable")
    assert b'failures="1"' in junit.read_bytes()


def test_json_has_what_the_lines_have_and_only_strict_fails_what_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    def judged(*more: str) -> tuple[int, dict[str, object], dict[str, object]]:
        code = main(("conformance", wrong.url, *NEWEST, "--json", *more))
        found = {finding["clause"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
        return code, found["error.header"], found["life.appears"]

    with serving(WrongServer("other-words", "no-wait")) as wrong:
        code, ours, published = judged()
        strict_code, strict, _ = judged("--strict")
    assert (code, ours["verdict"], ours["ours"], ours["request"]) == (0, "not applicable", True, NO_HEADER)
    assert str(ours["why"]).startswith("judged only with --strict; expected Bad request. Required")
    assert (published["ours"], published["why"], published["request"]) == (False, "needs an event: give --provoke", "")
    assert (strict_code, strict["verdict"], strict["ours"], strict["request"]) == (1, "fail", True, NO_HEADER)
    assert str(strict["seen"]).startswith("Bad request: . Required")


def test_what_is_in_a_junit_file_stays_until_there_is_something_new(tmp_path: Path) -> None:
    old, new = tmp_path / "old.xml", tmp_path / "new.xml"
    old.write_text("before")
    with closed_port() as url:
        for file in (old, new):
            assert main(("conformance", url, "--junit", str(file))) == 1
    assert old.read_text() == "before"
    assert not new.exists()


def test_a_report_is_shown_although_its_file_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(WrongServer("no-wait")) as wrong:
        assert main(("conformance", wrong.url, *NEWEST, "--junit", "/dev/full")) == 1
    shown = capsys.readouterr()
    assert " pass, " in shown.out
    assert shown.err == "forenotice: --junit: /dev/full cannot be written: No space left on device\n"


def test_an_interrupted_run_ends_the_command_first(tmp_path: Path) -> None:
    """The command starts when all else has been judged, and never ends by itself."""
    running = tmp_path / "running"
    os.mkfifo(running)
    with serving(WrongServer("never-appears", "no-wait")) as wrong:
        provoke = f"sh -c 'exec >{running}; sleep 0.1; echo; exec sleep 1000'"
        arguments = ["conformance", wrong.url, *NEWEST, "--provoke", provoke]
        process = subprocess.Popen([sys.executable, "-m", "forenotice", *arguments], stderr=subprocess.PIPE)
        # Without blocking: nothing is read before the command writes, or until it has ended.
        with open(os.open(running, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as held:
            until(lambda: held.read(1) == b"\n")
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
            until(lambda: held.read() == b"", 10, "the command is still there")
    assert told.decode().splitlines()[1:] == [INTERRUPTED]
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.33.0.1", True), ("::1", True), ("localhost", True), ("169.254.169.254", False)],
)
def test_only_what_may_be_a_real_platform_needs_a_confirmation(host: str, loopback: bool) -> None:
    assert commands.is_loopback(host) is loopback
    commands.confirm_first_request(host, yes=True)


@pytest.mark.parametrize("typed", ["y\n", "yes\n", "\n", "no\n"])
def test_confirmation(typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        if typed.startswith("y"):
            commands.confirm_first_request("169.254.169.254", yes=False)
        else:
            with pytest.raises(errors.RefusedError, match="no request was sent"):
                commands.confirm_first_request("169.254.169.254", yes=False)
    os.close(ours)
    assert capsys.readouterr().err.endswith("Continue? [y/N] ")


def test_progress_is_shown_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with closed_port() as url:
        command = [sys.executable, "-m", "forenotice", "conformance", url]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=False)
    shown = os.read(ours, 65536).decode()
    os.close(theirs)
    os.close(ours)
    assert shown.startswith("\r\x1b[Kwaiting for the first answer\r\x1b[Kforenotice: ")


def test_a_terminal_that_cannot_show_marks_gets_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    report = Report(subject="x", findings=[Finding(clause="a", says="ü", verdict=Verdict.PASSED)])
    assert conformance._encodable("| reboot | ✓ | ✗ | · |") == "| reboot | + | x | - |"
    assert conformance._show(report, report.lines(), "", Output(json=False), None) == 0
    sys.stdout.flush()
    assert b"\\xfc" in shown.getvalue()


# A handler

FOUND = """\
| situation | runs | asks | goes on | notices | prepares | own | known | approves | prepared | not failed | recovers |
| --------- | :--: | :--: | :-----: | :-----: | :------: | :-: | :---: | :------: | :------: | :--------: | :------: |
| reboot    |  ✗   |  ·   |    ·    |    ·    |    ·     |  ·  |   ·   |    ·     |    ·     |     ·      |    ·     |
| redeploy  |  ·   |  ·   |    ·    |    ·    |    ·     |  ·  |   ·   |    ·     |    ·     |     ·      |    ·     |
| reset     |  ✗   |  ·   |    ·    |    ·    |    ·     |  ·  |   ·   |    ·     |    ·     |     ·      |    ·     |

fail           process.runs          Its process runs to the end [reboot, reset]: expected a process that runs, \
saw that it ended with code 3; it said last: web-7 has x
not applicable process.runs          Its process runs to the end [redeploy]: it saw no document in reset and reboot
"""


def script(file: Path, *lines: str) -> str:
    file.write_text("\n".join(("#!/bin/sh", *lines, "exit 3\n")))
    file.chmod(0o755)
    return str(file)


def test_a_scoreboard_a_line_for_each_reason_and_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    short = script(tmp_path / "short", 'test "${1%/x}" = "$FORENOTICE_SITUATION_DIR" && echo "$FORENOTICE_NAME has x"')
    only = ("--only", "reboot", "--only", "redeploy", "--only", "reset", "--jobs", "1", "--name", "web-7")
    command = ("conformance", "--client", f"{short} {{dir}}/x", *only)
    assert main((*command, "--junit", str(junit))) == 1
    out = capsys.readouterr().out
    assert out.startswith(FOUND)
    assert out.splitlines()[-1].endswith("short '{dir}/x': 0 of 3 situations without a failure")
    assert b'tests="33" failures="2"' in junit.read_bytes()
    assert main((*command, "--json")) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["summary"] == {"pass": 0, "fail": 2, "not applicable": 31}
    assert {finding["where"] for finding in found["findings"]} == {"reboot", "redeploy", "reset"}


def run_two(argv: list[str], progress: Callable[[str], None]) -> Handler:
    handler = Handler(argv=argv, me="web-0", within=WITHIN)
    found = situations.find("web-0", WITHIN, ["reboot", "redeploy"])
    with pytest.raises(KeyboardInterrupt):
        trial.run(handler, found, Options(within=WITHIN), jobs=2, progress=progress)
    return handler


def test_a_situation_that_goes_wrong_ends_them_all() -> None:
    began = time.monotonic()

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    run_two(["sh", "-c", 'test "$FORENOTICE_SITUATION" = reboot && exit 3; exec sleep 60'], interrupted)
    assert time.monotonic() - began < 15


def test_an_interruption_while_situations_are_begun_ends_those_that_have(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(ThreadPoolExecutor):
        given = 0

        def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> "Future[Any]":
            self.given += 1
            if self.given == 2:
                raise KeyboardInterrupt
            return super().submit(fn, *args, **kwargs)

    monkeypatch.setattr(trial, "ThreadPoolExecutor", Interrupted)
    assert run_two(["sleep", "60"], lambda _: None).stopping.is_set()


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    pids = tmp_path / "pids"
    handler = f"sh -c 'echo $$ >> {pids}; exec sleep 60'"
    command = [str(PROGRAMS / "forenotice"), "conformance", "--client", handler]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as run:
        until(lambda: pids.exists() and pids.read_text().count("\n") >= 2)
        run.terminate()
        told = run.communicate(timeout=15)[1]
    assert (run.returncode, told.decode()) == (1, f"{INTERRUPTED}\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split())
    assert list((tmp_path / "tmp").iterdir()) == []
    # Those that had not begun do not begin.
    assert len(pids.read_text().split()) <= 1 + (os.cpu_count() or 1)


def test_at_the_usual_address_in_a_network_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    url = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
    polls = script(tmp_path / "polls", f"curl -sS --noproxy '*' -H Metadata:true '{url}'")
    before = subprocess.run(["ip", "-o", "address"], capture_output=True, check=True).stdout
    only = ("--only", "reboot", "--only", "redeploy", "--jobs", "2", "--json")
    main(("conformance", "--client", polls, "--namespace", *only))
    told = capsys.readouterr()
    assert subprocess.run(["ip", "-o", "address"], capture_output=True, check=True).stdout == before
    if "which is not permitted here" in told.err and not os.environ.get("CI"):
        pytest.skip("this system does not permit network namespaces")
    found = [finding for finding in json.loads(told.out)["findings"] if finding["clause"] == "process.runs"]
    assert len(found) == 2
    assert all('{"DocumentIncarnation":' in finding["seen"] for finding in found), found


def test_a_namespace_that_is_not_permitted_is_refused_in_a_sentence() -> None:
    # Another user might not get to this clone.
    unprivileged = [] if os.geteuid() else ["setpriv", "--bounding-set=-sys_admin"]
    probe = "from forenotice.conformance.handlers import trial; trial.enter_namespace()"
    done = subprocess.run([*unprivileged, sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert "not permitted here (operation not permitted): run this as root" in done.stderr
