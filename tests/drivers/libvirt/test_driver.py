"""The driver on two real hosts: what each kind does, what it finds after a crash, and what it leaves alone."""

import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import libvirt
import libvirt_qemu
import pytest
from tests.acceptance.running import until
from tests.drivers.libvirt.pair import DISK, START, Pair, done, failure, kept, live, uuid_of, waiting

from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers import file, registry
from forenotice.drivers.libvirt import disks, domains, moves
from forenotice.drivers.libvirt.attempts import Attempt, FailedError, Parts
from forenotice.drivers.libvirt.connections import Connections, HostError, UnreachableError
from forenotice.drivers.libvirt.disks import DiskError
from forenotice.drivers.libvirt.domains import Mark, NewDisk
from forenotice.drivers.libvirt.driver import LibvirtDriver
from forenotice.drivers.libvirt.machines import Machine
from forenotice.drivers.surroundings import Surroundings
from forenotice.lab.hosts import Host
from forenotice.runtime import Runtime
from forenotice.settings.values import Span

RUNNING, PAUSED, SHUTOFF = libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_SHUTOFF


def state(domain: Any) -> int:
    return int(domain.state()[0])


def number(pair: Pair, vm: str) -> int:
    """Another one after each start."""
    return int(pair.domain(vm, pair.a).ID())


def machine(pair: Pair, vm: str, host: Host | None = None) -> Machine:
    return Machine(pair.on(host or pair.a), "host-a", vm, uuid_of(vm))


def attempt_of(pair: Pair, task: Task) -> Attempt:
    parts = Parts(
        config=file.Libvirt(),
        runtime=Runtime(),
        connections=pair.connections,
        surroundings=Surroundings(),
        stopping=threading.Event(),
        news=threading.Condition(),
    )
    return Attempt(task, parts)


def marked(step: str, ago: float = 0.0, operation: str = "o-1", **more: Any) -> Mark:
    return Mark(operation=operation, step=step, at=datetime.now(UTC) - timedelta(seconds=ago), **more)


class Running:
    """A call in a thread."""

    def __init__(self, driver: LibvirtDriver, task: Task) -> None:
        self._outcomes: list[Outcome] = []
        self._thread = threading.Thread(target=self._call, args=(driver, task), daemon=True)
        self._thread.start()

    def _call(self, driver: LibvirtDriver, task: Task) -> None:
        self._outcomes.append(driver.carry_out(task, START))

    def outcome(self) -> Outcome:
        self._thread.join(120)
        return self._outcomes[0]


def test_the_file_makes_it_with_the_connections_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "driver.toml"
    path.write_text('driver = "libvirt"\nat_once = 3\n')
    (choice,), _ = registry.open_drivers(path, 1, Runtime())
    assert isinstance(choice.driver, LibvirtDriver)
    assert (choice.terms.at_once, choice.terms.longest, choice.terms.awaits_results) == (3, None, False)
    path.write_text('driver = "libvirt"\nfence = ["/no/such/program", "{host}"]\n')
    with pytest.raises(file.DriverFileError, match="fence: there is no program /no/such/program"):
        registry.open_drivers(path, 1, Runtime())


# Freeze


def test_all_vms_of_a_host_update_are_paused_as_long_as_announced(pair: Pair) -> None:
    made = [pair.make(name, disks={}) for name in ("web-0", "web-1")]
    off = pair.make("off", disks={}, run=False)
    task = pair.task(Kind.HOST_UPDATE, "web-0", "web-1", "off", duration=2)
    found = done(pair.carry_out(task))
    assert [state(domain) for domain in (*made, off)] == [RUNNING, RUNNING, SHUTOFF]
    assert [call["vms"] for call in found.calls] == [["web-0"], ["web-1"], ["off"]]
    assert all(float(str(call["paused_seconds"])) >= 2 for call in found.calls[:2])
    # Once more, it was done.
    assert not any("paused_seconds" in call for call in done(pair.carry_out(task)).calls)


def test_all_are_paused_together_and_when_the_service_stops_nothing_stays_paused(pair: Pair) -> None:
    vms = ("web-0", "web-1", "web-2")
    made, driver = [pair.make(vm, disks={}) for vm in vms], pair.driver()
    call = Running(driver, pair.task(Kind.HOST_UPDATE, *vms, duration=600))
    until(lambda: all(state(domain) == PAUSED for domain in made))
    driver.stop()
    done(call.outcome())
    assert [state(domain) for domain in made] == [RUNNING] * 3


@pytest.mark.parametrize("step", ["freeze", "frozen"])
def test_a_pause_that_was_interrupted_is_ended_when_its_time_is_over(pair: Pair, step: str) -> None:
    domain = pair.make("web-0", disks={})
    machine(pair, "web-0").mark(marked(step, ago=30), live=True)
    domain.suspend()
    found = done(pair.carry_out(pair.task(Kind.HOST_UPDATE, "web-0", duration=31)))
    mark = live(domain).mark
    assert mark
    assert (state(domain), mark.step) == (RUNNING, "frozen")
    assert float(str(found.calls[0]["paused_seconds"])) >= 31


