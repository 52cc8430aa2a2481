"""`forenotice lab`: real VMs on this machine, from up to down."""

import os
import shlex
import shutil
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from forenotice import control_socket, settings
from forenotice.cli import commands, output
from forenotice.cli.commands import argument, command, option, switch
from forenotice.cli.output import Output
from forenotice.cli.server import server_packages
from forenotice.core import errors
from forenotice.settings import LogFormat, LogLevel, table

if TYPE_CHECKING:
    from forenotice.lab.lab import Lab as Whole
    from forenotice.lab.status import Status

app = commands.Group()

LOOK = 0.2
"""Seconds between two looks at a console."""
LAST = 4096
"""Bytes of a console that are shown first."""
USUAL = {"vms": 3, "hosts": 2, "agents": 0}
"""How many there are unless somebody says otherwise."""


class Lab:
    """What a command on the lab works with."""

    def __init__(self, flags: Mapping[str, object], *, json: bool = False) -> None:
        self.settings = settings.load_lab(flags, os.environ)
        self.out = Output(json=json)
        with server_packages():
            from forenotice import logs
            from forenotice.lab import lab
        # What libvirt's connections log is for the service.
        logs.configure(LogLevel.ERROR, LogFormat.CONSOLE)
        self.lab = lab

    def find(self) -> "Whole":
        self.lab.require_library()
        found = self.lab.Lab.find(self.settings.directory)
        if found is None:
            raise errors.NotFoundError(
                f"there is no lab in {self.settings.directory}: start one with `forenotice lab up`"
            )
        return found


drive = partial(command, app, make=Lab)


@drive(
    "up",
    option("--vms", "N", "How many VMs; 3 unless given.", type=int),
    option("--hosts", "N", "How many hosts; 2 unless given.", type=int),
    option("--agents", "N", "How many VMs run the agent instead of a handler script; 0 unless given.", type=int),
    switch("--emulate", "Let QEMU emulate the VMs, without trying KVM."),
    rows=table.LAB,
)
def up(ctx: Lab, *, emulate: bool, **sizes: int | None) -> None:
    """Start hosts, the service and VMs; return when all VMs poll."""
    from forenotice.lab import status

    lab, found = ctx.lab, ctx.settings
    given = {name: size for name, size in sizes.items() if size is not None}
    planned = lab.plan(
        **{**USUAL, **given},
        speed=found.speed,
        control=str(found.control),
        accelerator="qemu" if emulate else "",
    )
    for other in found.others:
        if control_socket.is_in(other) and control_socket.answers(other):
            raise errors.ConflictError(
                f"a `forenotice serve` runs in {other}, and commands would reach it instead of the lab: stop it first, "
                "or give another directory with --data"
            )
    if (existing := lab.Lab.find(found.directory)) and existing.is_up:
        _require_same(existing, given)
        ctx.out.result(
            status.of(existing),
            f"{existing.sentence[0].upper()}{existing.sentence[1:]}.",
            f"The portal is at http://{existing.service.control}; sign in with the token in {existing.service.token}.",
        )
        return
    made = lab.Lab.up(found.directory, planned, say=lab.silent if ctx.out.json else _say)
    ctx.out.result(status.of(made), *_next(made, found))


@drive("status", rows=(table.DATA, table.CONFIG))
def show(ctx: Lab) -> None:
    """Show the hosts, and each VM: its host, its state, and what the guest reports."""
    from forenotice.lab import status

    found = status.of(ctx.find())
    if ctx.out.json:
        ctx.out.data(found)
        return
    _show(ctx.out, found)


