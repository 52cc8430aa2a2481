"""`forenotice record` and `forenotice replay`: what an endpoint says is kept, and said again."""

import os
import re
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any

import typer

from forenotice import settings
from forenotice.cli import consent, offline, options, times
from forenotice.cli.output import Output, plain
from forenotice.cli.usage import UsageError
from forenotice.client import discovery
from forenotice.client.negotiation import NEWEST
from forenotice.core import errors
from forenotice.emulator import foreground, recordings
from forenotice.emulator.foreground import LogLine
from forenotice.emulator.recordings import Observation, Recorder, Writer
from forenotice.settings import EmulatorSettings, table
from forenotice.settings.spans import Span

VERSION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
OFTEN = timedelta(milliseconds=10)
HELP = {
    "speed": "Divide every duration by this; NotBefore shrinks with them.",
    "port": "The port at which guests are answered; 0 for one that is free.",
    "metadata": "Where guests are answered.",
    "metadata_name": table.METADATA_NAME.help,
    "as_vm": "Which VM every caller is; else the first that the recording names, or web-0.",
    "ready_file": "File to write the addresses to, as JSON, once guests are answered.",
}
ROWS = [replace(row, help=HELP[row.attribute]) for row in table.EMULATE if row.attribute in HELP]

Url = Annotated[str, typer.Argument(metavar="URL", help="The endpoint, such as http://169.254.169.254.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The recording.", show_default=False)]
ApiVersion = Annotated[str, typer.Option(metavar="VERSION", help="With which it is asked.")]
For = Annotated[str | None, typer.Option("--for", metavar="TIME", help="Stop after so long; else when interrupted.")]
Every = Annotated[str, typer.Option(metavar="TIME", help="How often it is asked.")]
Append = Annotated[bool, typer.Option("--append", help="Go on with a recording that is there already.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a first request.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: the addresses, then a line for each happening.")]
Loop = Annotated[bool, typer.Option("--loop", help="Begin anew at the end.")]


def register(app: typer.Typer) -> None:
    app.command("record")(record)
    options.register(app, "replay", replay, rows=ROWS, shared=(), context=_settings)


def record(
    url: Url,
    file: File,
    api_version: ApiVersion = NEWEST,
    for_: For = None,
    every: Every = "1s",
    append: Append = False,
    yes: Yes = False,
    json: options.Json = False,
) -> None:
    """Keep what a metadata endpoint says, whenever it differs from before; it approves nothing."""
    try:
        candidate = discovery.parse(url, "URL")
    except errors.RefusedError as error:
        raise UsageError(error.message) from None
    if not VERSION.fullmatch(api_version):
        raise UsageError(f"--api-version: {api_version!r} is not one: give one such as {NEWEST}")
    lasts = None if for_ is None else _span("--for", for_).total_seconds()
    often = _span("--every", every)
    consent.to_listen(candidate.host, yes=yes)
    out = Output(json=json)
    watched = not json and sys.stdout.isatty()

    def tell(heard: Observation) -> None:
        if watched:
            out.line(_told(heard.at), recordings.described(heard))

    recorder = Recorder(candidate, api_version, every=often.total_seconds(), lasts=lasts, tell=tell)
    with Writer(file, recorder.start, append=append) as writer, foreground.interrupting(recorder.stop):
        if watched:
            out.line(f"Recording {candidate.url} to {file}; Ctrl-C ends it.")
        recorder.run(writer)
    _sum_up(recorder, file, out)


def _sum_up(recorder: Recorder, file: Path, out: Output) -> None:
    tally = recorder.tally
    if out.json:
        out.data(
            {
                "file": str(file),
                "url": recorder.start.url,
                "api_version": recorder.start.api_version,
                "seconds": tally.seconds,
                "changes": tally.changes,
                "errors": tally.failures,
                "events": sorted(tally.event_ids),
            }
        )
        return
    failed = f" ({_counted(tally.failures, 'error')})" if tally.failures else ""
    out.line(
        f"Recorded {_counted(tally.changes, 'change')}{failed} and {_counted(len(tally.event_ids), 'event')}"
        f" in {times.span(timedelta(seconds=tally.seconds))} to {file}."
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def replay(found: EmulatorSettings, file: File, loop: Loop = False, json: Json = False) -> None:
    """Let the endpoint say once more what was recorded, from now on, until Ctrl-C."""
    recording = recordings.read(file)
    with offline.server_packages():
        from forenotice.emulator.replay import Replay
    happenings: SimpleQueue[LogLine] = SimpleQueue()
    replaying = Replay(recording, speed=found.speed, as_vm=found.as_vm, loop=loop, tell=happenings.put)
    if recording.torn:
        sys.stderr.write(f"The last line of {file} was cut off: it is left out.\n")
    for kind in replaying.script.unknown:
        sys.stderr.write(f"Events of type {plain(kind)} are left out: no api-version has them.\n")
    stopping = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(foreground.interrupting(stopping.set))
        ready_file = stack.enter_context(foreground.ReadyFile(found.ready_file)) if found.ready_file else None
        ready = foreground.ready(replaying.start(found.guests_at, found.metadata_name))
        stack.callback(replaying.stop)
        if ready_file is not None:
            ready_file.write(ready)
        as_json = json or ready_file is not None
        first = foreground.line(ready) if as_json else _introduction(file, replaying.as_vm, found.speed, ready)
        threading.Thread(target=_tell, args=(first, happenings, as_json), daemon=True).start()
        foreground.sleep(until=stopping)


def _introduction(file: Path, as_vm: str, speed: float, ready: Mapping[str, object]) -> str:
    faster = f", {speed:g} times as fast" if speed != 1 else ""
    return f"""\
forenotice replays {file} at {ready["endpoint"]}{faster}. You are {as_vm}.

In another terminal, look as a guest does, or start your handler with FORENOTICE_ENDPOINT={ready["endpoint"]}:

  curl -H Metadata:true '{ready["url"]}'

Ctrl-C ends it. What happens (times are UTC):
"""


def _tell(first: str, happenings: SimpleQueue[LogLine], as_json: bool) -> None:
    # Whoever read our output may have gone; guests are answered all the same.
    with suppress(OSError):
        foreground.put(first)
        while True:
            foreground.put(foreground.told(happenings.get(), as_json=as_json))


def _told(seconds: float) -> str:
    return f"{timedelta(seconds=round(seconds))}"


def _span(flag: str, text: str) -> timedelta:
    try:
        span = Span.read(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
    if span < OFTEN:
        raise UsageError(f"{flag}: {text!r} is too short: give at least 10ms")
    return span


def _settings(flags: Mapping[str, object], _: Mapping[str, Any]) -> EmulatorSettings:
    foreground.check_place(flags)
    variables = {row.variable for row in ROWS}
    return settings.load_emulator(flags, {name: text for name, text in os.environ.items() if name in variables})
