"""A scene drawn line by line, for a terminal of some size."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.text import Text

from forenotice.cli import times
from forenotice.cli.api import View
from forenotice.cli.live.scene import Scene
from forenotice.cli.output import STYLES, plain

NARROW = 90
"""Columns below which the reason of an event has a line of its own."""
LONGEST_WHO = 40
LEAST_HISTORY = 3
"""Lines that are kept for it where there is more to show than fits."""
AROUND = 5
"""Lines that are neither events nor history: two blank ones, the heading, how many others there are, the last."""
SOON = timedelta(minutes=1)
BAR = 20
NOUNS = ("vm", "event", "host", "operation", "scope")
"""What a line of the history names: the first that it has."""
ROLLOUT_NOUNS = ("rollout", "host")
"""Where it is about a rollout: both."""
STYLE = {**STYLES, "Running": "bold magenta", "Paused": "yellow", "Canceling": "yellow"}


def draw(scene: Scene, now: datetime, *, width: int, height: int | None, url: str) -> RenderableType:
    """`height` None: all there is."""
    lines = [*_head(scene, now, url), *_rollouts(scene, now, width, None if height is None else height // 3)]
    if scene.known:
        lines += _events(scene, now, width, None if height is None else height - len(lines) - AROUND - LEAST_HISTORY)
        room = len(scene.entries) if height is None else height - len(lines) - 2
        lines += _history(scene.entries[-room:] if room > 0 else ())
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _head(scene: Scene, now: datetime, url: str) -> Iterator[Text]:
    yield Text.assemble(("forenotice ", "bold"), f"{plain(url)}  {now:%H:%M:%S} UTC")
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
        why = Text(plain(scene.why(event) or _guess(event)), style="dim")
        yield line.append("  ").append_text(why) if wide and why else line
        if why and not wide:
            yield Text("  ").append_text(why)
    if (hidden := len(scene.events) - len(shown)) or scene.more_events:
        yield Text(f"and {hidden}{' or more' if scene.more_events else ''} others: forenotice event list", style="dim")


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


def _rollouts(scene: Scene, now: datetime, width: int, room: int | None) -> Iterator[Text]:
    """The first always has its two lines."""
    shown = scene.rollouts if room is None else scene.rollouts[: max(1, (room - 1) // 2)]
    for rollout in shown:
        yield _rollout(rollout, BAR if width >= NARROW else BAR // 2)
        if why := rollout["why"] or scene.why(rollout):
            yield Text.assemble(f"  {_left(scene.until(rollout), now)}", (plain(why), "dim"))
    if hidden := len(scene.rollouts) - len(shown):
        yield Text(f"and {hidden} others: forenotice rollout list", style="dim")


def _rollout(rollout: View, bar: int) -> Text:
    line = Text.assemble((f"rollout {rollout['kind']} {_cut(plain(rollout['hosts']))}  ", "bold"))
    line.append(rollout["status"], style=STYLE.get(rollout["status"], ""))
    done, total = _done(rollout)
    line.append(f"  wave {rollout['wave']} of {rollout['waves']}  {_bar(done, total, bar)} {done}/{total} hosts")
    return line.append(f"  {rollout['id']}", style="dim")


def _left(until: str | None, now: datetime) -> str:
    left = timedelta(0) if until is None else times.read(until) - now
    return f"{times.span(left)} left: " if left > timedelta(0) else ""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_WHO else f"{text[: LONGEST_WHO - 1]}…"


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
        of_rollout = entry["action"].startswith("rollout.")
        about = [str(entry[noun]) for noun in (ROLLOUT_NOUNS if of_rollout else NOUNS) if entry[noun]]
        by = f" by {entry['by']}" if entry["by"] else ""
        said = (
            f"{times.read(entry['at']):%H:%M:%S}  {entry['action']}{by}  {' '.join(about if of_rollout else about[:1])}"
        )
        yield Text(plain(said.rstrip()), style="dim")
