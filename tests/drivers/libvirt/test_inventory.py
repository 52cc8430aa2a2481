"""What libvirt says of a host's domains: listed in one call, read again when they change, and followed by a service."""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import libvirt
import pytest
from tests import needed
from tests.acceptance.running import until
from tests.service.rig import Rig

from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.fleet import ScopeKind
from forenotice.core.inventory import NO_FACTS, Domain, DomainFacts, DomainState, Listed
from forenotice.core.operations import Kind, Status
from forenotice.drivers.libvirt import inventory
from forenotice.drivers.libvirt.connections import Connections, UnreachableError
from forenotice.drivers.libvirt.domains import VM, VmElement
from forenotice.drivers.libvirt.inventory import LibvirtInventory
from forenotice.lab import hosts, packages
from forenotice.runtime import Runtime
from forenotice.service import queries
from forenotice.service.inventory import InventoryLoop, definition
from forenotice.store.database import Store

ELEMENT = '<vm group="web" update-domain="2" spot="yes"><address xmlns="{0}">10.0.0.4</address></vm>'
UUID = "00000000-0000-4000-8000-0000000000{:02x}"
SECONDS = 120
BOTH = libvirt.VIR_DOMAIN_AFFECT_LIVE | libvirt.VIR_DOMAIN_AFFECT_CONFIG
CONFIG = libvirt.VIR_DOMAIN_AFFECT_CONFIG


