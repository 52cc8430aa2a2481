"""`forenotice conformance`: judges an endpoint by what the protocol promises, or a handler by what it makes of that."""

import io
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from forenotice.cli import consent, offline, options
from forenotice.cli.output import Output, plain
from forenotice.cli.usage import UsageError
from forenotice.client import discovery
from forenotice.client.discovery import Candidate
from forenotice.core import errors
from forenotice.settings import values
from forenotice.settings.spans import Span
from forenotice.wire import versions
from forenotice.wire.versions import Version

if TYPE_CHECKING:
    from forenotice.conformance.report import Line, Report

STYLES = {"pass": "green", "fail": "bold red", "not applicable": "dim"}
PLAIN_MARKS = str.maketrans("✓✗·", "+x-")
"""Of the scoreboard, for those who cannot show it."""
SPEED, WITHIN, NAME, JOBS = "1", "2s", "web-0", 6
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(minutes=5)
"""To notice an event in; everything that a handler lives through becomes longer with it."""

_ASKED = re.compile(r"/metadata/[^#]*\Z", re.IGNORECASE)

Url = Annotated[str | None, typer.Argument(metavar="URL", help="The endpoint to judge.", show_default=False)]
Provoke = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND", help="Causes one event each time it is run; it is run two or three times, without a shell."
    ),
]
Speed = Annotated[str, typer.Option(metavar="N", help="By which the endpoint divides its durations.")]
Strict = Annotated[
    bool, typer.Option("--strict", help="Also fail clauses marked (ours), which only forenotice promises.")
]
ApiVersion = Annotated[
    list[str] | None, typer.Option(metavar="VERSION", help="Judge only this api-version; may be repeated.")
]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the findings as JUnit's XML.")]
Client = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="Judge this handler instead; it is run for each situation, without a shell."),
]
Only = Annotated[list[str] | None, typer.Option(metavar="SITUATION", help="With --client: only this; may be repeated.")]
Within = Annotated[str, typer.Option(metavar="DURATION", help="With --client: how soon it must see an event.")]
MustApprove = Annotated[
    bool, typer.Option("--must-approve", help="With --client: also fail what it does not approve though it could.")
]
Name = Annotated[str, typer.Option(metavar="VM", help="With --client: the VM that the handler is on.")]
Namespace = Annotated[
    bool, typer.Option("--namespace", help="With --client: in a network of its own, with 169.254.169.254; needs root.")
]
Jobs = Annotated[int, typer.Option(min=1, max=100, metavar="N", help="With --client: so many situations at a time.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a first request.")]


def register(app: typer.Typer) -> None:
    app.command("conformance")(conformance)


def conformance(
    url: Url = None,
    provoke: Provoke = None,
    speed: Speed = SPEED,
    strict: Strict = False,
    api_version: ApiVersion = None,
    junit: Junit = None,
    yes: Yes = False,
    client: Client = None,
    only: Only = None,
    within: Within = WITHIN,
    must_approve: MustApprove = False,
    name: Name = NAME,
    namespace: Namespace = False,
    jobs: Jobs = JOBS,
    json: options.Json = False,
) -> int:
    """Judge a metadata endpoint, anybody's, by what the protocol promises; with --client, a handler."""
    out = Output(json=json)
    of_clients = {
        "--only": bool(only),
        "--within": within != WITHIN,
        "--must-approve": must_approve,
        "--name": name != NAME,
        "--namespace": namespace,
        "--jobs": jobs != JOBS,
    }
    of_endpoints = {
        "URL": url is not None,
        "--provoke": provoke is not None,
        "--speed": speed != SPEED,
        "--strict": strict,
        "--api-version": bool(api_version),
    }
    _refuse(of_clients if client is None else of_endpoints, client is not None)
    if client is not None:
        argv, span = _command(client, "--client", "runs the handler"), _within(within)
        _check(junit)
        with _ending_as_told():
            return _judge_client(argv, span, name, only or [], must_approve, namespace, jobs, out, junit)
    if url is None:
        raise UsageError("name the endpoint to judge, such as http://169.254.169.254")
    endpoint = _endpoint(url)
    argv = _command(provoke, "--provoke", "causes an event") if provoke is not None else []
    divided, judged = _speed(speed), _versions(api_version or [])
    _check(junit)
    with _ending_as_told():
        report = _judge(endpoint, argv, divided, judged, strict, yes)
    return _show(report, report.lines(), report.summary(), out, junit)


