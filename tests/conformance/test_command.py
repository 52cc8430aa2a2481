"""`forenotice conformance` as people use it."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.acceptance.running import until
from tests.conformance.test_judging import closed_port
from tests.conformance.wrong_server import WrongServer, serving

from forenotice.cli import commands, conformance
from forenotice.cli.main import main
from forenotice.cli.output import Output
from forenotice.conformance.report import Finding, Report, Verdict
from forenotice.core import errors

USAGE = [
    ((), "name the endpoint to check, such as http://169.254.169.254"),
    (("ftp://x",), "'ftp://x' (URL) is not a metadata endpoint: give one such as http://169.254.169.254"),
    (("127.0.0.1", "--speed", "fast"), "'--speed': 'fast' is not a speed"),
    (("127.0.0.1", "--api-version", "2020"), "'--api-version': '2020' is not one of"),
    (("127.0.0.1", "--provoke", "'"), "'--provoke': No closing quotation"),
    (("127.0.0.1", "--provoke", ""), "'--provoke': give a command"),
    (
        ("127.0.0.1", "--only", "reboot", "--namespace"),
        "--only, --namespace only applies to handlers: give --client",
    ),
    (("--client", "x", "--strict", "--speed", "2"), "--client has endpoints of its own: leave out --speed, --strict"),
    (("169.254.169.254",), "On the real platform a first request switches Scheduled Events on for this VM for a day"),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE)
def test_usage_is_one_sentence_and_code_2(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(("conformance", *arguments)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert told.err.count("\n") == 1


def test_a_line_for_each_clause_and_an_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    with serving(WrongServer("no-header-check")) as wrong:
        code = main(("conformance", wrong.url, "--api-version", "2020-07-01", "--junit", str(junit)))
    *lines, summary = capsys.readouterr().out.splitlines()
    assert code == 1
    (header,) = (line for line in lines if line.startswith("fail"))
    (instance,) = (line for line in lines if " instance.header " in line)
    told = "without `Metadata: true` is refused with 400"
    assert header == f"fail           header.required          A GET {told}: expected 400, saw 200"
    request = "GET /metadata/scheduledevents?api-version=2020-07-01 [no Metadata]"
    assert lines[lines.index(header) + 1].strip() == f"request: {request}"
    assert instance.endswith(f"A request {told} (ours): judged only with --strict; expected 400, saw 200")
    assert summary.startswith(f"{wrong.url}: ")
    assert summary.endswith(" not applicable")
    assert b'failures="1"' in junit.read_bytes()


def test_json_has_what_the_lines_have_and_only_strict_fails_what_is_ours(capsys: pytest.CaptureFixture[str]) -> None:
    def judged(*more: str) -> tuple[int, dict[str, object], dict[str, object]]:
        code = main(("conformance", wrong.url, "--api-version", "2020-07-01", "--json", *more))
        found = {finding["clause"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
        return code, found["error.header"], found["life.appears"]

    request = "GET /metadata/scheduledevents?api-version=2020-07-01 [no Metadata]"
    with serving(WrongServer("other-words", "no-wait")) as wrong:
        code, ours, published = judged()
        strict_code, strict, _ = judged("--strict")
    assert (code, ours["verdict"], ours["ours"], ours["request"]) == (0, "not applicable", True, request)
    assert str(ours["why"]).startswith("judged only with --strict; expected Bad request. Required")
    assert (published["ours"], published["why"], published["request"]) == (False, "needs an event: give --provoke", "")
    assert (strict_code, strict["verdict"], strict["ours"], strict["request"]) == (1, "fail", True, request)
    assert str(strict["seen"]).startswith("Bad request: . Required")


def test_a_junit_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with closed_port() as url:
        assert main(("conformance", url, "--junit", str(tmp_path))) == 1
    assert capsys.readouterr().err == f"forenotice: --junit: {tmp_path} cannot be written: Is a directory\n"


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
        assert main(("conformance", wrong.url, "--api-version", "2020-07-01", "--junit", "/dev/full")) == 1
    told = capsys.readouterr()
    assert " pass, " in told.out
    assert told.err == "forenotice: --junit: /dev/full cannot be written: No space left on device\n"


def test_a_program_that_is_not_there_is_missed_before_anything_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with closed_port() as url:
        assert main(("conformance", url, "--provoke", "/no/such now")) == 1
    assert capsys.readouterr().err == "forenotice: --provoke: there is no program '/no/such'\n"


@pytest.mark.parametrize("asked", ["/metadata/scheduledevents?api-version=2020-07-01", "/Metadata/instance", "/"])
def test_what_a_client_asks_for_may_be_pasted(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closed_port() as url:
        assert main(("conformance", url + asked)) == 1
    assert capsys.readouterr().err == f"forenotice: {url} cannot be judged: connection refused\n"


def test_who_is_told_to_end_ends_the_command_first(tmp_path: Path) -> None:
    """It is run when all else has been judged, says that it runs, and never ends by itself."""
    running = tmp_path / "running"
    os.mkfifo(running)
    with serving(WrongServer("never-appears", "no-wait")) as wrong:
        provoke = f"sh -c 'exec >{running}; sleep 0.1; echo; exec sleep 1000'"
        arguments = ["conformance", wrong.url, "--api-version", "2020-07-01", "--provoke", provoke]
        process = subprocess.Popen([sys.executable, "-m", "forenotice", *arguments], stderr=subprocess.PIPE)
        # Without blocking: nothing is read while nobody writes, or while whoever wrote has not ended.
        with open(os.open(running, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as held:
            until(lambda: held.read(1) == b"\n")
            process.send_signal(signal.SIGTERM)
            _, told = process.communicate(timeout=60)
            until(lambda: held.read() == b"", 10, "the command is still there")
    assert told.decode().splitlines()[1:] == ["forenotice: it was interrupted: nothing is reported"]
    assert process.returncode == 1


def test_who_cannot_show_marks_is_shown_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "ascii"))
    report = Report(subject="x", findings=[Finding(clause="a", says="ü", verdict=Verdict.PASSED)])
    assert conformance._encodable("| reboot | ✓ | ✗ | · |") == "| reboot | + | x | - |"
    assert conformance._show(report, report.lines(), "", Output(json=False), None) == 0
    sys.stdout.flush()
    assert b"\\xfc" in shown.getvalue()


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with closed_port() as url:
        assert main(("conformance", url)) == 1
    assert capsys.readouterr().err == f"forenotice: {url} cannot be judged: connection refused\n"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.33.0.1", True), ("::1", True), ("localhost", True), ("169.254.169.254", False)],
)
def test_only_what_may_be_a_real_platform_is_asked_about(host: str, loopback: bool) -> None:
    assert commands.is_loopback(host) is loopback
    commands.confirm_first_request(host, yes=True)


@pytest.mark.parametrize("said", ["y\n", "yes\n", "\n", "no\n"])
def test_somebody_is_asked(said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, said.encode())
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        if said.startswith("y"):
            commands.confirm_first_request("169.254.169.254", yes=False)
        else:
            with pytest.raises(errors.RefusedError, match="no request was sent"):
                commands.confirm_first_request("169.254.169.254", yes=False)
    os.close(ours)
    assert capsys.readouterr().err.endswith("Continue? [y/N] ")


def test_progress_is_shown_to_somebody_who_waits() -> None:
    ours, theirs = pty.openpty()
    with closed_port() as url:
        command = [sys.executable, "-m", "forenotice", "conformance", url]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=False)
    shown = os.read(ours, 65536).decode()
    os.close(theirs)
    os.close(ours)
    assert shown.startswith("\r\x1b[Kwaiting for the first answer\r\x1b[Kforenotice: ")
