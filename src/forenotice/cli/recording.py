"""`forenotice record` and `forenotice replay`: keeps the responses of an endpoint, and serves them again."""

import os
import re
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import click

from forenotice import settings
from forenotice.cli import commands, output, server
from forenotice.cli.commands import Read, argument, command, option, plain, switch
from forenotice.cli.output import Output, counted
from forenotice.client import discovery
from forenotice.client.discovery import Candidate
from forenotice.client.negotiation import NEWEST
from forenotice.emulator import foreground, recordings
from forenotice.emulator.foreground import LogLine
from forenotice.emulator.recordings import Observation, Recorder, Writer
from forenotice.runtime import start_thread
from forenotice.settings import EmulatorSettings, table
from forenotice.settings.values import Span

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


def _version(text: str) -> str:
    if not VERSION.fullmatch(text):
        raise ValueError(f"{text!r} is not an api-version: give one such as {NEWEST}")
    return text


def _span(text: str) -> timedelta:
    span = Span.read(text)
    if span < OFTEN:
        raise ValueError(f"{text!r} is too short: give at least 10ms")
    return span


def _settings(flags: Mapping[str, object]) -> EmulatorSettings:
    foreground.check_place(flags)
    variables = {row.variable for row in ROWS}
    return settings.load_emulator(flags, {name: text for name, text in os.environ.items() if name in variables})


FILE = argument("file", "The recording.", type=click.Path(path_type=Path))


@command(
    None,
    "record",
    argument(
        "url", "The endpoint, such as http://169.254.169.254.", type=Read(lambda text: discovery.parse(text, "URL"))
    ),
    FILE,
    option("--api-version", "VERSION", "The version to request.", type=Read(_version), default=NEWEST),
    option("--for for_", "TIME", "Stop after this long; when interrupted if left out.", type=Read(_span)),
    option("--every", "TIME", "How often to poll.", type=Read(_span), default="1s"),
    switch("--append", "Continue an existing recording."),
    commands.YES,
    make=lambda _, json: Output(json=json),
    rows=(),
)
def record(
    out: Output,
    url: Candidate,
    file: Path,
    api_version: str,
    for_: timedelta | None,
    every: timedelta,
    append: bool,
    yes: bool,
) -> None:
    commands.confirm_first_request(url.host, yes=yes)
    watched = not out.json and sys.stdout.isatty()

    def report(observation: Observation) -> None:
        if watched:
            out.line(str(timedelta(seconds=round(observation.at))), recordings.describe(observation))

    recorder = Recorder(
        url,
        api_version,
        every=every.total_seconds(),
        lasts=None if for_ is None else for_.total_seconds(),
        report=report,
    )
    with Writer(file, recorder.start, append=append) as writer, foreground.interrupting(recorder.stop):
        if watched:
            out.line(f"Recording {url.url} to {file}; Ctrl-C ends it.")
        recorder.run(writer)
    tally = recorder.tally
    failed = f" ({counted(tally.failures, 'error')})" if tally.failures else ""
    summary = {
        "file": str(file),
        "url": recorder.start.url,
        "api_version": recorder.start.api_version,
        "seconds": tally.seconds,
        "changes": tally.changes,
        "errors": tally.failures,
        "events": sorted(tally.event_ids),
    }
    out.result(
        summary,
        f"Recorded {counted(tally.changes, 'change')}{failed} and {counted(len(tally.event_ids), 'event')}"
        f" in {output.span(timedelta(seconds=tally.seconds))} to {file}.",
    )


@command(
    None,
    "replay",
    FILE,
    switch("--loop", "Start again at the end."),
    switch("--json as_json", "Print JSON: the addresses, then a line for each happening."),
    make=_settings,
    rows=ROWS,
    shared=(),
)
def replay(found: EmulatorSettings, file: Path, loop: bool, as_json: bool) -> None:
    recording = recordings.read(file)
    with server.server_packages():
        from forenotice.emulator.replay import Replay
    happenings: SimpleQueue[LogLine] = SimpleQueue()
    replaying = Replay(recording, speed=found.speed, as_vm=found.as_vm, loop=loop, report=happenings.put)
    if recording.torn:
        sys.stderr.write(f"The last line of {file} was cut off: it is left out.\n")
    for kind in replaying.script.unknown_types:
        sys.stderr.write(f"Events of type {plain(kind)} are left out: no api-version has them.\n")
    stopping = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(foreground.interrupting(stopping.set))
        ready_file = stack.enter_context(foreground.ReadyFile(found.ready_file)) if found.ready_file else None
        ready = foreground.ready(replaying.start(found.guests_at, found.metadata_name))
        stack.callback(replaying.stop)
        if ready_file is not None:
            ready_file.write(ready)
        as_json = as_json or ready_file is not None
        first = foreground.line(ready) if as_json else _introduction(file, replaying.as_vm, found.speed, ready)
        start_thread(partial(foreground.report, first, iter(happenings.get, None), as_json=as_json), "report")
        foreground.sleep(until=stopping)


def _introduction(file: Path, as_vm: str, speed: float, ready: Mapping[str, object]) -> str:
    faster = f", {speed:g} times as fast" if speed != 1 else ""
    return f"""\
forenotice replays {file} at {ready["endpoint"]}{faster}. You are {as_vm}.

In another terminal, look as a guest does, or start your handler with FORENOTICE_ENDPOINT={ready["endpoint"]}:

  curl -H Metadata:true '{ready["url"]}'

Ctrl-C ends it. What happens (times are UTC):
"""
