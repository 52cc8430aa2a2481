"""Why something waits, as people read it."""

from datetime import timedelta

from forenotice.cli import times
from forenotice.cli.api import View
from forenotice.cli.output import Output


def show(out: Output, explanation: View) -> None:
    if out.json:
        out.data(explanation)
        return
    out.line(explanation["sentence"])
    if explanation["until"] and (left := times.read(explanation["until"]) - out.now) > timedelta(0):
        out.line(f"That leaves {times.span(left)}.")
