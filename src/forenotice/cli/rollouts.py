"""`forenotice rollout`: maintenance over many hosts, wave by wave."""

import functools
from enum import StrEnum
from typing import Annotated, Any

import typer

from forenotice.cli import completing, explaining, planned, times, waiting
from forenotice.cli.api import Api, View
from forenotice.cli.session import Session, Yes, command
from forenotice.cli.usage import UsageError
from forenotice.core.rollouts import KINDS

app = typer.Typer(help="Rollouts: plan, start, wait, explain, pause, resume, cancel.", no_args_is_help=True)


class Progress(StrEnum):
    """What has become of a host."""

    WAITING = "waiting"
    UNDER_WAY = "under-way"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def written(self) -> str:
        return self.value.capitalize().replace("-", " ")


RolloutId = Annotated[str, typer.Argument(metavar="ROLLOUT", show_default=False, autocompletion=completing.ROLLOUTS)]


@command(app, "start", changes=True, without=("plan",))
def start(
    session: Session,
    hosts: Annotated[
        str,
        typer.Option(
            "--hosts",
            metavar="SELECTOR",
            help="Which, such as 'rack1-*,!rack1-07' or label:rack=r1.",
            show_default=False,
            autocompletion=completing.selector("hosts"),
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="|".join(KINDS),
            help="What is done to each of them.",
            show_default=False,
            autocompletion=lambda: list(KINDS),
        ),
    ],
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Hosts under way at once, at most.")] = 1,
    pause: Annotated[
        str | None, typer.Option("--pause", metavar="MINUTES", help="Between two waves, such as 10, 30s or 2h.")
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option(
            "--gate", metavar="NAME|URL", help="What must be green before each wave: a gate of `serve`, or a URL."
        ),
    ] = None,
    max_failures: Annotated[
        int, typer.Option("--max-failures", metavar="N", min=1, help="Pause after so many hosts that failed.")
    ] = 1,
    window: Annotated[
        list[str] | None,
        typer.Option(
            "--window",
            metavar="WINDOW",
            help="When it may start things, such as 'mon-fri 22:00-04:00 Europe/Berlin'; may be repeated.",
        ),
    ] = None,
    notice: Annotated[
        str | None,
        typer.Option(
            "--notice", metavar="MINUTES", help="Time until each NotBefore, such as 20 or 2h; else the minimum."
        ),
    ] = None,
    wait: waiting.Wait = False,
    wait_limit: waiting.Limit = None,
    plan: bool = False,
) -> None:
    """Update, migrate or reboot many hosts, one update domain of each group after the other."""
    if kind not in KINDS:
        raise UsageError(f"{kind!r} is no kind of rollout: give one of {', '.join(KINDS)}")
    body: dict[str, object] = {
        "kind": kind,
        "hosts": hosts,
        "batch": batch,
        "max_failures": max_failures,
        "windows": window or [],
    }
    if pause is not None:
        body["pause_minutes"] = times.minutes(pause)
    if gate is not None:
        body["gate"] = gate
    if notice is not None:
        body["notice_minutes"] = times.minutes(notice)
    patience = waiting.asked(wait, wait_limit)
    if plan:
        planned.show(session.out, session.api.post("rollouts", "plan", body=body))
        return
    started = session.api.post("rollouts", body=body)
    if not session.out.json:
        _announce(session, started)
    if patience:
        _follow(session, started, patience)
    elif session.out.json:
        session.out.data(started)


@command(app, "plan", without=("wait", "wait_limit", "plan"))
@functools.wraps(start, assigned=())
def plan(session: Session, /, **asked: Any) -> None:
    """Show what a rollout would come to, and when; nothing is done."""
    start(session, plan=True, **asked)


@command(app, "wait")
def wait(session: Session, rollout_id: RolloutId, wait_limit: waiting.Limit = None) -> None:
    """Wait until a rollout has ended or is paused, and say why it waits."""
    rollout = session.api.get("rollouts", rollout_id)
    _follow(session, rollout, waiting.patience(wait_limit))


@command(app, "list")
def list_(
    session: Session,
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended.")] = False,
) -> None:
    """List the rollouts."""
    items = session.api.items("rollouts", live=None if everything else True)
    if session.out.json:
        session.out.data(list(items))
        return
    session.out.table(
        ("rollout", "kind", "hosts", "status", "wave", "progress", "started"),
        (
            (
                rollout["id"],
                rollout["kind"],
                rollout["hosts"],
                rollout["status"],
                _wave(rollout),
                _progress(rollout),
                times.relative(times.read(rollout["created_at"]), session.out.now),
            )
            for rollout in items
        ),
        none="There are no rollouts." if everything else "No rollout is under way; --all shows those that have ended.",
    )


@command(app, "show")
def show_(session: Session, rollout_id: RolloutId) -> None:
    """Show a rollout."""
    show(session, session.api.get("rollouts", rollout_id))


@command(app, "hosts")
def hosts(
    session: Session,
    rollout_id: RolloutId,
    status: Annotated[Progress | None, typer.Option("--status", help="Only those.")] = None,
) -> None:
    """List the hosts of a rollout, and what has become of each."""
    items = session.api.items("rollouts", rollout_id, "hosts", status=status and status.written)
    if session.out.json:
        session.out.data(list(items))
        return
    session.out.table(
        ("host", "wave", "status", "operation", "why"),
        ((stop["host"], stop["wave"], stop["status"], stop["operation"], stop["why"]) for stop in items),
        none="It has no such hosts.",
    )


