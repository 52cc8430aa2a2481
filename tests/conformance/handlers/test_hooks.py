"""What hooks write down, and what an approval finds of it."""

from datetime import UTC, datetime
from pathlib import Path

from forenotice.conformance.handlers import evidence
from forenotice.conformance.handlers.evidence import HookFile, Preparation, RequestLog
from forenotice.emulator.request_log import LoggedRequest

ID = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"


def test_lines_count_when_they_are_complete(tmp_path: Path) -> None:
    file = HookFile(tmp_path / "prepared")
    assert file.lines() == []
    file.path.write_text(f"drained for {ID.lower()}\nfailed {ID}")
    assert evidence.preparation(file.lines(), ID) is Preparation.DONE
    file.path.write_bytes(b"\xff\n\n" + f"  Failed {ID}\n".encode())
    assert evidence.preparation(file.lines(), ID) is Preparation.FAILED
    assert evidence.preparation(file.lines(), "X") is Preparation.NONE
    file.path.unlink()
    assert file.lines() == []


def test_an_approval_is_kept_with_what_was_prepared_by_then(tmp_path: Path) -> None:
    file = HookFile(tmp_path / "prepared")
    requests = RequestLog(file)
    asked = LoggedRequest(
        at=datetime(2026, 1, 1, tzinfo=UTC),
        monotonic=1,
        answered=1,
        vm=None,
        method="POST",
        target="/metadata/scheduledevents?api-version=2020-07-01",
        api_version="2020-07-01",
        headers={},
        body=b"",
        status=200,
        fault=None,
    )
    requests.record(asked)
    file.path.write_text(f"{ID}\n")
    requests.record(asked)
    assert list(requests.approvals_with_hooks) == [(asked, []), (asked, [ID])]
    assert len(requests) == 2
