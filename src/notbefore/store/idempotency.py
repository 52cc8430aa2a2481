"""What was answered to operators' commands, so that a repeated one is the same as one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    digest: str
    """Of the command's body: another body under the same key is a conflict."""
    status: int
    result: bytes
