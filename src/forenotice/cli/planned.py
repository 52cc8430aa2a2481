"""A rollout's plan as people read it: wave by wave, group by group."""

from collections.abc import Sequence
from datetime import timedelta

from forenotice.cli import times
from forenotice.cli.api import View
from forenotice.cli.output import Output

NAMED = 3
"""Names that are told of many."""
GROUPS = 20
"""Groups that are shown of many."""


def show(out: Output, plan: View) -> None:
    if out.json:
        out.data(plan)
        return
    hosts, waves = len(plan["stops"]), len(plan["waves"])
    if not hosts:
        out.line("Nothing would be done.")
    else:
        takes = times.read(plan["ends_at"]) - times.read(plan["begins_at"])
        what = f"{plan['kind'].capitalize()} of {counted(hosts, 'host')} in {counted(waves, 'wave')}"
        out.line(f"{what}, over in {times.span(takes)} if it is started now. Nothing is done yet.")
        out.line("")
        _show_waves(out, plan)
        out.line("")
        _show_groups(out, plan["groups"])
    if plan["empty"]:
        out.line(f"Without VMs, and so skipped: {cut(plan['empty'])}.")
    out.line(plan["assumes"], style="dim")


def _show_waves(out: Output, plan: View) -> None:
    stops: dict[int, list[View]] = {}
    for stop in plan["stops"]:
        stops.setdefault(stop["wave"], []).append(stop)
    out.table(
        ("wave", "announced from", "starts from", "ends", "hosts", "VMs"),
        (
            (
                wave["wave"],
                _moment(wave["begins_at"]),
                _moment(wave["first_start_at"]),
                _moment(wave["ends_at"]),
                cut([stop["host"] for stop in stops[wave["wave"]]]),
                cut([vm for stop in stops[wave["wave"]] for vm in stop["vms"]]),
            )
            for wave in plan["waves"]
        ),
        none="",
    )


def _show_groups(out: Output, scopes: Sequence[View]) -> None:
    """Those whose budget makes others wait first, then those that are out longest."""
    groups = [scope for scope in scopes if scope["group"]]
    groups.sort(key=lambda group: (-group["delayed_hosts"], -group["out_seconds"], group["group"]))
    if groups:
        out.table(
            ("group", "VMs", "out at once", "something out for", "what decides"),
            (
                (
                    group["group"],
                    group["members"],
                    f"at most {group['most_out']}",
                    times.span(timedelta(seconds=group["out_seconds"])),
                    _decides(group),
                )
                for group in groups[:GROUPS]
            ),
            none="",
        )
    if len(groups) > GROUPS:
        out.line(f"and {counted(len(groups) - GROUPS, 'more group')}; --json has all of them")
    if alone := len(scopes) - len(groups):
        out.line(f"{counted(alone, 'standalone VM')} {'is' if alone == 1 else 'are'} out too.")


def _decides(group: View) -> str:
    if not group["budget"]:
        return "update domains"
    waits = group["delayed_hosts"]
    delays = f"; {counted(waits, 'host')} {'waits' if waits == 1 else 'wait'} for it" if waits else ""
    return f"{group['budget']} allows {group['allowed']}{delays}"


def cut(names: Sequence[str]) -> str:
    """The first of many names, and how many there are."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def _moment(text: str) -> str:
    return times.utc(times.read(text))


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