def domain_xml(name: str, number: int, *, kind: str = "test") -> str:
    return f"""<domain type='{kind}'><name>{name}</name><uuid>{UUID.format(number)}</uuid>
        <memory unit='MiB'>16</memory><os><type>hvm</type></os></domain>"""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A host of its own: `test:///default` is shared by all connections of a process."""
    (tmp_path / "node.xml").write_text(f"<node>{domain_xml('db', 1)}{domain_xml('web-0', 2)}</node>")
    return f"test://{tmp_path}/node.xml"


@pytest.fixture
def connections() -> Iterator[Connections]:
    made = Connections(Runtime())
    yield made
    made.close()


class Watched:
    def __init__(self, connections: Connections, uri: str, **limits: float) -> None:
        self.changed: list[str] = []
        self.inventory = LibvirtInventory(Runtime(), connections, self.changed.append, **limits)
        self.inventory.follow({"a": uri})
        self._do = connections.to(uri).ask

    def list(self) -> dict[str, Domain]:
        self.changed.clear()
        return {domain.name: domain for domain in self.inventory.list("a").domains}

    def do(self, name: str, what: Callable[[Any], object]) -> None:
        """To a domain, as somebody else would; the host is said to have changed."""
        self.changed.clear()
        self._do(lambda link: what(link.lookupByName(name)))
        until(lambda: "a" in self.changed)


@pytest.fixture
def watched(connections: Connections, uri: str) -> Watched:
    return Watched(connections, uri)


def test_domains_are_listed_with_what_they_say(watched: Watched) -> None:
    assert watched.list()["db"] == Domain(name="db", uuid=UUID.format(1), state=DomainState.RUNNING)
    watched.do("web-0", lambda each: each.destroy())
    assert watched.list()["web-0"].state is DomainState.OFF
    set_element = (libvirt.VIR_DOMAIN_METADATA_ELEMENT, ELEMENT.format(VM), "fn", VM)
    watched.do("db", lambda each: each.setMetadata(*set_element, BOTH))
    found = watched.list()["db"]
    assert found.facts == DomainFacts(group="web", update_domain=2, spot=True, addresses=("10.0.0.4",))
    listed = watched.inventory.list("a")
    assert "urn:forenotice:vm:1" in listed.definitions[UUID.format(1)]
    watched.do("web-0", lambda each: each.undefine())
    assert list(watched.list()) == ["db"]


@pytest.mark.parametrize(("read_again", "is_kept"), [(600.0, True), (-1.0, False)])
def test_the_xml_is_read_again_after_a_while(
    connections: Connections, uri: str, read_again: float, is_kept: bool
) -> None:
    watched = Watched(connections, uri, read_again=read_again)
    watched.list()
    kept, again = (watched.inventory.list("a").definitions for _ in range(2))
    assert kept == again
    assert {xml is kept[uuid] for uuid, xml in again.items()} == {is_kept}


def test_what_is_said_of_another_host_is_none_of_ours(watched: Watched, connections: Connections) -> None:
    watched.list()
    watched.changed.clear()
    other = LibvirtInventory(Runtime(), connections, watched.changed.append)
    other.follow({"b": "test:///default"})
    other.list("b")
    assert watched.changed == ["b"], "it has connected"
    assert "a" not in watched.changed
    other.follow({})
    assert other.host_name("test:///default")
    other.close()


def test_a_host_that_is_no_longer_watched_is_left(watched: Watched, connections: Connections, uri: str) -> None:
    watched.list()
    watched.inventory.follow({"b": uri})
    assert connections.to(uri).is_connected
    watched.inventory.follow({"b": "test:///default", "c": "nonsense"})
    until(lambda: not connections.to(uri).is_connected)
    watched.inventory.follow({})


def test_a_host_that_does_not_answer_says_why(connections: Connections, tmp_path: Path) -> None:
    watched = Watched(connections, f"qemu+unix:///system?socket={tmp_path}/nobody")
    with pytest.raises(UnreachableError, match="cannot be reached"):
        watched.list()
    watched.inventory.follow({"a": "nonsense"})
    with pytest.raises(errors.RefusedError, match="not a libvirt URI"):
        watched.list()


def test_a_list_that_hangs_is_given_up_and_goes_on_by_itself(connections: Connections, uri: str) -> None:
    watched = Watched(connections, uri, list_seconds=0.0)

    def refused() -> bool:
        try:
            watched.list()
        except errors.UnavailableError as error:
            return "has not listed its domains for 0 s" in error.message
        return False

    # Without any time it is rarely there.
    until(refused)
    assert set(Watched(connections, uri).list()) == {"db", "web-0"}


class Hanging(LibvirtInventory):
    """Its calls wait for the test."""

    def __init__(self, *given: Any, **limits: Any) -> None:
        super().__init__(*given, **limits)
        self.answer, self.calls = threading.Event(), 0

    def _read(self, link: Any, host: Any) -> Listed:
        self.calls += 1
        listed = super()._read(link, host)
        assert self.answer.wait(SECONDS)
        return listed


def test_a_list_that_hung_is_neither_waited_for_again_nor_believed(connections: Connections, uri: str) -> None:
    watched = Hanging(Runtime(), connections, lambda _: None, list_seconds=1.0)
    watched.follow({"a": uri})
    with pytest.raises(errors.UnavailableError, match="has not listed"):
        watched.list("a")
    until(lambda: watched.calls == 1)
    hung = watched._hosts["a"].call
    assert hung is not None
    begun = time.monotonic()
    for _ in range(20):
        with pytest.raises(errors.UnavailableError, match="has not listed"):
            watched.list("a")
    assert (time.monotonic() - begun < 20, watched.calls) == (True, 1)
    connections.to(uri).ask(lambda link: link.defineXML(domain_xml("new", 3)))
    watched.answer.set()
    assert hung.is_over(SECONDS)
    watched._list_seconds = SECONDS
    assert {domain.name for domain in watched.list("a").domains} == {"db", "web-0", "new"}


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        (libvirt.VIR_DOMAIN_RUNNING, 1, DomainState.RUNNING),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER, DomainState.RUNNING),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION, DomainState.ARRIVING),
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY, DomainState.ARRIVING),
        (libvirt.VIR_DOMAIN_SHUTOFF, 1, DomainState.OFF),
        (libvirt.VIR_DOMAIN_CRASHED, 1, DomainState.OFF),
    ],
)
def test_states(state: int, reason: int, told: DomainState) -> None:
    assert inventory.state(state, reason) is told


@pytest.mark.parametrize(
    ("element", "said"),
    [
        (VmElement(kind="standalone"), "kind='standalone' is no kind of a group"),
        (VmElement(spot="true"), "spot='true' is neither yes nor no"),
        (VmElement(update_domain="-1"), "update-domain='-1' is not a number"),
        (VmElement(fault_domain="²"), "fault-domain='²' is not a number"),
        (VmElement(size="nan"), "size='nan' is not an amount"),
        (VmElement(size="big"), "size='big' is not an amount"),
        (VmElement(addresses=("10.0.0.4",) * 65), "it has 65 addresses: write 64 at most"),
    ],
)
def test_what_an_operator_has_written_wrongly(element: VmElement, said: str) -> None:
    with pytest.raises(errors.RefusedError, match=said):
        inventory.facts(element)


def test_what_an_operator_has_written() -> None:
    element = VmElement(group="web", kind="cloud-service", update_domain="1", fault_domain="0", spot="no", size="2.5")
    assert inventory.facts(element) == DomainFacts(
        group="web", kind=ScopeKind.CLOUD_SERVICE, update_domain=1, fault_domain=0, spot=False, size=2.5
    )
    assert inventory.facts(VmElement()) == NO_FACTS


def test_a_description_that_cannot_be_read_says_so(watched: Watched) -> None:
    wrong = (libvirt.VIR_DOMAIN_METADATA_ELEMENT, '<vm spot="perhaps"/>', "fn", VM, BOTH)
    watched.list()
    watched.do("db", lambda each: each.setMetadata(*wrong))
    assert watched.list()["db"].unreadable == "spot='perhaps' is neither yes nor no"
    assert inventory.described("<not a domain", 0.0).unreadable


# A service that follows real hosts


@contextmanager
def following(store: Store, connections: Connections, **uris: str) -> Iterator[Rig]:
    rig = Rig(store, clock=SystemClock())
    loop = InventoryLoop(rig.service, partial(LibvirtInventory, rig.service.runtime, connections))
    for name, uri in uris.items():
        rig.add_host(name, inventory="libvirt", address=uri)
    loop.start()
    try:
        yield rig
    finally:
        loop.stop()


def is_so(condition: Callable[[], bool], what: str) -> None:
    until(condition, seconds=SECONDS, what=what)


def vms(rig: Rig) -> dict[str, str]:
    return {vm.name: vm.host for vm in queries.vms(rig.service).items}


def drift(rig: Rig) -> list[tuple[str, str, str]]:
    return [(each.host, each.name, each.kind) for each in queries.drift(rig.service).items]


def test_a_service_follows_what_happens_on_a_host(store: Store, connections: Connections, uri: str) -> None:
    with following(store, connections, a=uri) as rig:
        is_so(lambda: vms(rig) == {"db": "a", "web-0": "a"}, "both are added")
        do = connections.to(uri).ask
        do(lambda link: link.defineXML(domain_xml("new", 3)))
        is_so(lambda: "new" in vms(rig), "a domain that is defined is added")
        do(lambda link: link.lookupByName("new").undefine())
        is_so(lambda: drift(rig) == [("a", "new", "missing")], "a domain that is gone is missing")


@pytest.fixture
def pair() -> Iterator[tuple[hosts.Host, hosts.Host]]:
    needed.require(packages.require)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fn-")))
        one = stack.enter_context(hosts.Host.start("host-a", place / "a", number=1, cache=place / "c", bound=True))
        started = hosts.Host.start("host-b", place / "b", number=2, cache=place / "c", beside=one, bound=True)
        other = stack.enter_context(started)
        hosts.connect(one, other)
        yield one, other


def test_a_service_follows_real_hosts(
    store: Store, connections: Connections, pair: tuple[hosts.Host, hosts.Host]
) -> None:
    """Somebody else defines a domain, starts, describes and moves it, ends and removes it."""
    one, other = pair
    somebody = Connections(Runtime())
    on_a, on_b = somebody.to(one.uri).ask, somebody.to(other.uri).ask
    with following(store, connections, a=one.uri, b=other.uri) as rig, ExitStack() as ending:
        ending.callback(somebody.close)
        on_a(lambda link: link.defineXML(domain_xml("web-0", 1, kind="qemu")))
        is_so(lambda: vms(rig) == {"web-0": "a"}, "it is added")
        on_a(lambda link: link.lookupByName("web-0").create(), 60)
        set_element = (libvirt.VIR_DOMAIN_METADATA_ELEMENT, ELEMENT.format(VM), "fn", VM)
        on_a(lambda link: link.lookupByName("web-0").setMetadata(*set_element, BOTH))
        is_so(lambda: rig.vm("web-0").group == "web", "its description is followed")
        assert "10.0.0.4" in (definition(rig.service, "web-0") or "")
        [operation] = rig.schedule(Kind.HOST_UPDATE, "a")

        # Moved alive between announcement and start.
        flags = libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
        on_b(lambda there: on_a(lambda here: here.lookupByName("web-0").migrate3(there, {}, flags), 60), 90)
        is_so(lambda: vms(rig) == {"web-0": "b"}, "it is moved")
        assert rig.operation(operation).status is Status.CANCELED
        assert rig.actions(vm="web-0", action="vm.") == ["vm.added", "vm.changed", "vm.left", "vm.moved"]
        assert drift(rig) == []

        # By mistake both have the address of one.
        rig.set_host("a", address=other.uri)
        is_so(lambda: len(rig.service.silent) == 2, "both are silent")
        assert "a and b are the same machine" in (queries.host(rig.service, "a").silent_because or "")
        rig.set_host("a", address=one.uri)
        is_so(lambda: not rig.service.silent, "both answer")
        assert (vms(rig), drift(rig)) == ({"web-0": "b"}, [])

        command = [sys.executable, "-m", "forenotice", "fleet", "discover", f"x={one.uri}", f"y={one.uri}"]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert "x and y are the same machine" in ran.stderr

        # libvirtd is killed: its guests live on, and nothing is marked.
        other.kill_libvirtd()
        is_so(lambda: queries.host(rig.service, "b").silent_since is not None, "the host is silent")
        assert (vms(rig), drift(rig)) == ({"web-0": "b"}, [])
        other.restart_libvirtd()
        is_so(lambda: queries.host(rig.service, "b").silent_since is None, "the host answers again")
        assert (vms(rig), drift(rig)) == ({"web-0": "b"}, [])

        def end(link: Any) -> None:
            link.lookupByName("web-0").destroy()
            link.lookupByName("web-0").undefine()

        is_so(lambda: _answers(on_b), "libvirtd takes connections")
        on_b(end, 60)
        is_so(lambda: drift(rig) == [("b", "web-0", "missing")], "it is missing")
        rig.remove_vm("web-0")
        assert (vms(rig), drift(rig)) == ({}, [])


def _answers(ask: Callable[[Callable[[Any], object]], object]) -> bool:
    try:
        ask(lambda link: link.listAllDomains())
    except UnreachableError:
        return False
    return True
