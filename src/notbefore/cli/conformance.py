"""`notbefore conformance`: judges an endpoint by what the protocol promises."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from notbefore.cli import consent, options
from notbefore.cli.output import Output, plain
from notbefore.cli.usage import UsageError
from notbefore.client import finding
from notbefore.client.finding import Candidate
from notbefore.core import errors
from notbefore.settings import values
from notbefore.wire import versions
from notbefore.wire.versions import Version

if TYPE_CHECKING:
    from notbefore.conformance.report import Report

STYLES = {"pass": "green", "fail": "bold red", "not applicable": "dim"}

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
    json: options.Json = False,
) -> int:
    """Judge a metadata endpoint, anybody's, by what the protocol promises."""
    if url is None:
        raise UsageError("name the endpoint to judge, such as http://169.254.169.254")
    endpoint = _endpoint(url)
    argv = _command(provoke)
    divided, judged = _speed(speed), _versions(api_version or [])
    if junit is not None:
        # Now rather than when everything has been judged.
        _write(junit, b"")
    consent.to_listen(endpoint.host, yes=yes)
    return _show(_judge(endpoint, argv, divided, judged, strict), Output(json=json), junit)


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


def _show(report: "Report", out: Output, junit: Path | None) -> int:
    if junit is not None:
        _write(junit, report.junit())
    if out.json:
        out.data(report.data())
    else:
        for line in report.lines():
            out.line(f"{line.verdict:<14}", line.text, style=STYLES[line.verdict])
        out.line(f"{report.subject}: {report.summary()}")
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


def _command(text: str | None) -> list[str]:
    try:
        argv = shlex.split(text) if text is not None else []
    except ValueError as error:
        raise UsageError(f"--provoke: {text!r} cannot be split into words: {error}") from None
    if text is not None and not argv:
        raise UsageError("--provoke: give the command that causes an event")
    return argv


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
