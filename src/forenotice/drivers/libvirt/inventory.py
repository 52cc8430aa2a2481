"""What libvirt says of a host's domains: one call lists them all, and events tell when to list them again."""

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import libvirt

from forenotice.core import errors
from forenotice.core.fleet import MAX_ADDRESSES, ScopeKind
from forenotice.core.inventory import NO_FACTS, Domain, DomainFacts, DomainState, Listed
from forenotice.drivers.libvirt import domains
from forenotice.drivers.libvirt.connections import Call, Connections, number
from forenotice.runtime import Runtime

CONNECT_SECONDS, LIST_SECONDS = 2.0, 20.0
"""How long a host is waited for; a connection that takes longer is there the next time."""
READ_AGAIN = 600.0
"""Seconds after which a domain's XML is read again, in case an event was missed."""
ARRIVING = frozenset(
    {libvirt.VIR_DOMAIN_PAUSED_MIGRATION, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY}
)
"""Why a domain is paused that is being migrated, or has not begun to run. After post-copy it runs at its new host while
the former one still sends its memory."""
OFF = frozenset({libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_CRASHED})
MACHINE = re.compile(r"<host>\s*<uuid>([-0-9A-Fa-f]+)</uuid>")
YES_OR_NO = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a domain's persistent XML says, and when it was read."""

    facts: DomainFacts
    unreadable: str
    operation: str | None
    xml: str
    read_at: float


@dataclass(slots=True)
class _Host:
    uri: str
    described: dict[str, Described] = field(default_factory=dict)
    """By uuid."""
    changed: deque[str | None] = field(default_factory=deque)
    """Domains whose XML may have changed since; None: any."""
    machine: str | None = None
    """Its UUID; None: not asked for since the connection was made."""
    call: Call[Listed] | None = None
    deadline: float = 0.0
    given_up: bool = False
    """Nobody waits for the call any longer."""


class LibvirtInventory:
    """Of all hosts that are watched through libvirt."""

    def __init__(
        self,
        runtime: Runtime,
        connections: Connections,
        changed: Callable[[str], None],
        *,
        list_seconds: float = LIST_SECONDS,
        read_again: float = READ_AGAIN,
    ) -> None:
        """`changed` is called, in libvirt's thread, with the name of a host that is to be listed."""
        self._runtime, self._monotonic = runtime, runtime.monotonic
        self._list_seconds, self._read_again = list_seconds, read_again
        self._connections = connections
        self._changed = changed
        self._hosts: dict[str, _Host] = {}
        connections.watch(self._tell)

    def follow(self, hosts: Mapping[str, str]) -> None:
        """URIs by the names of hosts."""
        known = self._hosts
        self._hosts = {
            name: known[name] if name in known and known[name].uri == uri else _Host(uri) for name, uri in hosts.items()
        }
        for uri in {host.uri for host in known.values()} - set(hosts.values()):
            self._connections.drop(uri)

    def begin(self, name: str) -> None:
        host = self._hosts[name]
        # Another call would hang as well.
        if host.call is None or host.call.is_over():
            host.call, host.given_up = Call(self._runtime, lambda: self._ask(host)), False
            host.deadline = self._monotonic() + self._list_seconds

    def list(self, name: str) -> Listed:
        """ForenoticeError: it does not answer."""
        host = self._hosts[name]
        if host.call is None or host.given_up:
            # What it has answered since is old.
            self.begin(name)
        call = host.call
        assert call is not None
        if not call.is_over(host.deadline - self._monotonic()):
            host.given_up = True
            raise errors.UnavailableError(f"{host.uri} has not listed its domains for {self._list_seconds:g} s")
        host.call = None
        return call.result()

    def host_name(self, uri: str) -> str:
        """What a host calls itself."""
        name: str = self._connections.to(uri).ask(lambda link: link.getHostname())
        return name

    def close(self) -> None:
        """The connections are left to those who share them."""
        self._hosts = {}

    def _tell(self, uri: str, uuid: str | None) -> None:
        for name, host in self._hosts.items():
            if host.uri == uri:
                host.changed.append(uuid)
                self._changed(name)

    def _ask(self, host: _Host) -> Listed:
        return self._connections.to(host.uri).run(lambda link: self._read(link, host), CONNECT_SECONDS)

    def _read(self, link: Any, host: _Host) -> Listed:
        # What changes from now on is read the next time.
        for _ in range(len(host.changed)):
            uuid = host.changed.popleft()
            if uuid is None:
                host.described.clear()
                host.machine = None
            else:
                host.described.pop(uuid.lower(), None)
        if host.machine is None:
            host.machine = machine(link.getCapabilities())
        stats = link.getAllDomainStats(libvirt.VIR_DOMAIN_STATS_STATE)
        found, definitions = [], {}
        oldest = self._monotonic() - self._read_again
        for each, values in stats:
            uuid = each.UUIDString().lower()
            described = host.described.get(uuid)
            if described is None or described.read_at < oldest:
                described = self._describe(each)
                if described is None:
                    continue
                host.described[uuid] = described
            definitions[uuid] = described.xml
            found.append(
                Domain(
                    name=each.name(),
                    uuid=uuid,
                    state=state(values.get("state.state"), values.get("state.reason")),
                    facts=described.facts,
                    unreadable=described.unreadable,
                    operation=described.operation,
                )
            )
        for uuid in host.described.keys() - definitions.keys():
            del host.described[uuid]
        return Listed(domains=tuple(found), definitions=definitions, machine=host.machine)

    def _describe(self, domain: Any) -> Described | None:
        """None: it has just gone."""
        read_at = self._monotonic()
        try:
            xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
        except libvirt.libvirtError as error:
            if number(error) == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise
        return described(xml, read_at)


