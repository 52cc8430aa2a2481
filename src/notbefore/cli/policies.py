"""The policy of a scope: options to change it, and how it is shown."""

from typing import Annotated

import typer

from notbefore.cli.api import View
from notbefore.cli.session import Session
from notbefore.cli.usage import UsageError
from notbefore.core import errors
from notbefore.core.fleet import Listening

Listens = Annotated[
    Listening | None,
    typer.Option("--listening", help="Whether somebody is expected to approve; auto goes by who polls."),
]
AutoApprove = Annotated[
    bool | None,
    typer.Option("--auto-approve/--no-auto-approve", help="Approve users' own restarts and redeploys at once."),
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
    typer.Option("--max-user-operations", metavar="N", help="How many users' operations may be live at once, or off."),
]


def changes(
    listening: Listening | None, auto_approve: bool | None, terminate_notice: str | None, max_operations: str | None
) -> dict[str, object]:
    """What the options ask for; empty when none was given."""
    asked: dict[str, object] = {}
    if listening is not None:
        asked["listening"] = listening.value
    if auto_approve is not None:
        asked["auto_approve"] = auto_approve
    if terminate_notice is not None:
        asked["terminate_notice_minutes"] = number("--terminate-notice", terminate_notice)
    if max_operations is not None:
        asked["max_user_operations"] = number("--max-user-operations", max_operations)
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
        raise errors.ConflictError(f"{name} goes by its group's policy: see `notbefore group policy {view['group']}`")
    show(session, view["policy"])


def show(session: Session, policy: View) -> None:
    if session.out.json:
        session.out.data(policy)
    else:
        session.out.facts(lines(policy))


def lines(policy: View) -> dict[str, object]:
    notice = policy["terminate_notice_minutes"]
    return {
        "listening": policy["listening"],
        "auto approve": policy["auto_approve"],
        "terminate notice": "off" if notice is None else f"{notice:g} min",
        "max user operations": "off" if policy["max_user_operations"] is None else policy["max_user_operations"],
    }
