"""The thread that follows what hosts say of their VMs, and records it: one transaction where something differs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

import structlog

from forenotice.core import backoff, errors, fleet, inventory
from forenotice.core.draft import Draft, World
from forenotice.core.fleet import Host
from forenotice.core.inventory import INVENTORY, Inventory, Left, Listed, Rule, Silence
from forenotice.failures import Failures
from forenotice.service.calls import Call
from forenotice.service.leases import Lease
from forenotice.service.loops import Loop
from forenotice.service.service import Service, UnitOfWork
from forenotice.store.transaction import Reader

log = structlog.get_logger()

FULL_LOOK = 60.0
"""Seconds after which a host is listed again, in case an event was missed or an operator has changed the fleet."""
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 60.0
"""Seconds until a host that does not answer is asked again."""
BETWEEN_STEPS = timedelta(seconds=0.5)
LONGEST_SLEEP = 10.0
AT_ONCE = 16
"""Hosts that are asked at the same time. To connect by ssh takes a process for each."""
MOST_VMS = 100_000
"""Of a host."""
LONGEST_DEFINITION = 1 << 18
"""Characters; a longer one is not kept."""
PLACING = ("operation.started", "vm.added", "vm.changed", "vm.moved", "vm.removed")
"""Actions after which what was listed before may be older than what the fleet has."""
CALL = Call(actor=INVENTORY)


class Watcher(Protocol):
    """Lists the domains of hosts, and tells when a list may be out of date."""

    def begin(self, name: str) -> None:
        """Ask it without waiting, so that several can be waited for at the same time."""

    def list(self, name: str) -> Listed:
        """ForenoticeError: it does not answer, and why."""

    def follow(self, hosts: Mapping[str, str]) -> None:
        """These alone are watched, each at its address."""

    def close(self) -> None: ...


def definition(service: Service, vm: str) -> str | None:
    """As its host last described it."""
    with service.store.read() as reader:
        return reader.definitions.get(vm)


class InventoryLoop:
    """One thread for all hosts that are watched."""

    def __init__(
        self, service: Service, open_watcher: Callable[[Callable[[str], None]], Watcher], rules: Sequence[Rule] = ()
    ) -> None:
        """The watcher is opened for the first host, and calls what it is given with the name of a host that has
        changed."""
        self._service = service
        self._open_watcher = open_watcher
        self._watcher: Watcher | None = None
        self._rules = rules
        self._lease = Lease(service, INVENTORY)
        self._wake = service.follow_growth()
        self._hosts: Mapping[str, Host] = {}
        self._due: dict[str, float] = {}
        """When each host is to be listed, by the monotonic clock."""
        self._listed: dict[str, Listed] = {}
        self._inventory: Inventory | None = None
        """The same, of all hosts that answer; None: that has changed."""
        self._machines: dict[str, str] = {}
        """What each host was when it last answered."""
        self._failures: dict[str, Failures] = {}
        self._kept: dict[str, tuple[str, int]] = {}
        """Definitions that the store has, by VM, and their stamps."""
        self._unrecorded: set[str] = set()
        """Hosts that were listed since they were last recorded."""
        self._left: dict[str, Left] = {}
        """What was left to be done, by host, when it was last recorded."""
        self._own: set[int] = set()
        """Positions of the journal that this step has written."""
        self._position = -1
        self._loop = Loop(INVENTORY, self.step, self._wake, service.liveness, service.runtime, pause=BETWEEN_STEPS)
        self.start = self._loop.start

    def stop(self) -> None:
        self._loop.stop()
        if self._watcher is not None:
            self._watcher.close()
            self._lease.give_up()

    def changed(self, host: str) -> None:
        """It is to be listed now. Called from any thread."""
        self._due[host] = 0.0
        self._wake.set()

    def step(self) -> timedelta:
        """List what is due and record it; gives how long nothing is."""
        with self._service.store.read() as reader:
            self._follow({host.name: host for host in reader.hosts.watched()})
            position = _end(reader)
            # What was in the way may be gone, and operations may be over.
            busy = {name for name, left in self._left.items() if left.busy}
            again = {*reader.drift.hosts(), *busy} if position != self._position else set()
        now = self._service.runtime.monotonic()
        due = [name for name in self._hosts if self._due.get(name, 0.0) <= now]
        # Those that do not answer last: they take time.
        fresh = self._list_all(sorted(due, key=self._service.silent.__contains__))
        # Hosts may answer one process and not another, and each would take back what another has written. So one alone
        # records; the others list hosts all the same, to say which of them are silent.
        if self._listed and self._lease.holds():
            self._unrecorded |= again
            self._record_all(fresh, position)
        next_due = min((self._due.get(name, 0.0) for name in self._hosts), default=now + LONGEST_SLEEP)
        return timedelta(seconds=max(0.0, min(next_due - self._service.runtime.monotonic(), LONGEST_SLEEP)))

    def _record_all(self, fresh: set[str], position: int) -> None:
        self._own.clear()
        called: set[str] = set()
        # To record one host may mean to list others, and to record them.
        while names := self._unrecorded & self._listed.keys():
            name = min(names)
            if not self._record(name, fresh, position):
                self._due[name] = 0.0
            elsewhere = self._left[name].elsewhere - called
            called |= elsewhere
            self._unrecorded = (self._unrecorded - {name}) | elsewhere
        self._unrecorded.clear()
        self._position = max(position, *self._own, 0)

    def _follow(self, hosts: Mapping[str, Host]) -> None:
        if hosts == self._hosts:
            return
        silent = self._service.silent
        for name, before in self._hosts.items():
            if _source(hosts.get(name)) != _source(before):
                for known in (self._due, self._listed, self._machines, self._failures, self._left, silent):
                    known.pop(name, None)
        self._hosts, self._inventory = hosts, None
        if self._watcher is not None:
            self._watcher.follow(self._addresses())

    def _addresses(self) -> dict[str, str]:
        return {name: host.address or "" for name, host in self._hosts.items()}

    @property
    def _found(self) -> Inventory:
        if self._inventory is None:
            self._inventory = Inventory({name: each.domains for name, each in self._listed.items()}, self._rules)
        return self._inventory

    def _list_all(self, names: Sequence[str]) -> set[str]:
        """Gives those that answer."""
        found = set()
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            for name in some:
                # Before it is asked: an event that comes meanwhile makes it due again.
                self._due[name] = self._service.runtime.monotonic() + FULL_LOOK
                with suppress(errors.ForenoticeError):
                    self._opened().begin(name)
            found |= {name for name in some if self._list(name)}
        self._unrecorded |= found
        return found

    def _opened(self) -> Watcher:
        if self._watcher is None:
            self._watcher = self._open_watcher(self.changed)
            self._watcher.follow(self._addresses())
        return self._watcher

    def _list(self, name: str) -> bool:
        """Whether it answers. If it does not, nothing of it is recorded, and nothing that is recorded goes."""
        service, monotonic = self._service, self._service.runtime.monotonic
        service.liveness.beat(INVENTORY)
        self._inventory = None
        failures = self._failures.setdefault(name, Failures())
        try:
            listed = self._opened().list(name)
            self._require_own_machine(name, listed.machine)
            self._call_former_hosts(name, listed)
            self._listed[name] = listed
        except errors.ForenoticeError as error:
            if failures.again(error.message):
                log.warning(
                    "The VMs of a host could not be listed", action="inventory.silent", host=name, reason=error.message
                )
            self._due[name] = monotonic() + backoff.pause(failures.times, FIRST_PAUSE, LONGEST_PAUSE)
            self._listed.pop(name, None)
            before = service.silent.get(name)
            since = before.since if before else service.clock.now()
            service.silent[name] = Silence(since=since, why=error.message)
            return False
        if service.silent.pop(name, None):
            failures.over()
            log.info("The VMs of a host are listed again", action="inventory.answered", host=name)
        return True

    def _call_former_hosts(self, name: str, listed: Listed) -> None:
        """List those again that had what has appeared: libvirt does not tell that a domain that is off has left."""
        before = self._listed.get(name, listed)
        appeared = {domain.uuid for domain in listed.domains} - {domain.uuid for domain in before.domains}
        for other, each in self._listed.items() if appeared else ():
            if other != name and any(domain.uuid in appeared for domain in each.domains):
                self.changed(other)

    def _require_own_machine(self, name: str, machine: str) -> None:
        """ConflictError: another host has the same address, or one that leads there; nothing of it is recorded, too."""
        self._machines[name] = machine
        same = {other: each for other, each in self._machines.items() if each == machine}
        for other in same.keys() - {name} if machine else ():
            if self._listed.pop(other, None):
                self.changed(other)
        inventory.require_own_machines(same)

    def _record(self, name: str, fresh: set[str], position: int) -> bool:
        """Whether the fleet is as the host says, or as near to that as the rules allow.

        Hosts that are `fresh` were listed when the journal was at `position`. Not: the fleet has changed since, so that
        this one must be listed again.
        """
        service = self._service
        with service.store.read() as reader:
            draft = service.draft(_load(reader, name, self._found), allows_loopback=service.allows_loopback)
            known = set(draft.world.vms)
            self._left[name] = inventory.observe(draft, name, self._found)
            new = self._new_definitions(reader, draft, name)
        changes = draft.changes()
        if not (changes.entries or changes.drift or new):
            return True
        # Where others say that the same VMs are may be old, too; so is all of a host that has changed since.
        alike = [(each.uuid, each.name) for each in self._found.hosts[name]]
        alike += [(vm.vm_id, vm.name) for vm in draft.vms_on(name)]
        near = {at for uuid, called in alike for at in self._found.hosts_of(uuid, called)}
        now = service.runtime.monotonic()
        changed = {each for each in self._hosts if self._due.get(each, 0.0) <= now}
        fresh |= self._list_all(sorted(({name, *near} - fresh) | (changed & self._listed.keys())))
        if name not in self._listed:
            return True

        def work(unit: UnitOfWork) -> range | None:
            draft = unit.draft(_load(unit.transaction, name, self._found), CALL)
            vms, hosts = {*known, *draft.world.vms}, {name, *near}
            if not self._lease.is_held(unit):
                return None
            if _source(draft.world.hosts.get(name)) != _source(self._hosts[name]):
                return None
            if set(unit.transaction.journal.since(position, PLACING, hosts=hosts, vms=vms)) - self._own:
                return None
            first = _end(unit.transaction)
            inventory.observe(draft, name, self._found)
            unit.keep(draft)
            unit.transaction.definitions.put(self._new_definitions(unit.transaction, draft, name), unit.now)
            return range(first + 1, _end(unit.transaction) + 1)

        written = service.transact(work)
        if written is None:
            return False
        self._own.update(written)
        return True

    def _new_definitions(self, reader: Reader, draft: Draft, host: str) -> dict[str, str]:
        """Of VMs that are on this host, those that the store does not have."""
        found = {}
        for domain in self._found.hosts[host]:
            vm, xml = inventory.vm_of(draft, self._found, domain), self._listed[host].definitions.get(domain.uuid, "")
            if vm and vm.host == host and 0 < len(xml) <= LONGEST_DEFINITION:
                found[vm.name] = xml
        stamps = reader.definitions.stamps(found)
        new = {name: xml for name, xml in found.items() if self._kept.get(name) != (xml, stamps.get(name))}
        stored = reader.definitions.of(new)
        self._kept |= {name: (xml, stamps[name]) for name, xml in stored.items() if new[name] == xml}
        return {name: xml for name, xml in new.items() if stored.get(name) != xml}


def _source(host: Host | None) -> tuple[str | None, str | None]:
    """Who tells what it has."""
    return (host.address, host.inventory) if host else (None, None)


def _end(reader: Reader) -> int:
    """Of the journal."""
    last = reader.journal.last()
    return last[0] if last else 0


def _load(reader: Reader, host: str, found: Inventory) -> World:
    """What `observe` needs."""
    here = [place.vm for place in reader.vms.placed_on([host], MOST_VMS)]
    alike = (domain for name in here for domain in found.with_name(name).values())
    # The same VM may be described differently elsewhere.
    near = {*found.near(host), *alike}
    drift = reader.drift.on(host)
    uuids, names = {domain.uuid for domain in near}, {domain.name for domain in near}
    owners = reader.vms.known_by(uuids)
    new = [domain for domain in near if domain.uuid not in owners]
    # Rules are for what is new. That one ignores it does not matter for a VM that the fleet has.
    facts = [domain.facts for domain in near] + [said for domain in new if (said := found.facts(host, domain))]
    groups = {said.group for said in facts if said.group is not None}
    strangers = {domain.name for domain in new}
    marks = {domain.operation for domain in near if domain.operation}
    concerned = {*names, *owners.values(), *(each.name for each in drift)}
    world = reader.worlds.load(
        hosts=[host],
        vms=concerned,
        operations={*reader.operations.moving_to(host), *marks},
        scopes={*map(fleet.group_key, groups), *map(fleet.standalone_key, strangers)},
        addresses={*uuids, *_canonical(address for said in facts for address in said.addresses or ())},
        members=True,
    )
    elsewhere = [vm.name for vm in world.vms.values() if vm.host != host and vm.name in concerned]
    drift += [each for some in reader.drift.of_vms(elsewhere).values() for each in some]
    world.drift.update({(each.host, each.name): each for each in drift})
    return world


def _canonical(addresses: Iterable[str]) -> Collection[str]:
    """What is no address is refused later."""
    found = []
    for address in addresses:
        with suppress(errors.RefusedError):
            found.append(fleet.require_syntax(address))
    return found
