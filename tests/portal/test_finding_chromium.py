"""Tests in a browser are skipped with a line where there is none, and fail where all must be tested."""

from pathlib import Path

import pytest
from tests.portal.browser import chromium, conftest


def test_chromium_is_found_or_skips_the_test_or_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    for find in (chromium.find, conftest.pytest_runtest_setup):
        with pytest.raises(pytest.skip.Exception, match=r"^Chromium is not here: apt-get install chromium$"):
            find()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(AssertionError, match="need Chromium: apt-get install chromium"):
        chromium.find()
    program = tmp_path / "chromium"
    program.touch(0o755)
    assert chromium.find() == str(program)
