"""Operations that move a VM to another host: alive, or ended here and started there."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import libvirt

from forenotice.drivers.libvirt import disks, domains, machines
from forenotice.drivers.libvirt.attempts import END, LEFT, Attempt, Facts, FailedError, WaitingError
from forenotice.drivers.libvirt.connections import ANSWER_SECONDS, Call, Connection, HostError, UnreachableError
from forenotice.drivers.libvirt.disks import DiskError
from forenotice.drivers.libvirt.domains import Definition, Mark, NewDisk
from forenotice.drivers.libvirt.machines import Look, Machine
from forenotice.programs import process

MIGRATE = "migrate"
"""The step of a mark that moves with a VM."""
STORAGE = {"checked": 0, "shared": libvirt.VIR_MIGRATE_UNSAFE, "copied": libvirt.VIR_MIGRATE_NON_SHARED_DISK}


def migrate(attempt: Attempt, vm: str) -> Facts:
    """Alive, with its memory; if it is shut off, only its definition."""
    source, target = attempt.source(vm), attempt.target(vm)
    while True:
        here, there = source.look(), target.look()
        if here is not None and there is not None and here.definition.uuid != there.definition.uuid:
            raise FailedError(f"{target.host} has another domain {vm}, with the id {there.definition.uuid}")
        moved = there is not None and there.is_running
        operation = attempt.task.operation
        if there is not None and moved and (here is None or not here.is_running):
            mark = there.live_mark(operation)
            if here is not None and here.is_active and mark is None:
                raise FailedError(f"{vm} runs on {target.host}, and {source.host} still has it: it {here.sentence}")
            return _arrived(attempt, source, here, target, mark)
        if here is None:
            if there is not None and there.kept_mark(operation) and not there.is_active:
                return {"output": "it was shut off, and only its definition has moved"}
            raise FailedError(f"{source.host} has no domain {vm}, nor one with its id")
        if moved:
            raise FailedError(f"{vm} runs on {source.host} and on {target.host}: end one of the two")
        if there is not None and there.is_active:
            # An earlier migration was broken off. libvirt ends what is left of it.
            attempt.require_time()
            attempt.wait()
        elif here.is_moving and _has_job(source):
            attempt.require_time()
            attempt.wait()
        elif here.is_moving:
            source.resume()
        elif here.is_active and not here.is_running:
            raise FailedError(f"the domain of {vm} on {source.host} {here.sentence}, so it cannot move alive")
        else:
            require_room(target, here.live or here.definition)
            _migrate(attempt, source, here, target)


def redeploy(attempt: Attempt, vm: str, *, fenced: bool = False) -> Facts:
    """End it here and start it there. `fenced`: this host is off."""
    source, target = attempt.source(vm), attempt.target(vm)
    there, here = target.look(), None if fenced else source.look()
    operation = attempt.task.operation
    if there is not None and there.is_active:
        mark = there.live_mark(operation)
        if mark is None or (here is not None and here.is_active):
            raise FailedError(f"{vm} runs on {target.host} already, and not by this operation")
        if here is not None:
            source.undefine(machines.MOVED)
    else:
        mark = there.kept_mark(operation) if there is not None else None
        if here is not None or mark is None:
            mark = _prepared(attempt, source, here, target, there, fenced=fenced)
        if here is not None:
            attempt.end(source, here)
            _delete_own(source, target, here.definition)
            leave(source)
        attempt.unfinished[vm] = LEFT
        mark = attempt.start(target, mark)
    attempt.await_life(target, mark)
    attempt.settle(target, mark)
    return {}


def leave(source: Machine) -> None:
    """Undefine it where it has ended. FailedError: somebody has started it since; it must not run twice."""
    source.undefine(machines.MOVED)
    if source.look() is not None:
        raise FailedError(f"{source.vm} was started again on {source.host} while it was to move")


def is_started(attempt: Attempt, vm: str) -> bool:
    """Whether this operation has started it on its target."""
    look = attempt.target(vm).look()
    return look is not None and look.live_mark(attempt.task.operation) is not None


def fence(attempt: Attempt, source: Connection) -> bool:
    """Whether the host is off; no: it answers. WaitingError: neither is certain."""
    # Not of each try: a host that was silent before is not waited for again.
    patient_until = attempt.task.started_at + timedelta(seconds=attempt.patience)
    while True:
        try:
            source.ask(lambda link: link.getLibVersion(), min(ANSWER_SECONDS, attempt.left))
            return False
        except UnreachableError as error:
            why = error.message
        if attempt.now >= patient_until:
            break
        attempt.wait()
    # The cause last: it may be long, and a reason that is cut must still say what to do.
    silent = f"{attempt.task.host} does not answer"
    if not attempt.config.fence:
        raise WaitingError(f"{silent}, and the driver's file has no fence: add one, or bring its libvirt back ({why})")
    try:
        ended = attempt.run(attempt.config.fence)
    except process.ProgramError as error:
        raise WaitingError(f"{silent} and cannot be fenced: {error.message} ({why})") from None
    if not ended.ok:
        raise WaitingError(f"{silent} and could not be fenced: {ended.message} ({why})")
    return True


def require_room(target: Machine, definition: Definition) -> None:
    """FailedError: the VM would not fit into the memory that is free there."""
    if definition.hugepages:
        return
    try:
        stats = target.connection.ask(lambda link: link.getMemoryStats(libvirt.VIR_NODE_MEMORY_STATS_ALL_CELLS))
    except HostError:
        return  # A hypervisor that does not say.
    free = sum(stats.get(name, 0) for name in ("free", "buffers", "cached")) * 1024
    if definition.memory > free:
        needs, has = definition.memory >> 20, free >> 20
        raise FailedError(f"{target.host} has no room for {target.vm}: it needs {needs} MiB, and {has} MiB are free")


def _migrate(attempt: Attempt, source: Machine, here: Look, target: Machine) -> None:
    flags = STORAGE[attempt.config.storage]
    mark = here.kept_mark(attempt.task.operation) or attempt.new_mark(source, here, MIGRATE)
    mark = replace(mark, step=MIGRATE, at=attempt.now)
    source.mark(mark, live=here.is_active, kept=here.persistent)
    if here.persistent:
        flags |= libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    flags |= libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_AUTO_CONVERGE if here.is_active else 0
    flags |= 0 if here.is_active else libvirt.VIR_MIGRATE_OFFLINE

    # Both connections are used at once; the source's tells how it ends.
    there = target.connection.ask(lambda link: link)
    call = source.connection.begin(lambda link: source.domain(link).migrate3(there, {}, flags))
    _follow(attempt, source, call)


def _follow(attempt: Attempt, source: Machine, call: Call[Any]) -> None:
    """Until it is over; broken off when the time is up or the service ends."""
    until: float | None = None
    while not call.is_over(0.05) and (until is None or attempt.monotonic < until):
        if attempt.is_overdue or attempt.is_stopping:
            until = attempt.monotonic + ANSWER_SECONDS if until is None else until
            # Again and again: as long as the target prepares itself, there is nothing to abort.
            with contextlib.suppress(HostError, UnreachableError):
                source.abort_job()
    try:
        if call.is_over():
            call.result()
            return
    except (HostError, UnreachableError):
        if until is None:
            raise
    attempt.require_going_on()
    attempt.require_time()


def _arrived(attempt: Attempt, source: Machine, here: Look | None, target: Machine, mark: Mark | None) -> Facts:
    if here is not None and here.is_active:
        # It was left paused when the migration was confirmed to the target but no longer to the source.
        source.power_off(attempt.left)
        here = source.look()
    if here is not None and here.persistent:
        source.undefine(machines.MOVED)
    facts: dict[str, object] = {}
    with contextlib.suppress(HostError):
        stats = target.job(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED)
        if "downtime" in stats:
            facts["paused_seconds"] = round(stats["downtime"] / 1000, 3)
    if mark is not None:
        if mark.autostart:
            target.set_autostart()
        attempt.await_life(target, mark, attempt.now if facts.get("paused_seconds") else None)
    return facts


def _has_job(source: Machine) -> bool:
    try:
        return bool(source.job().get("type", libvirt.VIR_DOMAIN_JOB_NONE) != libvirt.VIR_DOMAIN_JOB_NONE)
    except HostError:
        return False


def _prepared(
    attempt: Attempt, source: Machine, here: Look | None, target: Machine, there: Look | None, *, fenced: bool
) -> Mark:
    """Check all that can be checked before anything is ended, and define it on the target."""
    vm = target.vm
    if here is not None:
        xml, definition, look = here.xml, here.definition, here
        if here.snapshots:
            raise FailedError(f"{vm} has snapshots ({here.snapshots}), which would be lost: delete them first")
    elif fenced:
        known = attempt.surroundings.definition(vm) or (there.xml if there is not None else None)
        if known is None:
            why = f'set inventory = "libvirt" for {source.host} before it fails, or define {vm} on {target.host}'
            raise FailedError(f"the definition of {vm} is not known: {why}")
        xml, definition, look = known, domains.parse(known), None
    else:
        raise FailedError(f"{source.host} has no domain {vm}, nor one with its id")
    require_room(target, definition)
    _require_disks(attempt, target, definition)
    disks.require_usable(vm, definition.ephemeral)
    operation = attempt.task.operation
    mark = there.kept_mark(operation) if there is not None else None
    # An earlier call may have deleted them.
    described = {} if mark is None else {disk.path: disk for disk in mark.disks}
    new = tuple(
        described.get(disk.path) or _new_disk(source, target, disk, fenced=fenced) for disk in definition.ephemeral
    )
    if mark is None and look is not None:
        # An earlier call may have ended it.
        mark = look.kept_mark(operation) or attempt.new_mark(source, look, END)
    mark = mark or Mark(operation=operation, step=END, at=attempt.now)
    mark = replace(mark, step=END, at=attempt.now, disks=new)
    target.define(xml)
    target.mark(mark, kept=True)
    return mark


def _require_disks(attempt: Attempt, target: Machine, definition: Definition) -> None:
    if attempt.config.storage == "copied" and definition.persistent:
        names = ", ".join(disk.target for disk in definition.persistent)
        raise FailedError(f'{target.vm} would lose {names}: with storage = "copied" only a live migration moves disks')
    if attempt.config.storage == "checked":
        for disk in definition.persistent:
            with _storage(target, disk):
                found = disk.type != "file" or disks.exists(target.connection, disk.path)
            if not found:
                raise FailedError(f"{target.host} has no {disk.path}, the disk {disk.target} of {target.vm}")


@contextlib.contextmanager
def _storage(target: Machine, disk: domains.Disk) -> Iterator[None]:
    """FailedError: the target has no place for a disk, for instance no such directory."""
    try:
        yield
    except HostError as error:
        raise FailedError(f"the disk {disk.target} of {target.vm} on {target.host}: {error.message}") from None


def _new_disk(source: Machine, target: Machine, disk: domains.Disk, *, fenced: bool) -> NewDisk:
    with _storage(target, disk):
        there = disks.describe(target.connection, disk)
    found = None if fenced else disks.describe(source.connection, disk)
    if found is None and disk.size is not None:
        found = NewDisk(path=disk.path, size=disk.size, format=disk.format)
    found = found or there
    if found is None:
        why = "write it into the domain's metadata"
        raise FailedError(f"the size of the ephemeral disk {disk.target} of {target.vm} is not known: {why}")
    return found


def _delete_own(source: Machine, target: Machine, definition: Definition) -> None:
    """Those ephemeral disks that the target does not see. What cannot be deleted stays: the VM is not kept waiting."""
    with contextlib.suppress(HostError, UnreachableError, DiskError):
        own = [disk for disk in definition.ephemeral if not disks.exists(target.connection, disk.path)]
        disks.delete(source.connection, own, ANSWER_SECONDS)
