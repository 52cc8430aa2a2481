"""Why something waits, as people read it."""

from collections.abc import Callable
from datetime import datetime, timedelta

from forenotice.cli import times
from forenotice.cli.api import View
from forenotice.cli.output import Output


def show(out: Output, explanation: View, now: Callable[[], datetime] | None = None) -> None:
    """`now` is asked where times are not those of this machine's clock."""
    if out.json:
        out.data(explanation)
        return
    out.line(explanation["sentence"])
    if not explanation["until"]:
        return
    left = times.read(explanation["until"]) - (now() if now else out.now)
    if left > timedelta(0):
        out.line(f"That leaves {times.span(left)}.")
