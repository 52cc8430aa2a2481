"""Commands that schedule maintenance, and how an operation and its events are told to people."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from forenotice.cli import completing, times, waiting
from forenotice.cli.api import View
from forenotice.cli.output import Output
from forenotice.cli.session import Session, Yes, command
from forenotice.core.fleet import NAME
from forenotice.core.operations import Kind, Status

UNKNOWN = "not known yet"
"""Guests of a Planned operation are told, while something without an end is in the way."""
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the history.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A command that schedules one kind of operation for VMs or hosts."""

    name: str
    kind: Kind
    help: str
    question: str = ""
    """What is asked first, where it cannot be taken back."""
    notice: str = "the minimum"
    """What is given when none is asked for; empty where it cannot be chosen."""


def register(app: typer.Typer, verb: Verb) -> None:
    noun, known = ("HOST", completing.selector("hosts")) if verb.kind.traits.of_host else ("VM", completing.VMS)
    of_host = verb.kind.traits.of_host
    who = "Names, patterns such as 'rack1-*', or labels such as label:rack=r1." if of_host else None
    when = f"Time until NotBefore, such as 20, 2h or 7d; {verb.notice} if left out."

    def run(
        session: Session,
        names: Annotated[list[str], typer.Argument(metavar=noun, show_default=False, autocompletion=known, help=who)],
        notice: Annotated[str | None, typer.Option("--notice", metavar="MINUTES", help=when)] = None,
        reason: Reason = "",
        yes: Yes = False,
        wait: waiting.Wait = False,
        wait_limit: waiting.Limit = None,
    ) -> None:
        if of_host:
            names = [part.strip() for text in names for part in text.split(",") if part.strip()]
        if verb.question:
            names = _meant(session, names) if of_host else names
            session.confirm(f"{verb.question} {', '.join(names)}?", yes=yes)
        body: dict[str, object] = {"kind": verb.kind.value, "names": names, "reason": reason}
        if notice is not None:
            body["notice_minutes"] = times.minutes(notice)
        patience = waiting.asked(wait, wait_limit)
        scheduled = session.api.post("operations", body=body)
        if patience:
            follow(session, scheduled["operations"], patience)
        else:
            show(session.out, scheduled)

    run.__doc__ = verb.help
    unused = {name for name, used in (("notice", verb.notice), ("yes", verb.question)) if not used}
    command(app, verb.name, changes=True, without=unused)(run)


def _meant(session: Session, names: list[str]) -> list[str]:
    """Whoever confirms sees the hosts that a selector means, and means just these."""
    if all(map(NAME.fullmatch, names)):
        return names
    found = {host["name"]: host["vms"] for host in session.api.items("hosts", name=",".join(names))}
    for name in names:
        if NAME.fullmatch(name) and name not in found:
            # Refused if there is no such host; else it is an exception.
            session.api.get("hosts", name)
    return [name for name, vms in found.items() if vms or name in names] or names


def follow(session: Session, operations: Sequence[View], patience: waiting.Patience) -> None:
    """Until they have ended, all of them in a good way."""
    if not session.out.json:
        show(session.out, {"operations": operations})
    ended = waiting.until_over(
        [waiting.operation(session.api, each) for each in operations],
        patience,
        lambda last: session.out.data({"operations": last}) if session.out.json else None,
    )
    waiting.require_good(ended)
    if not session.out.json:
        for seen in ended:
            session.out.line(f"{seen.what} is {seen.status}.")


def show(out: Output, scheduled: View) -> None:
    if out.json:
        out.data(scheduled)
        return
    for operation in scheduled["operations"]:
        if operation["status"] == Status.PLANNED:
            plan(out, operation)
        elif not operation["events"]:
            what = f"{operation['kind'].capitalize()} of {_names(operation['vms']) or operation['host']}"
            out.line(f"{what} is {operation['status']}; nobody needs to be told.")
            if not operation["ended_at"]:
                out.line(f"  what it does: forenotice operation explain {operation['id']}", style="dim")
        for event in operation["events"]:
            announce(out, event)


def plan(out: Output, operation: View) -> None:
    """A window puts it off: guests are told later."""
    what = f"{operation['kind'].capitalize()} of {operation['host']} ({_names(operation['vms'])})"
    out.line(f"{what} is Planned, not before: {out.moment(operation['not_before']) or UNKNOWN}")
    out.line(f"  guests will be told: {told(out, operation)}")
    out.line(f"  why it waits: forenotice operation explain {operation['id']}", style="dim")


def planned(session: Session, host: str) -> list[str]:
    """What is planned for a host, and when its guests are told; for a table of facts."""
    found = session.api.items("operations", status=Status.PLANNED, host=host)
    return [f"{each['kind']}, guests will be told: {told(session.out, each)}" for each in found]


def told(out: Output, operation: View) -> str:
    """When the guests of one that is Planned are told."""
    return out.moment(operation["announce_at"]) or UNKNOWN


def announce(out: Output, event: View) -> None:
    who = _names(event["resources"])
    if event["status"] == "Scheduled":
        out.line(f"{event['type']} of {who} is Scheduled, not before: {out.moment(event['not_before'])}")
        out.line(f"  event {event['id']}")
        out.line(f"  why it waits: forenotice event explain {event['id']}", style="dim")
    else:
        out.line(f"{event['type']} of {who} is {event['status']}.")
        out.line(f"  event {event['id']}")
        if event["status"] == "Started":
            out.line(f"  what it does: forenotice event explain {event['id']}", style="dim")


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
