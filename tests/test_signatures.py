"""Signatures, as receivers check them by the page that tells them how."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from forenotice import signatures
from forenotice.clock import SystemClock

PAGE = Path(__file__).parents[1] / "docs" / "push.md"
SECRET = "a secret of some length"
BODY = b'{"id": "1"}'

Check = Callable[[str, dict[str, str], bytes, timedelta], bool]


def ours(secret: str, headers: dict[str, str], body: bytes, late: timedelta) -> bool:
    timestamp, signature = headers.get(signatures.TIMESTAMP, ""), headers.get(signatures.SIGNATURE, "")
    return signatures.is_valid(secret, body, timestamp, signature, SystemClock().now() + late)


def documented(secret: str, headers: dict[str, str], body: bytes, late: timedelta) -> bool:
    found = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    code = found[1].replace("time.time()", f"(time.time() + {late.total_seconds()})")
    exec(code, names)
    return bool(names["is_from_forenotice"](secret, headers, body))


@pytest.mark.parametrize("check", [ours, documented])
def test_what_is_ours_is_known_and_nothing_else(check: Check) -> None:
    now = timedelta(0)
    headers = signatures.headers(SECRET, BODY, SystemClock().now())
    assert check(SECRET, headers, BODY, now)
    assert check(SECRET, headers, BODY, timedelta(minutes=4))
    assert not check(SECRET, headers, BODY, timedelta(minutes=6))
    assert not check(SECRET, headers, BODY, -timedelta(minutes=6))
    assert not check(SECRET + "x", headers, BODY, now)
    assert not check(SECRET, headers, BODY + b" ", now)
    assert not check(SECRET, {}, BODY, now)
    for wrong in ("x", "-1", "", str(int(headers[signatures.TIMESTAMP]) + 1)):
        assert not check(SECRET, {**headers, signatures.TIMESTAMP: wrong}, BODY, now)
    assert not check(SECRET, {**headers, signatures.SIGNATURE: "sha256="}, BODY, now)
