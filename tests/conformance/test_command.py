"""`notbefore conformance` as people use it."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conformance.test_judging import closed_port
from tests.conformance.wrong_server import Mistake, WrongServer, serving

from notbefore.cli import consent
from notbefore.cli.main import main
from notbefore.core import errors

USAGE = [
    ((), "name the endpoint to judge, such as http://169.254.169.254"),
    (("ftp://x",), "'ftp://x' (URL) is not a metadata endpoint: give one such as http://169.254.169.254"),
    (("127.0.0.1", "--speed", "fast"), "--speed: 'fast' is not a speed"),
    (("127.0.0.1", "--api-version", "2020"), "--api-version: '2020' is none of 2017-03-01, "),
    (("127.0.0.1", "--provoke", "'"), '--provoke: "\'" cannot be split into words: No closing quotation'),
    (("127.0.0.1", "--provoke", ""), "--provoke: give the command that causes an event"),
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
    assert told.err.startswith(f"notbefore: {said}")
    assert told.err.count("\n") == 1


def test_a_line_for_each_clause_and_an_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    with serving(WrongServer(Mistake.NO_HEADER_CHECK)) as wrong:
        code = main(("conformance", wrong.url, "--api-version", "2020-07-01", "--junit", str(junit)))
    *lines, summary = capsys.readouterr().out.splitlines()
    assert code == 1
    header, instance = (line for line in lines if line.startswith("fail"))
    told = "without `Metadata: true` is refused with 400: expected 400, saw 200"
    assert header == f"fail           header.required          A GET {told}"
    assert instance == f"fail           instance.header          A request {told}"
    assert summary.startswith(f"{wrong.url}: ")
    assert summary.endswith(" not applicable")
    assert b'failures="2"' in junit.read_bytes()


def test_a_junit_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with closed_port() as url:
        assert main(("conformance", url, "--junit", str(tmp_path))) == 1
    assert capsys.readouterr().err == f"notbefore: --junit: {tmp_path} cannot be written: Is a directory\n"


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with closed_port() as url:
        assert main(("conformance", url)) == 1
    assert capsys.readouterr().err == f"notbefore: {url} cannot be judged: connection refused\n"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.33.0.1", True), ("::1", True), ("localhost", True), ("169.254.169.254", False)],
)
def test_only_what_may_be_a_real_platform_is_asked_about(host: str, loopback: bool) -> None:
    assert consent.is_loopback(host) is loopback
    consent.to_listen(host, yes=True)


@pytest.mark.parametrize("said", ["y\n", "yes\n", "\n", "no\n"])
def test_somebody_is_asked(said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, said.encode())
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        if said.startswith("y"):
            consent.to_listen("169.254.169.254", yes=False)
        else:
            with pytest.raises(errors.RefusedError, match="nothing was asked"):
                consent.to_listen("169.254.169.254", yes=False)
    os.close(ours)
    assert capsys.readouterr().err.endswith("Go ahead? [y/N] ")


def test_progress_is_shown_to_somebody_who_waits() -> None:
    ours, theirs = pty.openpty()
    with closed_port() as url:
        command = [sys.executable, "-m", "notbefore", "conformance", url]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60, check=False)
    shown = os.read(ours, 65536).decode()
    os.close(theirs)
    os.close(ours)
    assert shown.startswith("\r\x1b[Kwaiting for the first answer\r\x1b[Knotbefore: ")