@drive("console", argument("vm"), rows=(table.DATA, table.CONFIG))
def console(ctx: Lab, vm: str) -> None:
    """Follow what a VM writes to its console, until Ctrl-C; as JSON only what its handler reports, a line each."""
    from forenotice.lab import guests, status

    lab = ctx.find()
    guest = lab.guests.get(vm)
    if guest is None:
        raise errors.NotFoundError(f"the lab has no VM {vm}: see `forenotice lab status`")
    if not guest.console.exists():
        raise errors.UnavailableError(f"{vm} has not been started: see `forenotice lab status`")
    is_gone = any(each.name == vm and each.state == status.GONE for each in status.of(lab).vms)
    pause, pending = threading.Event(), b""
    with guest.console.open("rb") as file:
        if (hidden := os.fstat(file.fileno()).st_size - LAST) > 0:
            file.seek(hidden)
            file.readline()
        while guest.console.exists():
            *lines, pending = (pending + file.read()).split(b"\n")
            shown = [line.decode(errors="replace").rstrip() for line in lines if not ctx.out.json or guests.read(line)]
            sys.stdout.writelines(f"{commands.plain(line)}\n" for line in shown)
            sys.stdout.flush()
            if is_gone:
                raise errors.NotFoundError(
                    f"{vm} is gone; above is what it wrote last. See `forenotice history --vm {vm}`"
                )
            pause.wait(LOOK)


@drive("down", rows=(table.DATA, table.CONFIG))
def down(ctx: Lab) -> None:
    """End the VMs, the hosts and the service, and remove everything that was theirs."""
    removed = ctx.lab.remove(ctx.settings.directory)
    said = "The lab is down, and nothing of it is left." if removed else "There is no lab."
    ctx.out.result({"removed": removed}, said)


def _require_same(lab: "Whole", given: Mapping[str, int]) -> None:
    """ConflictError: the lab that is up has other numbers than those that were given."""
    has = {"vms": len(lab.plan.vms), "hosts": len(lab.plan.hosts), "agents": lab.plan.agents}
    differ = [f"--{name} {number}" for name, number in has.items() if given.get(name, number) != number]
    if differ:
        raise errors.ConflictError(
            f"a lab is up already, with {' and '.join(differ)}: run `forenotice lab down` first to start another"
        )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _next(lab: "Whole", found: settings.LabSettings) -> list[str]:
    """What to try."""
    is_usual = found.data == table.DATA.read(table.DATA.default or "")
    own = "" if is_usual else f"{table.DATA.variable}={shlex.quote(str(found.data.absolute()))} "
    notice = output.span(timedelta(minutes=15) / found.speed)
    first, other = lab.plan.vms[0], lab.plan.vms[-1]
    elsewhere = "on another host" if len(lab.plan.hosts) > 1 else "anew"
    tries = [
        (f"vm restart {first}", "its guest prepares, approves, and really reboots"),
        ("watch", "events with their countdowns, until Ctrl-C"),
        ("lab status", "hosts, and VMs as the guests report themselves"),
        (f"lab console {first}", "what the guest writes, until Ctrl-C"),
        (f"vm redeploy {other}", f"it starts {elsewhere}, with a new ephemeral disk"),
        (f"host update {lab.plan.hosts[0]}", "all its VMs are paused together"),
        ("lab down", "ends all of it, and leaves nothing behind"),
    ]
    width = max(len(words) for words, _ in tries)
    return [
        "",
        f"The lab is up, at speed {found.speed:g}: 15 minutes of notice take {notice}.",
        *(lab.service.link.splitlines() and ["", *lab.service.link.splitlines()]),
        "",
        f"Later, sign in with the token in {lab.service.token}.",
        "",
        "Try:" if shutil.which("forenotice") else "Try (. .venv/bin/activate first):",
        "",
        *(f"  {own}forenotice {words:<{width}}  # {what}" for words, what in tries),
    ]


def _show(out: Output, found: "Status") -> None:
    out.facts(
        {
            "service": f"http://{found.service}" if found.service else "down",
            "token": found.token,
            "speed": f"{found.speed:g}",
            "guests run on": "KVM" if found.accelerator == "kvm" else "QEMU's emulation",
        }
    )
    out.line()
    out.table(("host", "state", "uri"), [(host.name, host.state, host.uri) for host in found.hosts])
    out.line()
    out.table(
        ("vm", "host", "state", "address", "uptime", "boot id", "event"),
        [
            (
                vm.name,
                vm.host,
                vm.state,
                vm.address,
                f"{vm.uptime:.0f} s" if vm.uptime is not None else "",
                vm.boot_id,
                vm.event,
            )
            for vm in found.vms
        ],
    )
