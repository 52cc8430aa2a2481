"""`forenotice rollout`: maintenance over many hosts, wave by wave."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click
import msgspec

from forenotice import views
from forenotice.cli import commands, operations, output, wait
from forenotice.cli.commands import Operator, Read, operator, option, request, switch
from forenotice.cli.output import Output, counted, cut
from forenotice.core.rollouts import KINDS

app = commands.Group()

GROUPS = 20
"""Groups that are shown of many."""
STATUSES = ["waiting", "under-way", "done", "failed", "skipped"]
DURATION = Read(output.minutes)
SPEC = (
    option(
        "--hosts",
        "SELECTOR",
        "Which, such as 'rack1-*,!rack1-07' or label:rack=r1.",
        required=True,
        shell_complete=commands.host_selector,
    ),
    option("--kind", "|".join(KINDS), "What is done to each host.", type=click.Choice(list(KINDS)), required=True),
    option("--batch", "N", "Hosts under way at once, at most.", type=click.IntRange(1), default=1),
    option("--pause pause_minutes", "MINUTES", "Between two waves, such as 10, 30s or 2h.", type=DURATION),
    option("--gate", "NAME|URL", "What must be green before each wave: a gate of `serve`, or a URL."),
    option("--max-failures", "N", "Pause when this many hosts have failed.", type=click.IntRange(1), default=1),
    option(
        "--window windows",
        "WINDOW",
        "When it may start things, such as 'mon-fri 22:00-04:00 Europe/Berlin'; may be repeated.",
        multiple=True,
    ),
    option(
        "--notice notice_minutes",
        "MINUTES",
        "Time until each NotBefore, such as 20 or 2h; the minimum if left out.",
        type=DURATION,
    ),
    operations.DURATION,
)


@operator(app, "plan", *SPEC)
def plan(ctx: Operator, **spec: Any) -> None:
    """Preview a rollout: its waves, and when; nothing is done."""
    body = request(views.rollouts.NewRollout, **spec)
    show_plan(ctx.out, ctx.api.post(views.rollouts.RolloutPlan, "rollouts", "plan", body=body))


@operator(app, "start", *SPEC, *wait.OPTIONS, changes=True)
def start(ctx: Operator, *, wait_limit: float | None, **spec: Any) -> None:
    """Update, migrate or reboot many hosts, one update domain of each group at a time."""
    limit = wait.limit(spec.pop("wait"), wait_limit)
    rollout = ctx.api.post(views.rollouts.Rollout, "rollouts", body=request(views.rollouts.NewRollout, **spec))
    if not ctx.out.json:
        hosts, waves = counted(_total(rollout.progress), "host"), counted(rollout.waves, "wave")
        ctx.out.line(f"Rollout {rollout.id}: {rollout.kind} of {hosts}, in {waves}.")
        ctx.out.line(f"  why it waits: forenotice rollout explain {rollout.id}", style="dim")
    if limit is not None:
        _follow(ctx, rollout, limit)
    elif ctx.out.json:
        ctx.out.data(rollout)


@operator(app, "wait", commands.ROLLOUT, wait.LIMIT)
def wait_(ctx: Operator, rollout: str, wait_limit: float | None) -> None:
    """Wait until a rollout has ended or is paused, and tell why it waits."""
    _follow(ctx, ctx.api.get(views.rollouts.Rollout, "rollouts", rollout), wait.limit(True, wait_limit) or 0)


@operator(app, "list", commands.ALL)
def list_(ctx: Operator, everything: bool) -> None:
    """List the rollouts."""
    ctx.out.list(
        ctx.api.items(views.rollouts.ListedRollout, "rollouts", live=None if everything else True),
        ("rollout", "kind", "hosts", "status", "wave", "progress", "started"),
        lambda rollout: (
            rollout.id,
            rollout.kind,
            rollout.hosts,
            rollout.status,
            _wave(rollout),
            _progress(rollout),
            output.relative(rollout.created_at, ctx.out.now),
        ),
        none="There are no rollouts." if everything else "No rollout is under way; --all shows those that have ended.",
    )


@operator(
    app,
    "hosts",
    commands.ROLLOUT,
    option("--status", None, "Only this status.", type=click.Choice(STATUSES)),
)
def hosts(ctx: Operator, rollout: str, status: str | None) -> None:
    """List the hosts of a rollout, and the progress of each."""
    written = status and status.capitalize().replace("-", " ")
    ctx.out.list(
        ctx.api.items(views.rollouts.RolloutHost, "rollouts", rollout, "hosts", status=written),
        ("host", "wave", "status", "operation", "why"),
        lambda host: (host.host, host.wave, host.status, host.operation, host.why),
        none="It has no such hosts.",
    )


@operator(app, "explain", commands.ROLLOUT)
def explain(ctx: Operator, rollout: str) -> None:
    """Explain what a rollout waits for: for whom, for what, until when."""
    ctx.out.explanation(ctx.api.get(views.maintenance.RolloutExplanation, "rollouts", rollout, "explanation"))


@operator(app, "pause", commands.ROLLOUT, changes=True)
def pause(ctx: Operator, rollout: str) -> None:
    """Start nothing more until the rollout is resumed; what has started continues to its end."""
    show(ctx, ctx.api.post(views.rollouts.Rollout, "rollouts", rollout, "pause"))


@operator(app, "resume", commands.ROLLOUT, switch("--retry", "Try failed hosts again."), *wait.OPTIONS, changes=True)
def resume(ctx: Operator, rollout: str, retry: bool, **waiting: Any) -> None:
    """Resume a paused rollout."""
    limit = wait.limit(**waiting)
    body = views.rollouts.Resumption(retry=retry)
    resumed = ctx.api.post(views.rollouts.Rollout, "rollouts", rollout, "resume", body=body)
    if limit is None:
        show(ctx, resumed)
        return
    if not ctx.out.json:
        ctx.out.line(f"Rollout {rollout} is resumed{', and tries failed hosts again' if retry else ''}.")
    _follow(ctx, resumed, limit)


@operator(app, "cancel", commands.ROLLOUT, commands.YES, changes=True)
def cancel(ctx: Operator, rollout: str, yes: bool) -> None:
    """Cancel what a rollout has not yet started; what has started continues to its end."""
    commands.confirm(f"Cancel rollout {rollout}?", yes=yes)
    show(ctx, ctx.api.post(views.rollouts.Rollout, "rollouts", rollout, "cancel"))


@commands.showing(app, commands.ROLLOUT)
def show(ctx: Operator, rollout: "views.rollouts.Rollout") -> None:
    """Show a rollout."""
    result, notice = rollout.gate_result, rollout.notice_minutes
    ctx.out.view(
        rollout,
        **dict.fromkeys(("notice_minutes", "duration_seconds", "pause_minutes", "waves", "wave_began_at", "by_wave")),
        wave=_wave(rollout),
        progress=_progress(rollout),
        pause=f"{rollout.pause_minutes:g} min" if rollout.pause_minutes else "",
        notice=f"{notice:g} min" if notice else "",
        freezes=rollout.duration_seconds and f"{rollout.duration_seconds} s",
        gate_result=result and f"{_gate(result)}, {ctx.out.moment(result.at)}",
        failures=f"{rollout.failures} since it was started or resumed",
        max_failures=None,
        pauses_after=counted(rollout.max_failures, "failure"),
    )
    if rollout.waves > 1 and not ctx.out.json:
        ctx.out.line("")
        ctx.out.table(
            ("wave", "update domains", "progress"),
            ((each.wave, ", ".join(map(str, each.update_domains)), _progress(each)) for each in rollout.by_wave),
        )


class AwaitedRollout(wait.AwaitedOperation):
    """It is over when it has ended or is paused."""

    path = "rollouts"

    def name(self) -> str:
        return f"Rollout {self.view.id}"

    @property
    def over(self) -> bool:
        return super().over or self.view.status == "Paused"

    @property
    def part(self) -> float:
        progress = self.view.progress
        left: int = progress.waiting + progress.under_way
        return 1 - left / max(1, _total(progress))

    def outcome(self) -> str:
        return self.view.why or _progress(self.view)


def _follow(ctx: Operator, rollout: "views.rollouts.Rollout", limit: float) -> None:
    awaited = AwaitedRollout(ctx.api, rollout)
    wait.follow(ctx, [awaited], limit, lambda: awaited.view)


def _gate(result: "views.rollouts.GateResult") -> str:
    words = ("green" if result.green else "red", result.status, result.output)
    return ": ".join(word for word in words if word)


def _wave(rollout: "views.rollouts.ListedRollout") -> str:
    return f"{rollout.wave} of {rollout.waves}"


def _total(progress: "views.rollouts.Progress") -> int:
    return sum(msgspec.structs.asdict(progress).values())


def _progress(rollout: "views.rollouts.ListedRollout | views.rollouts.WaveProgress") -> str:
    counts = {
        name.replace("_", " "): count for name, count in msgspec.structs.asdict(rollout.progress).items() if count
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items())


# The plan


def show_plan(out: Output, plan: "views.rollouts.RolloutPlan") -> None:
    if out.json:
        out.data(plan)
        return
    if not plan.planned_hosts:
        out.line("Nothing would be done.")
    else:
        takes = plan.ends_at - plan.begins_at
        hosts, waves = counted(len(plan.planned_hosts), "host"), counted(len(plan.waves), "wave")
        what = f"{plan.kind.capitalize()} of {hosts} in {waves}"
        out.line(f"{what}, over in {output.span(takes)} if it is started now. Nothing is done yet.")
        out.line("")
        _show_waves(out, plan)
        out.line("")
        _show_groups(out, plan.groups)
    if plan.empty:
        out.line(f"Skipped, because they have no VMs: {cut(plan.empty)}.")
    out.line(plan.assumes, style="dim")


def _show_waves(out: Output, plan: "views.rollouts.RolloutPlan") -> None:
    planned: dict[int, list[views.rollouts.PlannedHost]] = {}
    for host in plan.planned_hosts:
        planned.setdefault(host.wave, []).append(host)
    out.table(
        ("wave", "announced from", "starts from", "ends", "hosts", "VMs"),
        (
            (
                wave.wave,
                *map(output.utc, (wave.begins_at, wave.first_start_at, wave.ends_at)),
                cut([host.host for host in planned[wave.wave]]),
                cut([vm for host in planned[wave.wave] for vm in host.vms]),
            )
            for wave in plan.waves
        ),
    )


def _show_groups(out: Output, scopes: Sequence["views.rollouts.PlannedScope"]) -> None:
    """First those whose budget delays hosts, then those that are down longest."""
    groups = [scope for scope in scopes if scope.group]
    groups.sort(key=lambda group: (-group.delayed_hosts, -group.down_seconds, group.group))
    if groups:
        out.table(
            ("group", "VMs", "down at once", "partly down for", "limited by"),
            (
                (
                    group.group,
                    group.members,
                    f"at most {group.most_down}",
                    output.span(timedelta(seconds=group.down_seconds)),
                    _limit(group),
                )
                for group in groups[:GROUPS]
            ),
        )
    if len(groups) > GROUPS:
        out.line(f"and {counted(len(groups) - GROUPS, 'more group')}; --json has all of them")
    if alone := len(scopes) - len(groups):
        out.line(f"{counted(alone, 'standalone VM')} {'is' if alone == 1 else 'are'} down too.")


def _limit(group: "views.rollouts.PlannedScope") -> str:
    if not group.budget:
        return "update domains"
    waits = group.delayed_hosts
    delays = f"; {counted(waits, 'host')} {'waits' if waits == 1 else 'wait'} for it" if waits else ""
    return f"{group.budget} allows {group.allowed}{delays}"
