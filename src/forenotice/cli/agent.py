"""`forenotice agent`: the daemon in a VM, its configuration, and what it is doing."""

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from forenotice import secret_files, settings
from forenotice.agent import daemon, status, workers
from forenotice.agent import peers as peering
from forenotice.agent.config import Config, ConfigError
from forenotice.agent.config import Peers as PeersConfig
from forenotice.agent.handlers import Outcome
from forenotice.agent.handlers.tables import Common
from forenotice.agent.rules.saga import Saga
from forenotice.agent.status import PeerStatus, Status
from forenotice.cli import commands, output
from forenotice.cli.commands import command, switch
from forenotice.cli.output import Output
from forenotice.client import Client
from forenotice.client.events import same_name
from forenotice.clock import MachineClock
from forenotice.core import errors
from forenotice.runtime import Runtime
from forenotice.settings import table, values

app = commands.Group()
PEERS_AT_ONCE = 8
LOCATION = [row for row in table.AGENT if row.attribute in ("config", "state")]


class Checked(msgspec.Struct, frozen=True):
    """A peer."""

    name: str
    address: str
    ok: bool
    said: str


class Agent:
    """What a command works with on the agent of this machine."""

    def __init__(self, flags: Mapping[str, object], *, json: bool = False) -> None:
        self.settings = settings.load_agent(flags, os.environ)
        self.out = Output(json=json)

    @property
    def directory(self) -> Path:
        return self.settings.state or Path(daemon.read(self.settings).state)


@command(app, "run", make=Agent, rows=table.AGENT, shared=())
def run(agent: Agent) -> None:
    """Run the agent of this VM until SIGTERM."""
    daemon.Agent(agent.settings).run()


@command(app, "check", switch("--peers", "Also check that each peer receives from this VM."), make=Agent, rows=LOCATION)
def check(agent: Agent, peers: bool) -> int:
    """Check agent.toml and rehearse the handlers, changing nothing."""
    config = daemon.read(agent.settings)
    found = [(handler, _rehearsed(handler)) for handler in config.handlers]
    problems, warnings = list(_problems(config)), list(_warnings(config))
    checked: Sequence[Checked] = ()
    if peers:
        try:
            checked = _check_peers(config, status.read(agent.directory)[0])
        except errors.ForenoticeError as error:
            problems += [error.message] if error.message not in problems else []
    ok = not problems and all(outcome.ok for _, outcome in found) and all(peer.ok for peer in checked)
    if agent.out.json:
        rows = [{"handler": handler.name, "ok": outcome.ok, "message": outcome.message} for handler, outcome in found]
        agent.out.data(
            {
                "ok": ok,
                "config": str(agent.settings.config),
                "problems": problems,
                "warnings": warnings,
                "handlers": rows,
                "peers": msgspec.to_builtins(checked) if peers else None,
            }
        )
        return 0 if ok else 1
    agent.out.line(f"{agent.settings.config} is well-formed.")
    for style, sentences in (("red", problems), ("yellow", warnings)):
        for sentence in sentences:
            agent.out.line(sentence, style=style)
    agent.out.table(
        ("handler", "type", "stage", "events", "begins", "check", "what it would do"),
        (
            (
                handler.name,
                type(handler).__name__.lower(),
                handler.stage,
                handler.types or "all",
                _begins(handler),
                "ok" if outcome.ok else "problem",
                outcome.message,
            )
            for handler, outcome in found
        ),
        none="There are no handlers.",
    )
    if checked:
        agent.out.line("")
        agent.out.table(
            ("peer", "address", "check", "what it says"),
            ((peer.name, peer.address, "ok" if peer.ok else "problem", peer.said) for peer in checked),
        )
    return 0 if ok else 1


def _check_peers(config: Config, found: Status | None) -> Sequence[Checked]:
    """All whose address is given, and all that share a live event with this VM. RefusedError: there is none."""
    if config.peers is None:
        raise ConfigError("agent.toml has no [peers], so there is no peer to check: add it, or leave out --peers")
    me = config.name or (found.name if found else "")
    if not me:
        with Client(config.endpoint or None) as client:
            me = client.me
    now = MachineClock().now() + timedelta(seconds=found.clock_ahead if found else 0.0)
    shared = [name for saga in found.sagas for name in saga.event.resources] if found else []
    names: list[str] = []
    for name in (*config.peers.addresses, *shared):
        if not any(same_name(name, known) for known in (me, *config.act_for, *names)):
            names.append(name)
    if not names:
        raise ConfigError("there is no peer to check: [peers] has no addresses, and no live event names another VM")
    attempt = partial(_check_peer, config.peers, config.listen, me, now)
    with ThreadPoolExecutor(max_workers=PEERS_AT_ONCE) as threads:
        return list(threads.map(attempt, names))


def _check_peer(config: PeersConfig, listen: str, me: str, now: datetime, name: str) -> Checked:
    begun = time.monotonic()
    address, why = peering.attempt(config, me, name, now, listen)
    seconds = time.monotonic() - begun
    return Checked(name, address, not why, why or f"received from {me} in {seconds * 1000:.0f} ms")