def _refuse(others: dict[str, bool], is_client: bool) -> None:
    """What belongs to the other of the two."""
    given = [name for name, is_given in others.items() if is_given]
    if given and is_client:
        raise UsageError(f"--client has endpoints of its own: leave out {', '.join(given)}")
    if given:
        raise UsageError(f"only a handler is judged with {', '.join(given)}: give --client, or leave that out")


@contextmanager
def _ending_as_told() -> Iterator[None]:
    """Whoever ends us, what we have started is ended first; a second word changes nothing."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    numbers = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        numbers = []

    def interrupt(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise errors.UnavailableError("it was interrupted: nothing is reported") from None
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def _judge(
    endpoint: Candidate, argv: list[str], speed: float, judged: list[Version], strict: bool, yes: bool
) -> "Report":
    from forenotice.conformance import command
    from forenotice.conformance.endpoint import http, lifecycle, run

    provoke = command.by_command(argv) if argv else None
    consent.to_listen(endpoint.host, yes=yes)
    if argv:
        sys.stderr.write(
            f"The command will be run {lifecycle.EVENTS} times, and once more if a wrong approval is accepted.\n"
        )
    per_second = None if consent.is_loopback(endpoint.host) else http.POLITE
    found = run.Options(
        versions=judged,
        provoke=provoke,
        speed=speed,
        strict=strict,
        pace=http.Pace(per_second=per_second),
    )
    try:
        return run.judge(endpoint, found, _progress)
    finally:
        _progress("")


def _judge_client(
    argv: list[str],
    within: timedelta,
    name: str,
    only: list[str],
    must_approve: bool,
    namespace: bool,
    jobs: int,
    out: Output,
    junit: Path | None,
) -> int:
    with offline.server_packages():
        from forenotice.conformance.handlers import clauses, run, situations, verdicts
        from forenotice.conformance.handlers.trial import Handler

    found = situations.find(name, within, only)
    handler = Handler(argv=argv, me=name, within=within, in_namespace=namespace)
    judged_by = verdicts.Options(within=within, must_approve=must_approve)
    try:
        report = run.run(handler, found, judged_by, jobs=jobs, progress=_progress)
    finally:
        _progress("")
    if not out.json:
        for row in clauses.rows(report):
            out.line(_encodable(row))
        out.line()
    lines = report.lines(clauses.MOST_NAMES, clauses.CHANGING)
    return _show(report, lines, clauses.summary(report), out, junit)


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
        _write(junit, "wb", report.junit())
    return 0 if report.passed else 1


def _check(junit: Path | None) -> None:
    """Now rather than when everything has been judged; what is there stays until then."""
    if junit is not None:
        is_new = not junit.exists()
        _write(junit, "ab", b"")
        if is_new:
            junit.unlink()


def _write(file: Path, mode: Literal["ab", "wb"], data: bytes) -> None:
    try:
        with file.open(mode) as opened:
            opened.write(data)
    except OSError as error:
        raise errors.RefusedError(f"--junit: {file} cannot be written: {error.strerror}") from None


def _encodable(row: str) -> str:
    try:
        row.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return row.translate(PLAIN_MARKS)
    return row


def _progress(said: str) -> None:
    """One line that is written over, for somebody who waits."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{plain(said)}")
        sys.stderr.flush()


def _endpoint(url: str) -> Candidate:
    try:
        # Whoever pastes what a client asks for means the same endpoint.
        return discovery.parse(_ASKED.sub("", url), "URL")
    except errors.RefusedError as error:
        raise UsageError(error.message) from None


def _command(text: str, flag: str, does: str) -> list[str]:
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {text!r} cannot be split into words: {error}") from None
    if not argv:
        raise UsageError(f"{flag}: give the command that {does}")
    return argv


def _within(text: str) -> timedelta:
    try:
        span = Span.read(text)
    except ValueError as error:
        raise UsageError(f"--within: {error}") from None
    if not SHORTEST <= span <= LONGEST:
        raise UsageError(f"--within: give from 1s to 5m, not {text}")
    return span


def _speed(text: str) -> float:
    try:
        return values.speed(text)
    except ValueError as error:
        raise UsageError(f"--speed: {error}") from None


def _versions(names: list[str]) -> list[Version]:
    for name in names:
        if versions.lookup(name) is None:
            known = ", ".join(version.name for version in versions.ALL)
            raise UsageError(f"--api-version: {name!r} is none of {known}")
    return [version for version in versions.ALL if not names or version.name in names]