@command(app, "explain")
def explain(session: Session, rollout_id: RolloutId) -> None:
    """Say why a rollout is where it is: for whom it waits, for what, until when."""
    explaining.show(session.out, session.api.get("rollouts", rollout_id, "explanation"))


@command(app, "pause", changes=True)
def pause(session: Session, rollout_id: RolloutId) -> None:
    """Let nothing of a rollout start until it is resumed; what has started goes on to its end."""
    show(session, session.api.post("rollouts", rollout_id, "pause"))


@command(app, "resume", changes=True)
def resume(
    session: Session,
    rollout_id: RolloutId,
    retry: Annotated[bool, typer.Option("--retry", help="Give hosts that failed another try.")] = False,
    wait: waiting.Wait = False,
    wait_limit: waiting.Limit = None,
) -> None:
    """Let a paused rollout go on."""
    patience = waiting.asked(wait, wait_limit)
    resumed = session.api.post("rollouts", rollout_id, "resume", body={"retry": retry})
    if patience:
        if not session.out.json:
            again = ", and hosts that failed have another try" if retry else ""
            session.out.line(f"Rollout {rollout_id} goes on{again}.")
        _follow(session, resumed, patience)
    else:
        show(session, resumed)


@command(app, "cancel", changes=True)
def cancel(session: Session, rollout_id: RolloutId, yes: Yes = False) -> None:
    """Cancel what a rollout has not yet started; what has started goes on to its end."""
    session.confirm(f"Cancel rollout {rollout_id}?", yes=yes)
    show(session, session.api.post("rollouts", rollout_id, "cancel"))


def show(session: Session, rollout: View) -> None:
    if session.out.json:
        session.out.data(rollout)
        return
    out, result, notice = session.out, rollout["gate_result"], rollout["notice_minutes"]
    out.facts(
        {
            "rollout": rollout["id"],
            "kind": rollout["kind"],
            "hosts": rollout["hosts"],
            "status": rollout["status"],
            "why": rollout["why"],
            "wave": _wave(rollout),
            "progress": _progress(rollout),
            "batch": rollout["batch"],
            "pause": f"{rollout['pause_minutes']:g} min" if rollout["pause_minutes"] else "",
            "notice": f"{notice:g} min" if notice else "",
            "gate": rollout["gate"],
            "gate result": result and f"{_gate(result)}, {out.moment(result['at'])}",
            "windows": rollout["windows"],
            "failures": f"{rollout['failures']} since it was started or resumed",
            "pauses at": planned.counted(rollout["max_failures"], "failure"),
            "started": out.moment(rollout["created_at"]),
            "by": rollout["by"],
            "ended": out.moment(rollout["ended_at"]),
            "reason": rollout["reason"],
        }
    )
    if rollout["waves"] > 1:
        out.line("")
        out.table(
            ("wave", "update domains", "progress"),
            (
                (wave["wave"], ", ".join(map(str, wave["update_domains"])), _progress(wave))
                for wave in rollout["by_wave"]
            ),
            none="",
        )


def _follow(session: Session, rollout: View, patience: waiting.Patience) -> None:
    """Until it has come to its end, or to a stop."""
    (seen,) = waiting.until_over(
        [_awaited(session.api, rollout)],
        patience,
        lambda last: session.out.data(last[0]) if session.out.json else None,
    )
    waiting.require_good([seen])
    if not session.out.json:
        session.out.line(f"{seen.what} is {seen.status}: {_progress(seen.view)}.")


def _awaited(api: Api, rollout: View) -> waiting.Awaited:
    def look() -> waiting.Seen:
        view = api.get("rollouts", rollout["id"])
        status, progress = view["status"], view["progress"]
        over = bool(view["ended_at"]) or status == "Paused"
        ended = waiting.Why(view["why"] or _progress(view))
        why = ended if over else waiting.why_waits(api, "rollouts", rollout["id"])
        return waiting.Seen(
            view=view,
            what=f"Rollout {rollout['id']}",
            status=status,
            why=why.said,
            gist=why.gist,
            over=over,
            good=status == "Completed",
            done=progress["done"] + progress["failed"] + progress["skipped"],
            total=sum(progress.values()),
        )

    return waiting.Awaited(rollout, look)


def _announce(session: Session, rollout: View) -> None:
    hosts, waves = planned.counted(sum(rollout["progress"].values()), "host"), planned.counted(rollout["waves"], "wave")
    session.out.line(f"Rollout {rollout['id']}: {rollout['kind']} of {hosts}, in {waves}.")
    session.out.line(f"  why it waits: forenotice rollout explain {rollout['id']}", style="dim")


def _gate(result: View) -> str:
    words = ("green" if result["green"] else "red", result["status"], result["output"])
    return ": ".join(word for word in words if word)


def _wave(rollout: View) -> str:
    return f"{rollout['wave']} of {rollout['waves']}"


def _progress(rollout: View) -> str:
    counts = {name.replace("_", " "): count for name, count in rollout["progress"].items() if count}
    return ", ".join(f"{count} {name}" for name, count in counts.items())
