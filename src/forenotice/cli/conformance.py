"""`forenotice conformance`: checks an endpoint, or a handler, against the protocol."""

import io
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forenotice.cli import commands, server
from forenotice.cli.commands import Read, UsageError, argument, command, option, plain, switch
from forenotice.cli.output import Output
from forenotice.client import discovery
from forenotice.client.discovery import Candidate
from forenotice.core import errors
from forenotice.settings import values
from forenotice.settings.values import Span
from forenotice.wire import versions

if TYPE_CHECKING:
    from forenotice.conformance.report import Line, Report

STYLES = {"pass": "green", "fail": "bold red", "not applicable": "dim"}
PLAIN_MARKS = str.maketrans("✓✗·", "+x-")
"""Of the scoreboard, for those who cannot show it."""
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(minutes=5)
"""To notice an event in; all situations of a handler last longer with it."""
_PATH = re.compile(r"/metadata/[^#]*\Z", re.IGNORECASE)


def _endpoint(url: str) -> Candidate:
    # The URL that a client requests stands for its endpoint.
    return discovery.parse(_PATH.sub("", url), "URL")


def _command(text: str) -> list[str]:
    argv = shlex.split(text)
    if not argv:
        raise ValueError("give a command")
    return argv


def _within(text: str) -> timedelta:
    span = Span.read(text)
    if not SHORTEST <= span <= LONGEST:
        raise ValueError(f"give from 1s to 5m, not {text}")
    return span


OF_ENDPOINT = (
    argument("url", "The endpoint to check.", required=False, type=Read(_endpoint)),
    option(
        "--provoke",
        "COMMAND",
        "Causes one event each time it is run; it is run two or three times, without a shell.",
        type=Read(_command),
    ),
    option("--speed", "N", "By which the endpoint divides its durations.", type=Read(values.speed), default="1"),
    switch("--strict", "Also fail clauses marked (ours), which only forenotice promises."),
    option(
        "--api-version",
        "VERSION",
        "Check only this api-version; may be repeated.",
        multiple=True,
        type=click.Choice([each.name for each in versions.ALL]),
    ),
)
OF_CLIENT = (
    option("--only", "SITUATION", "With --client: only this; may be repeated.", multiple=True),
    option("--within", "DURATION", "With --client: how soon it must see an event.", type=Read(_within), default="2s"),
    switch("--must-approve", "With --client: also fail what it does not approve though it could."),
    option("--name", "VM", "With --client: the VM that the handler is on.", default="web-0"),
    switch("--namespace", "With --client: in a network of its own, with 169.254.169.254; needs root."),
    option("--jobs", "N", "With --client: how many situations at once.", type=click.IntRange(1, 100), default=6),
)


@command(
    None,
    "conformance",
    *OF_ENDPOINT,
    option("--junit", "FILE", "Also write the results as JUnit XML.", type=click.Path(path_type=Path)),
    commands.YES,
    option(
        "--client",
        "COMMAND",
        "Check this handler instead; it is run for each situation, without a shell.",
        type=Read(_command),
    ),
    *OF_CLIENT,
    make=lambda _, json: Output(json=json),
    rows=(),
)
def conformance(
    out: Output, client: list[str] | None, url: Candidate | None, junit: Path | None, yes: bool, **given: Any
) -> int:
    if others := _given(OF_ENDPOINT if client else OF_CLIENT):
        raise UsageError(
            f"--client has endpoints of its own: leave out {', '.join(others)}"
            if client
            else f"{', '.join(others)} only applies to handlers: give --client, or leave it out"
        )
    if not client and url is None:
        raise UsageError("name the endpoint to check, such as http://169.254.169.254")
    _check(junit)
    with _ended_by_signals():
        if url is None:
            return _judge_client(
                client or [], out, junit, **{str(each.name): given[str(each.name)] for each in OF_CLIENT}
            )
        report = _judge(url, given["provoke"], given["speed"], given["api_version"], given["strict"], yes)
    return _show(report, report.lines(), report.summary(), out, junit)