def _rehearsed(handler: Any) -> Outcome:
    return Outcome.of(lambda: workers.make(handler, Runtime()).rehearse())


def _problems(config: Config) -> Iterator[str]:
    """Beside those of handlers."""
    if not all(config.act_for):
        yield "A name in act_for is empty: give the names of VMs."
    if config.listen and (reason := _unusable(config.listen)):
        yield f"Nothing can listen on {config.listen}: {reason}."
    state = Path(config.state)
    place = secret_files.nearest_existing(state)
    try:
        if not place.is_dir():
            yield f"The state directory {state} cannot be used: {place} is not a directory."
        elif place == state:
            secret_files.require_directory(place, "the state directory")
        else:
            secret_files.require_path(place, state)
    except errors.RefusedError as error:
        yield error.message
    except OSError:
        # Only the agent itself may look into it.
        pass
    if config.peers is not None:
        try:
            peering.Signer.read(config.peers)
        except ConfigError as error:
            yield error.message


def _unusable(listen: str) -> str | None:
    """Why its host is none of this machine's. The port may well be taken, by the agent that runs."""
    host = values.address(listen).host
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.bind(place)
    except OSError as error:
        return str(error.strerror or error)
    return None


def _warnings(config: Config) -> Iterator[str]:
    place = secret_files.nearest_existing(Path(config.state))
    if place.is_dir() and not os.access(place, os.W_OK | os.X_OK):
        yield f"{place}, for the state directory, cannot be written by the user who runs this check."
    if config.act_for:
        yield f"It also acts for {', '.join(config.act_for)}."
    if config.unapproved:
        kinds = ", ".join(config.unapproved)
        yield f'No handler prepares for {kinds}: such events are not approved, unless approve = "always" is set.'
    if config.approve.when == "never":
        yield "It never approves: events start at their NotBefore, or when another VM or an operator approves."


def _begins(handler: Common) -> str:
    lead = handler.when.lead
    return "at once" if lead is None else f"{output.span(lead)} before NotBefore"


@command(app, "status", make=Agent, rows=LOCATION)
def show(agent: Agent) -> int:
    """Show what the agent is doing and why."""
    found, is_running = status.read(agent.directory)
    if agent.out.json:
        agent.out.data({"running": is_running, "status": msgspec.to_builtins(found)})
    elif found is None:
        agent.out.line("The agent is starting." if is_running else "The agent has not run yet.")
    else:
        _show(found, is_running, agent.out)
    return 0 if is_running else 1


def _show(found: Status, is_running: bool | None, out: Output) -> None:
    at, health = out.moment(found.written_at), found.health
    runs = {True: f"runs (process {found.pid})", False: "does not run", None: "is not known to run"}[is_running]
    if found.observe:
        runs += ", only to observe: nothing is run or approved"
    out.facts(
        {
            "agent": f"{runs}; this is from {at}",
            "this VM": found.name or "not known yet",
            "endpoint": found.endpoint,
            "polling": "works" if health.polling_ok else f"does not work: {health.polling_why}",
            "ready": "yes" if health.ready else f"no: {health.ready_why}",
            "journal": "" if found.journal else "cannot be written: nothing is prepared or approved",
        }
    )
    for saga in found.sagas:
        _show_saga(saga, found.peers.get(saga.id, ()), out)
    if found.recent:
        out.line("")
        paused = any(saga.pause for saga in found.recent)
        out.table(
            ("over", "type", "event", "outcome", *(["stood still"] if paused else [])),
            (
                (out.moment(saga.done_at), saga.event.type, saga.id, saga.why, *([_pause(saga)] if paused else []))
                for saga in reversed(found.recent)
            ),
        )
    elif not found.sagas:
        out.line("No event has concerned this VM yet.")


def _show_saga(saga: Saga, peers: Sequence[PeerStatus], out: Output) -> None:
    out.line("")
    out.facts(
        {
            "event": saga.id,
            "type": saga.event.type,
            "state": saga.state,
            "why": saga.why,
            "not before": out.moment(saga.event.deadline),
            "resources": saga.event.resources,
        }
    )
    for step in saga.steps:
        attempt = f", attempt {step.attempt}" if step.attempt > 1 else ""
        out.line(
            f"  {step.phase} {step.handler}: {step.progress}{attempt}{f': {step.message}' if step.message else ''}"
        )
    for peer in peers:
        ready = f"ready since {out.moment(peer.ready_at)}" if peer.ready_at else "not ready yet"
        out.line(
            f"  peer {peer.name}: {ready}; {peer.trouble or 'has answered this agent'}",
            style="yellow" if peer.trouble else "",
        )


def _pause(saga: Saga) -> str:
    if saga.pause is None:
        return ""
    told = saga.event.duration_seconds
    announced = "" if told is None or told < 0 else f" ({told} s announced)"
    return f"{saga.pause.seconds:.1f} s{announced}"
