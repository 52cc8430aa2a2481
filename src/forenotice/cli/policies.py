"""The policy of a scope: options to change it, and how it is shown."""

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from forenotice.cli.api import View
from forenotice.cli.session import Session
from forenotice.cli.usage import UsageError
from forenotice.core import errors
from forenotice.core.fleet import Listening

Listens = Annotated[
    Listening | None,
    typer.Option("--listening", help="Whether somebody is expected to approve; auto goes by who polls."),
]
AutoApproveRestart = Annotated[
    bool | None,
    typer.Option("--auto-approve-restart/--no-auto-approve-restart", help="Approve users' own restarts at once."),
]
AutoApproveRedeploy = Annotated[
    bool | None,
    typer.Option("--auto-approve-redeploy/--no-auto-approve-redeploy", help="Approve users' own redeploys at once."),
]
TerminateNotice = Annotated[
    str | None,
    typer.Option(
        "--terminate-notice",
        metavar="MINUTES",
        help="Announce deletions this long ahead, 5 to 15, or off. Groups only.",
    ),
]
MaxOperations = Annotated[
    str | None,
    typer.Option(
        "--max-user-operations", metavar="N", help="How many users' operations may be live there at once, or off."
    ),
]
MaxUnavailable = Annotated[
    str | None,
    typer.Option(
        "--max-unavailable",
        metavar="N|P%",
        help="How many VMs planned maintenance may have out at once, such as 2 or 25%, or off. Groups only.",
    ),
]
MinAvailable = Annotated[
    str | None,
    typer.Option(
        "--min-available", metavar="N", help="How many VMs planned maintenance must leave, or off. Groups only."
    ),
]
Windows = Annotated[
    list[str] | None,
    typer.Option(
        "--window",
        metavar="WINDOW",
        help="When planned maintenance may start, such as 'mon-fri 22:00-04:00 Europe/Berlin'; may be repeated.",
    ),
]
NoWindows = Annotated[bool, typer.Option("--no-windows", help="Planned maintenance may start at any time.")]


def _options(**annotations: object) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=None)
        for name, annotation in annotations.items()
    )


OF_VM = _options(
    listening=Listens,
    auto_approve_restart=AutoApproveRestart,
    auto_approve_redeploy=AutoApproveRedeploy,
    max_user_operations=MaxOperations,
    window=Windows,
    no_windows=NoWindows,
)
OF_GROUP = _options(
    listening=Listens,
    auto_approve_restart=AutoApproveRestart,
    auto_approve_redeploy=AutoApproveRedeploy,
    terminate_notice=TerminateNotice,
    max_user_operations=MaxOperations,
    max_unavailable=MaxUnavailable,
    min_available=MinAvailable,
    window=Windows,
    no_windows=NoWindows,
)


def taking(options: Sequence[Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options; its last argument is the change that they ask for."""

    def wrap(function: Callable[..., None]) -> Callable[..., None]:
        *own, last = signature(function, eval_str=True).parameters.values()

        def run(session: Session, **values: Any) -> None:
            given = {option.name: values.pop(option.name) for option in options}
            function(session, **values, **{last.name: changes(**given)})

        run.__doc__ = function.__doc__
        run.__signature__ = Signature([*own, *options])  # type: ignore[attr-defined]
        return run

    return wrap


def changes(
    *,
    listening: Listening | None,
    auto_approve_restart: bool | None,
    auto_approve_redeploy: bool | None,
    max_user_operations: str | None,
    window: Sequence[str] | None,
    no_windows: bool | None,
    terminate_notice: str | None = None,
    max_unavailable: str | None = None,
    min_available: str | None = None,
) -> dict[str, object]:
    """What the options ask for; empty when none was given."""
    if window and no_windows:
        raise UsageError("an option and its --no- form exclude each other: give one of them")
    asked: dict[str, object] = {}
    if listening is not None:
        asked["listening"] = listening.value
    if auto_approve_restart is not None:
        asked["auto_approve_restart"] = auto_approve_restart
    if auto_approve_redeploy is not None:
        asked["auto_approve_redeploy"] = auto_approve_redeploy
    if terminate_notice is not None:
        asked["terminate_notice_minutes"] = number("--terminate-notice", terminate_notice)
    if max_user_operations is not None:
        asked["max_user_operations"] = number("--max-user-operations", max_user_operations)
    if max_unavailable is not None:
        part = max_unavailable.endswith("%")
        asked["max_unavailable"] = max_unavailable if part else number("--max-unavailable", max_unavailable)
    if min_available is not None:
        asked["min_available"] = number("--min-available", min_available)
    if window or no_windows:
        asked["windows"] = list(window or ())
    return asked


def number(flag: str, text: str) -> int | None:
    if text.lower() == "off":
        return None
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise UsageError(f"{flag}: {text!r} is not a number: give one such as 5, or off")


def run(session: Session, noun: str, name: str, asked: dict[str, object]) -> None:
    """Change a policy, or show it when nothing is to be changed."""
    if asked:
        show(session, session.api.patch(noun, name, "policy", body=asked))
        return
    view = session.api.get(noun, name)
    if view["policy"] is None:
        raise errors.ConflictError(f"{name} goes by its group's policy: see `forenotice group policy {view['group']}`")
    show(session, view["policy"])


def show(session: Session, policy: View) -> None:
    if session.out.json:
        session.out.data(policy)
    else:
        session.out.facts(lines(policy))


def lines(policy: View) -> dict[str, object]:
    notice, most, least = (policy[name] for name in ("terminate_notice_minutes", "max_unavailable", "min_available"))
    return {
        "listening": policy["listening"],
        "auto approve restart": policy["auto_approve_restart"],
        "auto approve redeploy": policy["auto_approve_redeploy"],
        "terminate notice": "off" if notice is None else f"{notice:g} min",
        "max user operations": "off" if policy["max_user_operations"] is None else policy["max_user_operations"],
        "max unavailable": "off" if most is None else most,
        "min available": "off" if least is None else least,
        "windows": policy["windows"] or "at any time",
    }
