"""Signatures of webhook requests: receivers check sender, content and age, and so reject replays."""

import hashlib
import hmac
from datetime import datetime, timedelta

TIMESTAMP = "Forenotice-Timestamp"
SIGNATURE = "Forenotice-Signature"
TOLERANCE = timedelta(minutes=5)
"""Older timestamps, and those as far in the future, are refused."""


def headers(secret: str, body: bytes, now: datetime) -> dict[str, str]:
    """HMAC-SHA256 over the seconds since 1970, a dot, and the body."""
    timestamp = str(int(now.timestamp()))
    return {TIMESTAMP: timestamp, SIGNATURE: f"sha256={_digest(secret, timestamp, body)}"}


def is_valid(secret: str, body: bytes, timestamp: str, signature: str, now: datetime) -> bool:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return False
    expected = f"sha256={_digest(secret, timestamp, body)}"
    same = hmac.compare_digest(expected.encode(), signature.encode(errors="replace"))
    return same and abs(now.timestamp() - int(timestamp)) <= TOLERANCE.total_seconds()


def _digest(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
