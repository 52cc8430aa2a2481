"""`forenotice watch`: what is announced and under way, on a terminal, as it happens."""

import json
import queue
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from forenotice.cli.live import frame
from forenotice.cli.live.scene import EVERY, Following, Looker, Scene
from forenotice.cli.output import WIDTH
from forenotice.cli.session import Session, command
from forenotice.clock import SystemClock
from forenotice.core import errors

TICK = 1.0
ANSWER_WITHIN = 10.0
Told = Scene | Exception


def register(app: typer.Typer) -> None:
    command(app, "watch")(watch)


def watch(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Show it once, as it is now.")] = False,
) -> None:
    """Show live events with their countdowns, rollouts, and what just happened, until Ctrl-C."""
    console = Console(highlight=False, markup=False, emoji=False)
    looker = Looker(session.api.hasty(ANSWER_WITHIN))
    if once or not (session.out.json or console.is_terminal):
        _show_once(session, looker, console)
        return
    with _told(looker) as told, _interruptible():
        if session.out.json:
            _print_changes(told)
        else:
            _draw(told, console, session.api.url)


def _show_once(session: Session, looker: Looker, console: Console) -> None:
    scene = looker.look()
    if scene.lost_since is not None:
        raise errors.UnavailableError(scene.trouble)
    if session.out.json:
        session.out.data(_plain(scene))
        return
    if not console.is_terminal:
        console.width = WIDTH
    console.print(frame.draw(scene, session.out.now, width=console.width, height=None, url=session.api.url))


@contextmanager
def _told(looker: Looker) -> Iterator["queue.SimpleQueue[Told]"]:
    told: queue.SimpleQueue[Told] = queue.SimpleQueue()
    following = Following(looker, told.put)
    following.start()
    try:
        yield told
    finally:
        following.end()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C is how one leaves, and whoever ends it otherwise leaves the terminal as clean."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def _draw(told: "queue.SimpleQueue[Told]", console: Console, url: str) -> None:
    scene = Scene()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            now = SystemClock().now()
            live.update(
                frame.draw(scene, now, width=console.width, height=console.height, url=url),
                refresh=True,
            )
            scene = _next(told, TICK) or scene


def _print_changes(told: "queue.SimpleQueue[Told]") -> None:
    """One line of JSON whenever something differs."""
    last = ""
    while True:
        scene = _next(told, EVERY)
        if scene is None:
            continue
        line = json.dumps(_plain(scene), ensure_ascii=False)
        if line != last:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        last = line


def _next(told: "queue.SimpleQueue[Told]", seconds: float) -> Scene | None:
    try:
        found = told.get(timeout=seconds)
    except queue.Empty:
        return None
    if isinstance(found, Exception):
        raise found
    return found


def _plain(scene: Scene) -> dict[str, object]:
    return {
        "events": [{**event, "why": scene.why(event), "until": scene.until(event)} for event in scene.events],
        "rollouts": [
            {**rollout, "why": rollout["why"] or scene.why(rollout), "until": scene.until(rollout)}
            for rollout in scene.rollouts
        ],
        "history": list(scene.entries),
        "lost_since": None if scene.lost_since is None else scene.lost_since.isoformat().replace("+00:00", "Z"),
        "trouble": scene.trouble,
    }
