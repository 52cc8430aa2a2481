"""Makes the drivers that a file describes, each with its terms; without a file, the simulated driver."""

import ssl
from datetime import datetime, timedelta
from pathlib import Path

from forenotice import secret_files
from forenotice.core import errors
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import EventType
from forenotice.core.timing import Retries, Timing
from forenotice.drivers import file
from forenotice.drivers.call_queue import CallTerms, Driver, DriverChoice
from forenotice.drivers.command import CommandDriver
from forenotice.drivers.surroundings import NO_SURROUNDINGS, Surroundings
from forenotice.drivers.webhook import Receiver, WebhookDriver
from forenotice.programs import process
from forenotice.runtime import Runtime
from forenotice.ssrf import EVERYWHERE, OutgoingClient

SHORTEST_SECRET = 16
SIMULATED = {
    EventType.REBOOT: timedelta(seconds=15),
    EventType.REDEPLOY: timedelta(seconds=30),
    EventType.PREEMPT: timedelta(seconds=5),
    EventType.TERMINATE: timedelta(seconds=5),
}


class SimulatedDriver:
    """Only takes the time that the real thing would take."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        takes = SIMULATED.get(task.kind.traits.type, timedelta(seconds=task.duration))
        done_at = task.started_at + self._timing.shortened(takes)
        return NotYet(again_at=done_at) if now < done_at else Finished(done=task.vms, failures={})

    def stop(self) -> None: ...


def open_drivers(
    path: Path | None, speed: float, runtime: Runtime, surroundings: Surroundings = NO_SURROUNDINGS
) -> tuple[list[DriverChoice], Retries]:
    """None: the simulated one."""
    if path is None:
        return [DriverChoice(driver=SimulatedDriver(Timing(speed=speed)))], Retries()
    retries, drivers = file.load(path)
    try:
        return [
            DriverChoice(driver=_made(each, runtime, surroundings), terms=_terms(each), hosts=hosts)
            for hosts, each in drivers
        ], retries
    except errors.RefusedError as error:
        raise file.DriverFileError(f"{path}: {error.message}") from None


def _terms(config: file.Config) -> CallTerms:
    match config:
        case file.Command():
            longest: timedelta | None = config.time_limit + timedelta(seconds=process.GRACE)
        case file.Webhook():
            # The request, the time for what was accepted, and the last poll in it.
            longest = config.time_limit + config.completion_limit + config.time_limit
        case file.Libvirt():
            # Policies say how long guests may take to shut down.
            longest = None
    return CallTerms(
        at_once=config.at_once,
        at_once_per_host=config.at_once_per_host,
        each_vm=config.each_vm,
        longest=longest,
        awaits_results=isinstance(config, file.Webhook),
    )


def _made(config: file.Config, runtime: Runtime, surroundings: Surroundings) -> Driver:
    match config:
        case file.Command():
            return CommandDriver(config, runtime)
        case file.Webhook():
            return _webhook(config, runtime)
        case file.Libvirt():
            # Only here: it needs an extra.
            from forenotice.drivers.libvirt import connections, driver

            return driver.LibvirtDriver(config, runtime, connections.shared(runtime), surroundings)


def _webhook(config: file.Webhook, runtime: Runtime) -> Driver:
    # The administrator names the URL in this file: private addresses are what it is for.
    sender = OutgoingClient(private=EVERYWHERE, seconds=config.time_limit.total_seconds(), tls=_trust(config.ca_file))
    sender.require(config.url)
    receiver = Receiver(
        url=config.url,
        secret=_secret(Path(config.secret_file)),
        completion_seconds=config.completion_limit.total_seconds(),
    )
    return WebhookDriver(receiver, sender, runtime)


def _secret(path: Path) -> str:
    try:
        secret = secret_files.read(path, "secret_file:", links=True).decode().strip()
    except UnicodeDecodeError:
        raise file.DriverFileError(f"secret_file: {path} cannot be read: it is not text") from None
    if len(secret) < SHORTEST_SECRET:
        raise file.DriverFileError(f"secret_file: {path} is too short: give at least {SHORTEST_SECRET} characters")
    return secret


def _trust(ca_file: str) -> ssl.SSLContext | None:
    if not ca_file:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise file.DriverFileError(f"ca_file: {ca_file} cannot be used: {error.strerror or error}") from None
