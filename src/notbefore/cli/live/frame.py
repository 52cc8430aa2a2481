"""A scene drawn line by line, for a terminal of some size."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.text import Text

from notbefore.cli import times
from notbefore.cli.api import View
from notbefore.cli.live.scene import Scene
from notbefore.cli.output import STYLES, plain

NARROW = 90
"""Columns below which the reason of an event has a line of its own."""
LONGEST_WHO = 40
LEAST_HISTORY = 4
"""Lines that are kept for it where there is more to show than fits."""
SOON = timedelta(minutes=1)
BAR = 20
STYLE = {**STYLES, "Running": "bold magenta", "Paused": "yellow", "Canceling": "yellow"}


def draw(scene: Scene, now: datetime, *, width: int, height: int | None, url: str) -> RenderableType:
    """`height` None: all there is."""
    lines = [*_head(scene, now, url), *_rollouts(scene.rollouts, width)]
    if scene.known:
        lines += _events(scene, now, width, None if height is None else height - len(lines) - LEAST_HISTORY)
        room = len(scene.entries) if height is None else height - len(lines) - 2
        lines += _history(scene.entries[-room:] if room > 0 else ())
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _head(scene: Scene, now: datetime, url: str) -> Iterator[Text]:
    yield Text.assemble(("notbefore ", "bold"), f"{plain(url)}  {now:%H:%M:%S} UTC")
    if scene.lost_since is not None:
        since = f"not reachable since {scene.lost_since:%H:%M:%S} UTC, trying again"
        yield Text(f"{since} ({plain(scene.trouble)})", style="bold red")
    elif not scene.known:
        yield Text("asking ...", style="dim")


def _events(scene: Scene, now: datetime, width: int, room: int | None) -> Iterator[Text]:
    yield Text("")
    if not scene.events:
        yield Text("There are no live events.", style="dim")
        return
    wide = width >= NARROW
    shown = scene.events if room is None else scene.events[: max(1, room if wide else room // 2)]
    longest = min(LONGEST_WHO, max(len(_who(event)) for event in shown))
    yield Text(f"{'status':<10} {'not before':>12}  {'type':<9}  who", style="bold")
    for event in shown:
        line = Text.assemble((f"{event['status']:<10} ", STYLE.get(event["status"], "")), _countdown(event, now))
        line.append(f"  {event['type']:<9}  {_who(event):<{longest if wide else 0}}")
        why = Text(plain(scene.reasons.get(event["id"]) or _guess(event)), style="dim")
        yield line.append("  ").append_text(why) if wide and why else line
        if why and not wide:
            yield Text("  ").append_text(why)
    if (hidden := len(scene.events) - len(shown)) or scene.more_events:
        yield Text(f"and {hidden}{' or more' if scene.more_events else ''} others: notbefore event list", style="dim")


def _countdown(event: View, now: datetime) -> Text:
    left = times.read(event["not_before"]) - now
    if event["status"] != "Scheduled":
        return Text(" " * 12)
    said = "due" if left <= timedelta(0) else times.span(left)
    return Text(f"{said:>12}", style="bold red" if left < SOON else "")


def _who(event: View) -> str:
    names = plain(", ".join(event["resources"]))
    return f"{event['group']}: {names}" if event["group"] else names


def _guess(event: View) -> str:
    """Until its reason is known."""
    if event["status"] != "Scheduled":
        return ""
    return "approved" if event["approved_at"] else "not approved yet"


def _rollouts(rollouts: Sequence[View], width: int) -> Iterator[Text]:
    for rollout in rollouts:
        line = Text.assemble((plain(f"rollout {rollout['kind']} {rollout['hosts']}  "), "bold"))
        line.append(rollout["status"], style=STYLE.get(rollout["status"], ""))
        done, total = _done(rollout)
        line.append(f"  {_bar(done, total, BAR if width >= NARROW else BAR // 2)} {done}/{total} hosts")
        yield line.append(f"  {plain(rollout['why'])}".rstrip(), style="dim")


def _done(rollout: View) -> tuple[int, int]:
    """How many of its hosts are behind it, of how many."""
    counts = rollout["progress"]
    return counts["done"] + counts["failed"] + counts["skipped"], sum(counts.values())


def _bar(done: int, total: int, width: int) -> str:
    full = width * done // max(1, total)
    return "━" * full + "─" * (width - full)


def _history(entries: Sequence[View]) -> Iterator[Text]:
    yield Text("")
    for entry in entries:
        about = next((str(entry[noun]) for noun in ("vm", "event", "host", "operation", "scope") if entry[noun]), "")
        by = f" by {entry['by']}" if entry["by"] else ""
        said = f"{times.read(entry['at']):%H:%M:%S}  {entry['action']}{by}  {about}"
        yield Text(plain(said.rstrip()), style="dim")