def machine(capabilities: str) -> str:
    """Its UUID, without which hosts cannot migrate to each other; libvirt's test driver has none."""
    found = MACHINE.search(capabilities)
    return found[1].lower() if found else ""


def state(state: int | None, reason: int | None) -> DomainState:
    if state in OFF:
        return DomainState.OFF
    if state == libvirt.VIR_DOMAIN_PAUSED and reason in ARRIVING:
        return DomainState.ARRIVING
    return DomainState.RUNNING


def described(xml: str, read_at: float) -> Described:
    try:
        parsed = domains.parse(xml)
        said, unreadable = NO_FACTS if parsed.vm is None else facts(parsed.vm), ""
    except errors.RefusedError as error:
        return Described(facts=NO_FACTS, unreadable=error.message, operation=None, xml=xml, read_at=read_at)
    operation = parsed.mark.operation if parsed.mark else None
    return Described(facts=said, unreadable=unreadable, operation=operation, xml=xml, read_at=read_at)


def facts(element: domains.VmElement) -> DomainFacts:
    """RefusedError: something in the operator's element is not what it should be."""
    kinds = [kind.value for kind in ScopeKind if kind is not ScopeKind.STANDALONE]
    if element.kind not in ("", *kinds):
        raise errors.RefusedError(f"kind={element.kind[:80]!r} is no kind of a group: write one of {', '.join(kinds)}")
    if element.spot not in ("", *YES_OR_NO):
        raise errors.RefusedError(f"spot={element.spot[:80]!r} is neither yes nor no")
    if len(element.addresses) > MAX_ADDRESSES:
        raise errors.RefusedError(f"it has {len(element.addresses)} addresses: write {MAX_ADDRESSES} at most")
    return DomainFacts(
        group=element.group or None,
        kind=ScopeKind(element.kind) if element.kind else None,
        update_domain=_number("update-domain", element.update_domain),
        fault_domain=_number("fault-domain", element.fault_domain),
        spot=YES_OR_NO[element.spot] if element.spot else None,
        addresses=element.addresses or None,
        size=_amount(element.size),
    )


def _number(name: str, text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise errors.RefusedError(f"{name}={text[:80]!r} is not a number: write one such as 0")
    return int(text)


def _amount(text: str) -> float | None:
    if not text:
        return None
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    # Not a number is not greater.
    if not amount >= 0 or len(text) > 20:
        raise errors.RefusedError(f"size={text[:80]!r} is not an amount: write one such as 4")
    return amount
