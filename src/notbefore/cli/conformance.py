"""`notbefore conformance`: judges an endpoint by what the protocol promises, or a handler by what it makes of that."""

import shlex
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from notbefore.cli import consent, offline, options
from notbefore.cli.output import Output, plain
from notbefore.cli.usage import UsageError
from notbefore.client import finding
from notbefore.client.finding import Candidate
from notbefore.core import errors
from notbefore.settings import values
from notbefore.settings.spans import Span
from notbefore.wire import versions
from notbefore.wire.versions import Version

if TYPE_CHECKING:
    from notbefore.conformance.report import Line, Report

STYLES = {"pass": "green", "fail": "bold red", "not applicable": "dim"}
SHORTEST, LONGEST = timedelta(seconds=1), timedelta(minutes=5)
"""To notice an event in; everything that a handler lives through becomes longer with it."""

Url = Annotated[str | None, typer.Argument(metavar="URL", help="The endpoint to judge.", show_default=False)]
Provoke = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", help="Causes one event each time it is run; it is run twice, without a shell."),
]
Speed = Annotated[str, typer.Option(metavar="N", help="By which the endpoint divides its durations.")]
Strict = Annotated[bool, typer.Option("--strict", help="Also fail what only notbefore promises.")]
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
    speed: Speed = "1",
    strict: Strict = False,
    api_version: ApiVersion = None,
    junit: Junit = None,
    yes: Yes = False,
    client: Client = None,
    only: Only = None,
    within: Within = "2s",
    must_approve: MustApprove = False,
    name: Name = "web-0",
    namespace: Namespace = False,
    jobs: Jobs = 6,
    json: options.Json = False,
) -> int:
    """Judge a metadata endpoint, anybody's, by what the protocol promises; with --client, a handler."""
    out = Output(json=json)
    if client is not None:
        if url is not None or provoke is not None:
            raise UsageError("--client has endpoints of its own: leave the URL and --provoke out")
        argv, span = _command(client, "--client", "runs the handler"), _within(within)
        if junit is not None:
            _write(junit, b"")
        return _judge_client(argv, span, name, only or [], must_approve, namespace, jobs, out, junit)
    if url is None:
        raise UsageError("name the endpoint to judge, such as http://169.254.169.254")
    endpoint = _endpoint(url)
    argv = _command(provoke, "--provoke", "causes an event") if provoke is not None else []
    divided, judged = _speed(speed), _versions(api_version or [])
    if junit is not None:
        # Now rather than when everything has been judged.
        _write(junit, b"")
    consent.to_listen(endpoint.host, yes=yes)
    report = _judge(endpoint, argv, divided, judged, strict)
    return _show(report, report.lines(), report.summary(), out, junit)


def _judge(endpoint: Candidate, argv: list[str], speed: float, judged: list[Version], strict: bool) -> "Report":
    from notbefore.conformance.endpoint import judging, life, pace, provoking

    if argv:
        sys.stderr.write(f"The command will be run {life.EVENTS} times.\n")
    per_second = None if consent.is_loopback(endpoint.host) else pace.POLITE
    found = judging.Options(
        versions=judged,
        provoke=provoking.by_command(argv) if argv else None,
        speed=speed,
        strict=strict,
        pace=pace.Pace(per_second=per_second),
    )
    try:
        return judging.judge(endpoint, found, _progress)
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
        from notbefore.conformance.handlers import judging, running, scoreboard, situations
        from notbefore.conformance.handlers.living import Handler

    found = situations.find(name, within, only)
    handler = Handler(argv=argv, me=name, within=within, in_namespace=namespace)
    judged_by = judging.Options(within=within, must_approve=must_approve)
    try:
        report = running.run(handler, found, judged_by, jobs=jobs, progress=_progress)
    finally:
        _progress("")
    if not out.json:
        for row in scoreboard.rows(report):
            out.line(row)
        out.line()
    return _show(report, scoreboard.lines(report), scoreboard.summary(report), out, junit)


def _show(report: "Report", lines: "Iterable[Line]", summary: str, out: Output, junit: Path | None) -> int:
    if junit is not None:
        _write(junit, report.junit())
    if out.json:
        out.data(report.data())
    else:
        for line in lines:
            out.line(f"{line.verdict:<14}", line.text, style=STYLES[line.verdict])
        out.line(f"{report.subject}: {summary}")
    return 0 if report.passed else 1


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise errors.RefusedError(f"--junit: {file} cannot be written: {error.strerror}") from None


def _progress(said: str) -> None:
    """One line that is written over, for somebody who waits."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{plain(said)}")
        sys.stderr.flush()


def _endpoint(url: str) -> Candidate:
    try:
        return finding.parse(url, "URL")
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