def _given(parameters: Iterable[click.Parameter]) -> list[str]:
    """Those that stand on the command line."""
    typed, context = click.core.ParameterSource.COMMANDLINE, click.get_current_context()
    found = [each for each in parameters if context.get_parameter_source(str(each.name)) is typed]
    return [each.opts[0] if isinstance(each, click.Option) else each.human_readable_name for each in found]


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """On a signal, first end what was started; a second signal changes nothing."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    heeded = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    if threading.current_thread() is not threading.main_thread():
        heeded = {}

    def interrupt(*_: object) -> None:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    try:
        for number in heeded:
            signal.signal(number, interrupt)
        yield
    except KeyboardInterrupt:
        raise errors.UnavailableError("it was interrupted: nothing is reported") from None
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)


def _judge(
    endpoint: Candidate, argv: list[str] | None, speed: float, names: Sequence[str], strict: bool, yes: bool
) -> "Report":
    from forenotice.conformance import command as provocation
    from forenotice.conformance.endpoint import http, lifecycle, run, session

    provoke = provocation.by_command(argv) if argv else None
    commands.confirm_first_request(endpoint.host, yes=yes)
    if argv:
        sys.stderr.write(
            f"The command will be run {lifecycle.EVENTS} times, and once more if a wrong approval is accepted.\n"
        )
    per_second = None if commands.is_loopback(endpoint.host) else http.POLITE
    judged = [version for version in versions.ALL if not names or version.name in names]
    found = session.Options(
        versions=judged, provoke=provoke, speed=speed, strict=strict, pace=http.Pace(per_second=per_second)
    )
    try:
        return run.judge(endpoint, found, _progress)
    finally:
        _progress("")


def _judge_client(
    argv: list[str],
    out: Output,
    junit: Path | None,
    *,
    within: timedelta,
    name: str,
    only: Sequence[str],
    must_approve: bool,
    namespace: bool,
    jobs: int,
) -> int:
    with server.server_packages():
        from forenotice.conformance.handlers import situations, trial, verdicts

    found = situations.find(name, within, only)
    handler = trial.Handler(argv=argv, me=name, within=within, in_namespace=namespace)
    judged_by = verdicts.Options(within=within, must_approve=must_approve)
    try:
        report = trial.run(handler, found, judged_by, jobs=jobs, progress=_progress)
    finally:
        _progress("")
    if not out.json:
        for row in verdicts.rows(report):
            out.line(_encodable(row))
        out.line()
    lines = report.lines(verdicts.MOST_NAMES, verdicts.CHANGING)
    return _show(report, lines, verdicts.summary(report), out, junit)


def _show(report: "Report", lines: "Iterable[Line]", summary: str, out: Output, junit: Path | None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What was seen may hold any character, and a terminal need not know it.
        sys.stdout.reconfigure(errors="backslashreplace")
    if out.json:
        out.data(report.data())
    else:
        for line in lines:
            out.line(f"{line.verdict:<14}", line.text, style=STYLES[line.verdict])
            if line.request:
                out.line(f"{'':<14}", f"request: {line.request}", style="dim")
        out.line(f"{report.subject}: {summary}")
    if junit is not None:
        with commands.using(f"--junit: {junit}", "written"):
            junit.write_bytes(report.junit())
    return 0 if report.passed else 1


def _check(junit: Path | None) -> None:
    """Now rather than when everything has been judged; what is there stays until then."""
    if junit is not None:
        is_new = not junit.exists()
        with commands.using(f"--junit: {junit}", "written"), junit.open("ab"):
            pass
        if is_new:
            junit.unlink()


def _encodable(row: str) -> str:
    try:
        row.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return row.translate(PLAIN_MARKS)
    return row


def _progress(said: str) -> None:
    """One line that is overwritten, on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{plain(said)}")
        sys.stderr.flush()