def test_a_vm_is_frozen_if_the_service_was_killed_before_it_was_paused(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    machine(pair, "web-0").mark(marked("freeze", ago=30), live=True)
    found = done(pair.carry_out(pair.task(Kind.HOST_UPDATE, "web-0", duration=1)))
    assert 1 <= float(str(found.calls[0]["paused_seconds"])) < 30
    assert state(domain) == RUNNING


def test_a_vm_is_not_frozen_again_if_the_service_was_killed_after_it_was_resumed(pair: Pair) -> None:
    pair.make("web-0", disks={})
    machine(pair, "web-0").mark(marked("frozen"), live=True)
    found = done(pair.carry_out(pair.task(Kind.HOST_UPDATE, "web-0", duration=600)))
    assert "paused_seconds" not in found.calls[0]


def test_a_stopped_service_pauses_nothing_more(pair: Pair) -> None:
    domain, driver = pair.make("web-0", disks={}), pair.driver()
    machine(pair, "web-0").mark(marked("freeze"), live=True)
    driver.stop()
    outcome = driver.carry_out(pair.task(Kind.HOST_UPDATE, "web-0"), START)
    assert isinstance(outcome, NotYet)
    mark = live(domain).mark
    assert mark
    assert mark.step == "freeze"


def test_a_paused_vm_waits_for_its_host_however_long_that_does_not_answer(pair: Pair) -> None:
    pair.make("web-0", disks={})
    task, driver = pair.task(Kind.HOST_UPDATE, "web-0", duration=600), pair.driver(patience=0.1)
    call = Running(driver, task)
    until(lambda: state(pair.domain("web-0", pair.a)) == PAUSED)
    pair.a.kill_libvirtd()
    try:
        # It is to go on at once.
        driver.stop()
        said = waiting(call.outcome())
        assert said == {"web-0": "the domain is paused, but host-a does not answer"}
        task = replace(task, waiting=said, duration=1)
        assert waiting(pair.carry_out(task, patience=0.1)) == said
    finally:
        pair.a.restart_libvirtd()
    done(pair.carry_out(task))
    assert state(pair.domain("web-0", pair.a)) == RUNNING


def test_a_domain_that_somebody_else_has_paused_is_left_alone(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    domain.suspend()
    for kind in (Kind.HOST_UPDATE, Kind.LIVE_MIGRATION):
        assert "is paused by somebody" in failure(pair.carry_out(pair.task(kind, "web-0")))
    assert state(domain) == PAUSED


def test_libvirtd_dies_during_a_freeze(pair: Pair) -> None:
    pair.make("web-0", disks={})
    driver = pair.driver()
    call = Running(driver, pair.task(Kind.HOST_UPDATE, "web-0", duration=600))
    until(lambda: state(pair.domain("web-0", pair.a)) == PAUSED)
    pair.a.restart_libvirtd()
    driver.stop()
    done(call.outcome())
    assert state(pair.domain("web-0", pair.a)) == RUNNING


# Restart


def test_a_restart_gives_the_guest_its_time_and_is_made_once(pair: Pair) -> None:
    domain = pair.make("web-0")
    before = number(pair, "web-0")
    found = done(pair.carry_out(pair.task(Kind.RESTART, "web-0", grace=1)))
    assert number(pair, "web-0") != before
    # The firmware does not know its power button.
    assert float(str(found.calls[0]["seconds"])) >= 1
    mark = live(domain).mark
    assert mark is not None
    assert (mark.operation, mark.step) == ("o-1", "start")
    restarted = number(pair, "web-0")
    done(pair.carry_out(pair.task(Kind.RESTART, "web-0", grace=1)))
    assert number(pair, "web-0") == restarted
    done(pair.carry_out(pair.task(Kind.RESTART, "web-0", operation="o-2")))
    assert number(pair, "web-0") != restarted
    assert pair.disk("web-0-vdb").read_bytes().startswith(b"written before"), "a restart keeps all disks"


def test_a_restart_that_died_goes_on_where_it_was(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    machine(pair, "web-0").mark(marked("end", ago=100), kept=True)
    before = number(pair, "web-0")
    # The mark is there, but not in the running domain: it has not ended yet, and its time is up.
    done(pair.carry_out(pair.task(Kind.RESTART, "web-0", grace=50)))
    assert number(pair, "web-0") != before
    # It has ended, and must only be started.
    machine(pair, "web-0").mark(marked("end", operation="o-2"), kept=True)
    domain.destroy()
    done(pair.carry_out(pair.task(Kind.RESTART, "web-0", operation="o-2")))
    assert state(domain) == RUNNING
    # Or somebody has started it.
    machine(pair, "web-0").mark(marked("end", operation="o-3"), kept=True)
    domain.destroy()
    domain.create()
    before = number(pair, "web-0")
    done(pair.carry_out(pair.task(Kind.RESTART, "web-0", operation="o-3")))
    assert number(pair, "web-0") == before


def test_a_domain_that_its_host_starts_at_the_same_time_has_started(pair: Pair) -> None:
    pair.make("web-0", disks={})
    before = number(pair, "web-0")
    attempt_of(pair, pair.task(Kind.RESTART, "web-0")).start(machine(pair, "web-0"), marked("end"))
    assert number(pair, "web-0") == before


def test_a_guest_that_ends_while_it_is_asked_to_has_ended(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    attempt = attempt_of(pair, pair.task(Kind.RESTART, "web-0", grace=60))
    look = attempt.require(machine(pair, "web-0"))
    domain.destroy()
    attempt.end(machine(pair, "web-0"), look)
    assert state(domain) == SHUTOFF


def test_the_time_that_guests_need_together_is_counted_once(pair: Pair) -> None:
    vms = ("web-0", "web-1", "web-2")
    for vm in vms:
        pair.make(vm, disks={})
    attempt = attempt_of(pair, pair.task(Kind.HOST_REBOOT, *vms, grace=2))

    def end(vm: str) -> None:
        attempt.end(attempt.source(vm), attempt.require(attempt.source(vm)))

    assert all(result.is_done for result in attempt.serve_each(vms, end))
    assert attempt.left <= file.Libvirt().time_limit.total_seconds()


def test_a_transient_domain_stays_transient(pair: Pair) -> None:
    pair.make("web-0", transient=True, disks={})
    before = number(pair, "web-0")
    done(pair.carry_out(pair.task(Kind.RESTART, "web-0")))
    found = pair.domain("web-0", pair.a)
    assert number(pair, "web-0") != before
    assert not found.isPersistent()
    done(pair.carry_out(pair.task(Kind.LIVE_MIGRATION, "web-0", operation="o-2")))
    found = pair.domain("web-0", pair.b)
    assert found.isActive()
    assert not found.isPersistent()
    assert pair.domain("web-0", pair.a) is None


def test_a_guest_that_polled_is_alive_when_it_polls_again(pair: Pair) -> None:
    polls = {"web-0": datetime.now(UTC)}
    surroundings = Surroundings(last_poll=polls.get)
    pair.make("web-0", disks={})
    before = number(pair, "web-0")
    driver = pair.driver(surroundings=surroundings, alive_limit=Span(minutes=5))
    call = Running(driver, pair.task(Kind.RESTART, "web-0"))
    until(lambda: number(pair, "web-0") > before)
    polls["web-0"] = datetime.now(UTC)
    done(call.outcome())


def test_a_guest_whose_long_poll_is_open_across_a_freeze_is_asked_to_poll_again(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    polls = {"web-0": datetime.now(UTC)}
    states = []

    def end_long_polls(vm: str) -> None:
        states.append(state(domain))
        # It is known to the second, so the first poll may seem to be one from before.
        if len(states) > 1:
            polls[vm] = datetime.now(UTC)

    surroundings = Surroundings(last_poll=polls.get, end_long_polls=end_long_polls)
    done(pair.carry_out(pair.task(Kind.HOST_UPDATE, "web-0"), surroundings=surroundings, alive_limit=Span(seconds=60)))
    assert states == [RUNNING, RUNNING]


def test_a_guest_that_does_not_poll_again_has_failed(pair: Pair) -> None:
    before = datetime.now(UTC)
    surroundings = Surroundings(last_poll=lambda _: before)
    pair.make("web-0", disks={})
    limits = {"surroundings": surroundings, "alive_limit": Span(seconds=1)}
    why = failure(pair.carry_out(pair.task(Kind.RESTART, "web-0"), **limits))
    assert why == "web-0 is not alive: its domain on host-a runs but has not polled"
    # One that has been silent for long need not.
    before -= timedelta(minutes=2)
    done(pair.carry_out(pair.task(Kind.RESTART, "web-0", operation="o-2"), **limits))


def test_a_kernel_that_panics_has_failed(pair: Pair) -> None:
    domain = pair.make("web-0", disks={}, more="<panic model='isa'/>")
    machine(pair, "web-0").mark(marked("start"), live=True)
    # What the kernel of a guest does when it panics.
    libvirt_qemu.qemuMonitorCommand(domain, "o /b 0x505 1", libvirt_qemu.VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP)
    until(lambda: state(domain) == libvirt.VIR_DOMAIN_CRASHED)
    why = failure(pair.carry_out(pair.task(Kind.RESTART, "web-0")))
    assert why == "web-0 is not alive: its domain on host-a has crashed with a panic of its kernel"


# Moves


def test_a_live_migration_takes_everything_along_and_tells_its_downtime(pair: Pair) -> None:
    domain = pair.make("web-0")
    domain.setAutostart(1)
    found = done(pair.carry_out(pair.task(Kind.LIVE_MIGRATION, "web-0")))
    assert float(str(found.calls[0]["paused_seconds"])) > 0
    assert pair.domain("web-0", pair.a) is None
    moved = pair.domain("web-0", pair.b)
    assert (state(moved), moved.isPersistent(), moved.autostart()) == (RUNNING, 1, 1)
    assert done(pair.carry_out(pair.task(Kind.LIVE_MIGRATION, "web-0")))


def test_libvirtd_dies_during_a_live_migration(pair: Pair) -> None:
    pair.make("web-0", disks={}, memory=256)
    task = pair.task(Kind.LIVE_MIGRATION, "web-0")
    call = Running(pair.driver(), task)
    until(lambda: pair.domain("web-0", pair.b) is not None)
    pair.a.restart_libvirtd()
    outcome = call.outcome()
    if not outcome.done:
        # With its reason; the next try looks first.
        assert failure(outcome)
        done(pair.carry_out(replace(task, attempt=2)))
    assert state(pair.domain("web-0", pair.b)) == RUNNING
    assert pair.domain("web-0", pair.a) is None


def slow_migration(pair: Pair) -> Any:
    """A domain that takes a minute to move: so much of its memory is not empty."""
    content = pair.disk("memory")
    content.write_bytes(random.randbytes(64 << 20))
    domain = pair.make("web-0", disks={}, memory=128, after=MEMORY.format(content))
    domain.migrateSetMaxSpeed(1)
    return domain


MEMORY = """
<commandline xmlns="http://libvirt.org/schemas/domain/qemu/1.0">
  <arg value="-device"/><arg value="loader,file={},addr=0x1000000,force-raw=on"/>
</commandline>
"""


def test_a_stopped_service_breaks_a_live_migration_off_and_begins_it_again(pair: Pair) -> None:
    domain, driver, task = slow_migration(pair), pair.driver(), pair.task(Kind.LIVE_MIGRATION, "web-0")
    call = Running(driver, task)
    until(lambda: pair.domain("web-0", pair.b) is not None)
    driver.stop()
    assert isinstance(call.outcome(), NotYet)
    assert state(domain) == RUNNING
    domain.migrateSetMaxSpeed(1000)
    done(pair.carry_out(task))
    assert state(pair.domain("web-0", pair.b)) == RUNNING


def test_a_live_migration_that_takes_too_long_is_broken_off(pair: Pair) -> None:
    ahead = 0.0
    driver = pair.driver(runtime=Runtime(monotonic=lambda: time.monotonic() + ahead), time_limit=Span(minutes=10))
    domain = slow_migration(pair)
    call = Running(driver, pair.task(Kind.LIVE_MIGRATION, "web-0"))
    until(lambda: pair.domain("web-0", pair.b) is not None)
    ahead = 600.0
    assert failure(call.outcome()) == "it was not done within 600 s"
    assert state(domain) == RUNNING


def test_a_domain_that_is_shut_off_moves_without_being_started(pair: Pair) -> None:
    pair.make("web-0", run=False)
    for _ in range(2):
        done(pair.carry_out(pair.task(Kind.LIVE_MIGRATION, "web-0")))
        assert pair.domain("web-0", pair.a) is None
        assert state(pair.domain("web-0", pair.b)) == SHUTOFF


def test_libvirt_itself_refuses_a_migration_that_could_lose_data(pair: Pair) -> None:
    domain = pair.make("web-0")
    why = failure(pair.carry_out(pair.task(Kind.LIVE_MIGRATION, "web-0"), storage="checked"))
    assert "Unsafe migration" in why
    assert state(domain) == RUNNING


def test_a_vm_that_somebody_has_moved_is_where_it_should_be(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    there = pair.ask(pair.b, lambda link: link)
    domain.migrate3(there, {}, flags)
    done(pair.carry_out(pair.task(Kind.LIVE_MIGRATION, "web-0")))
    why = failure(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    assert "runs on host-b already, and not by this operation" in why
    assert "has no domain web-0" in failure(pair.carry_out(pair.task(Kind.RESTART, "web-0")))


@pytest.mark.parametrize("kind", [Kind.REDEPLOY, Kind.DEGRADED_HARDWARE, Kind.HARDWARE_FAILURE])
def test_a_redeployed_vm_has_new_ephemeral_disks_and_its_persistent_ones(pair: Pair, kind: Kind) -> None:
    domain = pair.make("web-0")
    domain.setAutostart(1)
    for _ in range(2):
        done(pair.carry_out(pair.task(kind, "web-0"), storage="checked"))
        moved = pair.domain("web-0", pair.b)
        assert (state(moved), moved.isPersistent(), moved.autostart()) == (RUNNING, 1, 1)
        assert pair.domain("web-0", pair.a) is None
        assert pair.disk("web-0-vda").read_bytes().startswith(b"written before")
        assert pair.disk("web-0-vdb").read_bytes() == bytes(1 << 20)
        pair.disk("web-0-vdb").write_bytes(bytes(1 << 20))


def test_the_password_of_a_display_moves_along_and_is_told_to_nobody(
    pair: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    def password(host: Host) -> bool:
        return "hushhush" in pair.domain("web-0", host).XMLDesc(libvirt.VIR_DOMAIN_XML_SECURE)

    more = "<graphics type='vnc' autoport='yes' passwd='hushhush'/><video><model type='none'/></video>"
    pair.make("web-0", disks={}, more=more)
    moved = [done(pair.carry_out(pair.task(Kind.LIVE_MIGRATION, "web-0")))]
    assert password(pair.b)
    back = pair.task(Kind.REDEPLOY, "web-0", operation="o-2", address=pair.b.uri)
    moved.append(done(pair.carry_out(replace(back, target_addresses={"web-0": pair.a.uri}))))
    assert password(pair.a)
    broken = more.replace("type='vnc'", "type='nonsense'")
    with pytest.raises(HostError) as refused:
        machine(pair, "web-0").define(pair.xml("web-0", disks={}, more=broken))
    told = capfd.readouterr()
    assert "hushhush" not in f"{moved} {refused.value} {told.out} {told.err}"


def test_a_redeploy_that_died_goes_on_where_it_was(pair: Pair) -> None:
    pair.make("web-0")
    done(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    moved = pair.domain("web-0", pair.b)
    moved.destroy()
    # It was ended and undefined here, and is defined with its mark there. Its guest may have written since.
    pair.disk("web-0-vdb").write_bytes(b"written after" + bytes((1 << 20) - 13))
    done(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    assert state(moved) == RUNNING
    assert pair.disk("web-0-vdb").read_bytes().startswith(b"written after")


def test_a_redeploy_that_died_after_it_ended_the_domain_knows_what_it_was_before(pair: Pair) -> None:
    pair.make("web-0", disks={}, run=False)
    pair.ask(pair.b, lambda link: link.defineXML(pair.xml("web-0", disks={})))
    mark = marked("end", transient=True)
    for host in (pair.a, pair.b):
        machine(pair, "web-0", host).mark(mark, kept=True)
    done(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    moved = pair.domain("web-0", pair.b)
    assert (state(moved), moved.isPersistent()) == (RUNNING, 0)


def test_a_domain_that_somebody_starts_while_it_is_redeployed_does_not_run_twice(pair: Pair) -> None:
    pair.make("web-0", disks={})
    # Between its end and this, somebody has started it.
    with pytest.raises(FailedError, match="web-0 was started again on host-a"):
        moves.leave(machine(pair, "web-0"))
    done(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    assert pair.domain("web-0", pair.a) is None
    assert state(pair.domain("web-0", pair.b)) == RUNNING


def test_another_domain_with_its_name_is_not_taken_for_a_vm_that_has_moved(pair: Pair) -> None:
    other = pair.xml("web-0", disks={}).replace(uuid_of("web-0"), uuid_of("other"))
    there = pair.ask(pair.b, lambda link: link.createXML(other))
    here = pair.make("web-0", disks={}, run=False)
    task = pair.task(Kind.LIVE_MIGRATION, "web-0")
    assert "host-b has another domain web-0" in failure(pair.carry_out(task))
    here.create()
    assert "host-b has another domain web-0" in failure(pair.carry_out(task))
    assert (state(here), state(there)) == (RUNNING, RUNNING)


def test_a_qcow2_disk_is_made_new_upon_its_base(pair: Pair) -> None:
    base, disk = pair.disk("base"), pair.disk("web-0-vdb")
    base.write_bytes(b"base" + bytes((1 << 20) - 4))
    qemu_img = shutil.which("qemu-img")
    assert qemu_img
    create = [qemu_img, "create", "-q", "-f", "qcow2", "-b", str(base), "-F", "raw", str(disk), "2M"]
    subprocess.run(create, check=True, timeout=60)
    before = disk.read_bytes()
    pair.make("web-0", disks={"vdb": "qcow2"})
    done(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    info = subprocess.run([qemu_img, "info", "-U", str(disk)], check=True, capture_output=True, text=True, timeout=60)
    assert f"backing file: {base}" in info.stdout
    assert "2 MiB" in info.stdout
    assert disk.read_bytes() != before or disk.stat().st_size > 0


LOCAL = "/var/lib/libvirt/local"
"""Of which each host has its own."""


def make_directory(pair: Pair, host: Host) -> None:
    def make(link: Any) -> None:
        target = f"<target><path>{LOCAL}</path></target>"
        pool = link.storagePoolDefineXML(f"<pool type='dir'><name>local</name>{target}</pool>")
        pool.build()
        pool.undefine()

    pair.ask(host, make)


def test_an_ephemeral_disk_of_the_host_itself_is_made_new_elsewhere_and_deleted_here(pair: Pair) -> None:
    path = f"{LOCAL}/web-0-vdb"
    make_directory(pair, pair.a)
    disks.make_new(pair.on(pair.a), [NewDisk(path=path, size=1 << 20, format="raw")], 30)
    disk = DISK.format(format="raw", path=path, target="vdb")
    domain = pair.make("web-0", disks={}, more=disk)
    task = pair.task(Kind.REDEPLOY, "web-0", grace=600)
    assert "the disk vdb of web-0 on host-b: cannot open directory" in failure(pair.carry_out(task))
    assert state(domain) == RUNNING, "nothing was ended"
    make_directory(pair, pair.b)
    driver = pair.driver()
    call = Running(driver, task)
    until(lambda: kept(domain).mark is not None)
    driver.stop()
    assert isinstance(call.outcome(), NotYet)
    # As if it had been killed after this.
    disks.delete(pair.on(pair.a), kept(domain).ephemeral, 30)
    done(pair.carry_out(replace(task, shutdown_timeouts={"web-0": timedelta(0)})))
    assert state(pair.domain("web-0", pair.b)) == RUNNING
    assert disks.exists(pair.on(pair.b), path)
    back = pair.task(Kind.REDEPLOY, "web-0", operation="o-2", address=pair.b.uri)
    done(pair.carry_out(replace(back, target_addresses={"web-0": pair.a.uri})))
    assert state(pair.domain("web-0", pair.a)) == RUNNING
    assert [disks.exists(pair.on(host), path) for host in (pair.a, pair.b)] == [True, False]


def test_a_vm_that_has_left_its_host_waits_for_the_other_one(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    task = pair.task(Kind.REDEPLOY, "web-0", grace=600)
    call = Running(pair.driver(patience=0.1), task)
    until(lambda: kept(domain).mark is not None)
    pair.b.kill_libvirtd()
    try:
        domain.destroy()
        said = waiting(call.outcome())
        why = "the domain has ended on its host and is about to run on another, but host-a or host-b does not answer"
        assert said == {"web-0": why}
        assert pair.domain("web-0", pair.a) is None
        assert waiting(pair.carry_out(replace(task, waiting=said), patience=0.1)) == said
    finally:
        pair.b.restart_libvirtd()
    done(pair.carry_out(replace(task, waiting=said)))
    assert state(pair.domain("web-0", pair.b)) == RUNNING


def test_a_pool_that_is_not_active_serves_too(pair: Pair) -> None:
    pair.make("web-0")
    target = f"<target><path>{pair.place / 'disks'}</path></target>"
    pool = pair.ask(pair.b, lambda link: link.storagePoolDefineXML(f"<pool type='dir'><name>x</name>{target}</pool>"))
    try:
        done(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0"), storage="checked"))
        assert not pool.isActive()
    finally:
        pool.undefine()


def test_the_size_of_a_lost_ephemeral_disk_comes_from_the_metadata(pair: Pair) -> None:
    domain = pair.make("web-0", disks={"vdb": "raw"})
    pair.disk("web-0-vdb").unlink()
    why = failure(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    assert "the size of the ephemeral disk vdb of web-0 is not known" in why
    assert state(domain) == RUNNING
    said = '<vm><disk target="vdb" ephemeral="yes" size="2097152"/></vm>'
    element = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    domain.setMetadata(element, said, domains.PREFIX, domains.VM, libvirt.VIR_DOMAIN_AFFECT_CONFIG)
    done(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    assert pair.disk("web-0-vdb").stat().st_size == 2 << 20


def test_a_vm_with_snapshots_is_not_redeployed(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    taken = f"<state>shutoff</state><creationTime>1</creationTime>{domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)}"
    snapshot = f"<domainsnapshot><name>before</name>{taken}</domainsnapshot>"
    domain.snapshotCreateXML(snapshot, libvirt.VIR_DOMAIN_SNAPSHOT_CREATE_REDEFINE)
    assert "web-0 has snapshots (1)" in failure(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    assert state(domain) == RUNNING


LUN = "<disk type='network' device='disk'><driver name='qemu' type='raw'/>{}</disk>".format(
    "<source protocol='nbd' name='x'><host name='127.0.0.1' port='1'/></source><target dev='vdb' bus='virtio'/>"
)


@pytest.mark.parametrize("kind", [Kind.REDEPLOY, Kind.DELETION])
def test_an_ephemeral_disk_that_cannot_be_handled_is_refused_before_anything_is_ended(pair: Pair, kind: Kind) -> None:
    domain = pair.make("web-0", disks={}, run=True)
    pair.ask(pair.a, lambda link: link.defineXML(pair.xml("web-0", disks={}, more=LUN)))
    why = failure(pair.carry_out(pair.task(kind, "web-0")))
    assert "the ephemeral disk vdb of web-0 is network raw: only files, raw or qcow2, are supported" in why
    assert state(domain) == RUNNING


def test_a_persistent_disk_that_the_target_has_not_is_refused_before_anything_is_ended(pair: Pair) -> None:
    domain = pair.make("web-0")
    pair.disk("web-0-vda").unlink()
    why = failure(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0"), storage="checked"))
    assert "the disk vda of web-0" in why
    assert "would lose vda" in failure(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0"), storage="copied"))
    assert state(domain) == RUNNING


def test_a_host_without_room_is_refused_before_anything_is_ended(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    pair.ask(pair.a, lambda link: link.defineXML(pair.xml("web-0", memory=1 << 26, disks={})))
    why = failure(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    assert why.startswith("host-b has no room for web-0: it needs 67108864 MiB, and ")
    assert state(domain) == RUNNING
    assert pair.domain("web-0", pair.b) is None


def test_a_vm_that_runs_on_two_hosts_is_left_alone(pair: Pair) -> None:
    here = pair.make("web-0", disks={})
    there = pair.ask(pair.b, lambda link: link.createXML(pair.xml("web-0", disks={})))
    assert "on host-a and on host-b" in failure(pair.carry_out(pair.task(Kind.LIVE_MIGRATION, "web-0")))
    assert "runs on host-b already" in failure(pair.carry_out(pair.task(Kind.REDEPLOY, "web-0")))
    assert (state(here), state(there)) == (RUNNING, RUNNING)


# Other hypervisors


def test_a_hypervisor_that_knows_fewer_flags_will_do(pair: Pair, tmp_path: Path) -> None:
    # Of its own: `test:///default` is shared by all connections of a process, and this one deletes its domain.
    xml = "<domain type='test'><name>test</name><memory>8192</memory><os><type>hvm</type></os></domain>"
    (tmp_path / "node.xml").write_text(f"<node>{xml}</node>")
    uri = f"test://{tmp_path}/node.xml"
    task = pair.task(Kind.RESTART, "test", address=uri, vm_ids={})
    domain = pair.connections.to(uri).ask(lambda link: link.lookupByName("test"))
    done(pair.carry_out(replace(task, shutdown_timeouts={"test": timedelta(seconds=30)})))
    mark = live(domain).mark
    assert mark
    assert mark.operation == "o-1"
    done(pair.carry_out(replace(task, kind=Kind.HOST_UPDATE)))
    deletion = replace(task, kind=Kind.DELETION, operation="o-2")
    done(pair.carry_out(replace(deletion, waiting=waiting(pair.carry_out(deletion)))))
    assert "has no domain test" in failure(pair.carry_out(replace(task, operation="o-3")))


# Removal


def ended(outcome: Outcome) -> Mapping[str, str]:
    """What the first of two calls says."""
    assert isinstance(outcome, NotYet), outcome
    assert outcome.again_at <= datetime.now(UTC)
    return outcome.waiting


@pytest.mark.parametrize("kind", [Kind.EVICTION, Kind.DELETION])
@pytest.mark.parametrize("transient", [False, True])
def test_a_removed_vm_leaves_only_its_persistent_disks(pair: Pair, kind: Kind, transient: bool) -> None:
    pair.make("web-0", transient=transient)
    task = pair.task(kind, "web-0")
    said = ended(pair.carry_out(task))
    assert said == {"web-0": "the domain has ended and is about to be removed"}
    assert state(pair.domain("web-0", pair.a)) == SHUTOFF
    for _ in range(2):
        # Also if the service was killed after the domain was removed.
        done(pair.carry_out(replace(task, waiting=said)))
        assert pair.domain("web-0", pair.a) is None
        assert [path.name for path in (pair.place / "disks").iterdir()] == ["web-0-vda"]


def test_a_vm_that_somebody_starts_while_it_is_removed_is_ended_again(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    task = pair.task(Kind.DELETION, "web-0")
    said = ended(pair.carry_out(task))
    domain.create()
    done(pair.carry_out(replace(task, waiting=said)))
    assert pair.domain("web-0", pair.a) is None


def test_a_removal_goes_on_when_its_service_or_its_host_is_back(pair: Pair) -> None:
    pair.make("web-0", disks={})
    task = pair.task(Kind.DELETION, "web-0")
    task = replace(task, waiting=ended(pair.carry_out(task)))
    driver = pair.driver()
    driver.stop()
    pair.a.kill_libvirtd()
    try:
        assert waiting(driver.carry_out(task, START)) == task.waiting
        said = waiting(pair.carry_out(task, patience=0.1))
    finally:
        pair.a.restart_libvirtd()
    assert said == {"web-0": f"{task.waiting['web-0']}, but host-a does not answer"}
    done(pair.carry_out(replace(task, waiting=said)))
    assert pair.domain("web-0", pair.a) is None


# Host reboot


def rebooted(pair: Pair, task: Task, **how: Any) -> Outcome:
    """In two calls: the service writes down in between that the program has run."""
    return pair.carry_out(replace(task, waiting=ended(pair.carry_out(task, **how))), **how)


def test_a_host_reboot_ends_its_vms_runs_the_program_and_starts_them_again(pair: Pair, tmp_path: Path) -> None:
    one, other = pair.make("web-0", disks={}), pair.make("web-1", disks={})
    off = pair.make("off", disks={}, run=False)
    before = number(pair, "web-0"), number(pair, "web-1")
    count = tmp_path / "count"
    reboot = ("/bin/sh", "-c", f"echo {{host}} $FORENOTICE_OPERATION >> {count}")
    task = pair.task(Kind.HOST_REBOOT, "web-0", "web-1", "off")
    assert done(rebooted(pair, task, reboot=reboot)).done == ("web-0", "web-1", "off")
    done(pair.carry_out(task, reboot=reboot))
    assert count.read_text() == "host-a o-1\n"
    assert (state(one), state(other), state(off)) == (RUNNING, RUNNING, SHUTOFF)
    assert before[0] < number(pair, "web-0") < number(pair, "web-1"), "started in order"


def test_a_service_that_stops_while_guests_shut_down_for_a_host_reboot_starts_them_later(pair: Pair) -> None:
    quick, slow, driver = pair.make("web-0", disks={}), pair.make("web-1", disks={}), pair.driver()
    grace = {"web-0": timedelta(0), "web-1": timedelta(minutes=10)}
    task = pair.task(Kind.HOST_REBOOT, "web-0", "web-1", shutdown_timeouts=grace)
    call = Running(driver, task)
    until(lambda: state(quick) == SHUTOFF)
    driver.stop()
    outcome = call.outcome()
    assert isinstance(outcome, NotYet)
    assert outcome.done == ()
    done(pair.carry_out(replace(task, shutdown_timeouts=dict.fromkeys(grace, timedelta(0)))))
    assert (state(quick), state(slow)) == (RUNNING, RUNNING)


def test_a_host_that_cannot_be_rebooted_has_its_vms_again(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    before = number(pair, "web-0")
    task = pair.task(Kind.HOST_REBOOT, "web-0")
    why = failure(pair.carry_out(task, reboot=("/bin/sh", "-c", "echo no; exit 3")))
    assert why == "the host was not rebooted: exit code 3: no"
    assert state(domain) == RUNNING
    after = number(pair, "web-0")
    assert after != before
    # It was not rebooted, so the next try ends it again.
    done(rebooted(pair, replace(task, attempt=2), reboot=("/bin/true",)))
    assert number(pair, "web-0") != after


def test_vms_that_the_host_starts_itself_are_not_started_again(pair: Pair) -> None:
    pair.make("web-0", disks={})
    start = ("virsh", "-c", pair.a.uri, "start", "web-0")
    task = pair.task(Kind.HOST_REBOOT, "web-0")
    said = ended(pair.carry_out(task, reboot=start))
    before = number(pair, "web-0")
    done(pair.carry_out(replace(task, waiting=said), reboot=("/bin/false",)))
    assert number(pair, "web-0") == before
    mark = live(pair.domain("web-0", pair.a)).mark
    assert mark
    assert mark.step == "start"
    done(pair.carry_out(task, reboot=("/bin/false",)))


def test_no_host_is_rebooted_whose_vms_cannot_be_ended(pair: Pair, tmp_path: Path) -> None:
    domain = pair.make("web-0", disks={})
    before = number(pair, "web-0")
    task = pair.task(Kind.HOST_REBOOT, "web-0", "gone")
    outcome = pair.carry_out(task, reboot=("/bin/touch", str(tmp_path / "rebooted")))
    assert isinstance(outcome, Finished)
    assert outcome.failures == {
        "gone": "host-a has no domain gone, nor one with its id",
        "web-0": "the host was not rebooted because of gone",
    }
    assert (state(domain), number(pair, "web-0")) == (RUNNING, before)
    assert not (tmp_path / "rebooted").exists()


def test_a_host_that_was_rebooted_is_waited_for_however_long_it_takes(pair: Pair) -> None:
    pair.make("web-0", disks={})
    libvirtd = pair.a.libvirtd
    assert libvirtd
    task = pair.task(Kind.HOST_REBOOT, "web-0")
    said = ended(pair.carry_out(task, reboot=("/bin/kill", "-9", str(libvirtd.pid))))
    assert said == {"web-0": "the host was rebooted and the domain is about to start"}
    reboot = ("/bin/false",)
    try:
        until(lambda: not libvirtd.is_alive)
        for _ in range(2):
            said = waiting(pair.carry_out(replace(task, waiting=said), reboot=reboot, patience=0.1))
            why = "the host was rebooted and the domain is about to start, but host-a does not answer"
            assert said == {"web-0": why}
    finally:
        pair.a.restart_libvirtd()
    done(pair.carry_out(replace(task, waiting=said), reboot=reboot))
    assert state(pair.domain("web-0", pair.a)) == RUNNING


@pytest.mark.parametrize("vms", [("web-0", "web-1"), ("web-1",)])
def test_no_host_is_rebooted_again_once_a_vm_has_been_started_on_it(pair: Pair, vms: tuple[str, ...]) -> None:
    started, other = pair.make("web-0", disks={}), pair.make("web-1", disks={}, run=False)
    machine(pair, "web-0").mark(marked("start"), live=True, kept=True)
    before = number(pair, "web-0")
    # The service was killed before it started this one, or could not.
    machine(pair, "web-1").mark(marked("end"), kept=True)
    done(pair.carry_out(pair.task(Kind.HOST_REBOOT, *vms), reboot=("/bin/false",)))
    assert (state(started), state(other), number(pair, "web-0")) == (RUNNING, RUNNING, before)


def test_a_vm_that_was_shut_off_for_a_restart_waits_for_its_host(pair: Pair) -> None:
    domain = pair.make("web-0", disks={}, run=False)
    task = pair.task(Kind.RESTART, "web-0")
    machine(pair, "web-0").mark(marked("end"), kept=True)
    attempt = attempt_of(pair, task)
    attempt.end(attempt.source("web-0"), attempt.require(attempt.source("web-0")))
    result = attempt.result_of("web-0", UnreachableError())
    assert result.waiting == "the domain is shut off for this operation, but host-a does not answer"
    done(pair.carry_out(replace(task, waiting={"web-0": result.waiting})))
    assert state(domain) == RUNNING


# Hardware failure


def test_a_host_that_does_not_answer_is_fenced_before_its_vms_start_elsewhere(pair: Pair, tmp_path: Path) -> None:
    domain = pair.make("web-0")
    xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    (qemu,) = (each for each, name, _ in pair.a._processes() if name.startswith("qemu-system"))
    task = pair.task(Kind.HARDWARE_FAILURE, "web-0")
    known = Surroundings(definition=lambda _: xml)
    pair.a.kill_libvirtd()
    # The operation began long ago, so nobody is patient any more.
    how: dict[str, Any] = {"patience": 1e6, "surroundings": known}
    try:
        why = waiting(pair.carry_out(task, **how))["web-0"]
        # What to do comes before the cause, which may be cut.
        task_first = (
            f"{task.host} does not answer, and the driver's file has no fence: add one, or bring its libvirt back"
        )
        assert why.startswith(f"{task_first} ({pair.a.uri} cannot be reached: "), why
        why = waiting(pair.carry_out(task, **how, fence=("/bin/sh", "-c", "echo no power; exit 1")))["web-0"]
        assert why.startswith(f"{task.host} does not answer and could not be fenced: exit code 1: no power ("), why
        assert pair.domain("web-0", pair.b) is None
        assert qemu.is_alive
        fence = ("/bin/kill", "-9", str(qemu.pid))
        unknown = failure(pair.carry_out(task, patience=1e6, fence=("/bin/true",)))
        assert "the definition of web-0 is not known" in unknown
        done(pair.carry_out(task, **how, fence=fence))
        assert qemu.wait(60)
        assert state(pair.domain("web-0", pair.b)) == RUNNING
        # It is done, so nobody is fenced again.
        done(pair.carry_out(task, **how, fence=("/bin/false",)))
    finally:
        pair.a.restart_libvirtd()


# Bad input


def test_hosts_that_cannot_be_asked_say_why(pair: Pair, tmp_path: Path) -> None:
    task = pair.task(Kind.RESTART, "web-0")
    nobody = f"qemu+unix:///system?socket={tmp_path}/nobody"
    for address, said in [
        (None, "host-a has no address: forenotice host set host-a --address qemu+ssh://host-a/system"),
        ("10.0.0.1", "the address of host-a: '10.0.0.1' is not a libvirt URI"),
        ("qemu+ext:///system?command=/bin/sh", "no transport that is allowed"),
        ("nonsense:///system", "cannot be reached"),
        (nobody, "cannot be reached"),
    ]:
        assert said in failure(pair.carry_out(replace(task, address=address), patience=0.1))


def test_a_host_that_hangs_is_given_up_after_the_time_limit(pair: Pair) -> None:
    pair.make("web-0", disks={})
    libvirtd = pair.a.libvirtd
    assert libvirtd
    libvirtd.send(signal.SIGSTOP)
    try:
        task = pair.task(Kind.RESTART, "web-0")
        why = failure(pair.carry_out(task, patience=0.1, time_limit=Span(seconds=1)))
        assert "has not answered for" in why
    finally:
        libvirtd.send(signal.SIGCONT)


def test_a_host_that_hung_while_it_was_connected_to_is_connected_to_again(pair: Pair, tmp_path: Path) -> None:
    ahead = 0.0
    connections = Connections(Runtime(monotonic=lambda: time.monotonic() + ahead))
    path = tmp_path / "socket"
    host = connections.to(f"qemu+unix:///system?socket={path}")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        with pytest.raises(UnreachableError, match="has not answered"):
            host.ask(lambda link: link.getHostname(), seconds=0.5)
        # It was powered off and is back, but of that the old connection is never told.
        path.unlink()
        path.symlink_to(pair.a.uri.partition("socket=")[2])
        with pytest.raises(UnreachableError, match="has not answered"):
            host.ask(lambda link: link.getHostname(), seconds=0.5)
        ahead = 100.0
        assert host.ask(lambda link: link.getHostname()) == "host-a"
    # Now the old one ends.
    assert host.ask(lambda link: link.getHostname()) == "host-a"
    connections.close()


def test_what_was_given_up_does_not_happen_later(pair: Pair) -> None:
    domain = pair.make("web-0")
    libvirtd, hung = pair.a.libvirtd, machine(pair, "web-0")
    assert libvirtd
    libvirtd.send(signal.SIGSTOP)
    try:
        with pytest.raises(UnreachableError):
            hung.power_off(0.5)
    finally:
        libvirtd.send(signal.SIGCONT)
    for _ in range(20):
        assert state(domain) == RUNNING
    disk = NewDisk(path=str(pair.disk("web-0-vda")), size=1, format="raw")
    with disks.storage(pair.on(pair.a), 1), pytest.raises(DiskError, match="has not ended"):
        disks.make_new(pair.on(pair.a), [disk], 2)
    assert disks.exists(pair.on(pair.a), disk.path)
    assert pair.disk("web-0-vda").read_bytes().startswith(b"written before")


def test_a_domain_that_is_not_there(pair: Pair) -> None:
    for kind in Kind:
        assert "host-a has no domain web-0" in failure(pair.carry_out(pair.task(kind, "web-0")))


def test_two_domains_for_one_vm_are_left_alone(pair: Pair) -> None:
    domain = pair.make("web-0", disks={})
    pair.make("other", disks={}, run=False)
    for kind in Kind:
        task = pair.task(kind, "web-0", vm_ids={"web-0": uuid_of("other")})
        assert "host-a has two domains for web-0" in failure(pair.carry_out(task))
        assert state(domain) == RUNNING
        assert kept(domain).mark is None


def test_a_vm_is_found_by_its_name_if_its_id_is_another(pair: Pair) -> None:
    pair.make("web-0", disks={})
    before = number(pair, "web-0")
    done(pair.carry_out(pair.task(Kind.RESTART, "web-0", vm_ids={"web-0": uuid_of("unknown")})))
    assert number(pair, "web-0") != before


def test_a_stopped_service_goes_on_after_its_next_start(pair: Pair) -> None:
    domain, driver = pair.make("web-0", disks={}), pair.driver()
    task = pair.task(Kind.RESTART, "web-0", grace=600)
    call = Running(driver, task)
    until(lambda: kept(domain).mark is not None)
    driver.stop()
    outcome = call.outcome()
    assert isinstance(outcome, NotYet)
    assert (outcome.done, outcome.waiting) == ((), {})
    before = number(pair, "web-0")
    done(pair.carry_out(replace(task, shutdown_timeouts={"web-0": timedelta(0)})))
    assert number(pair, "web-0") != before
