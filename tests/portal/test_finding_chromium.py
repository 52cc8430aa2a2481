"""Tests in a browser are skipped with a line where there is none, and fail where all must be tested."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.portal.browser import chromium


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No program is found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    return tmp_path


def test_it_is_found(nowhere: Path) -> None:
    program = nowhere / "chromium"
    program.touch(0o755)
    assert chromium.find() == str(program)


def test_where_it_is_missing_tests_are_skipped(nowhere: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"^Chromium is not here: apt-get install chromium$"):
        chromium.find()


def test_where_all_must_be_tested_its_absence_is_an_error(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(AssertionError, match="need Chromium: apt-get install chromium"):
        chromium.find()


@pytest.mark.usefixtures("nowhere")
def test_one_line_says_so_for_all_of_them() -> None:
    some = [str(Path(chromium.__file__).with_name(name)) for name in ("test_times.py", "test_tokens.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *some]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("Chromium is not here") == 1
    assert " passed" not in ended.stdout
