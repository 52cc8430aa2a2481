"""Tests in a browser are skipped with a line where there is none, and fail where all must be tested."""

from pathlib import Path

import pytest
from tests.portal.browser import chromium, conftest


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
def test_they_are_skipped_before_any_fixture_is_made() -> None:
    with pytest.raises(pytest.skip.Exception, match="Chromium is not here"):
        conftest.pytest_runtest_setup()
