"""Agents that report their readiness to each other, over real sockets; signatures and addresses."""

import contextlib
import io
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.acceptance.running import Said, ask, until
from tests.agent.parts import RUNTIME, context, logged, secret_file

from forenotice.agent import listener, peers
from forenotice.agent.config import READY_PATH, ConfigError
from forenotice.agent.config import Peers as PeersConfig
from forenotice.agent.context import Context
from forenotice.agent.listener import Listener, Request, Response
from forenotice.agent.peers import HEADER, WINDOW, Link, Message, Order, Pace, Peers, Readiness, Signer
from forenotice.client import http

HOST = "127.0.0.1"
EVENT = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
NOON = datetime(2026, 3, 9, 12, 0, 0, tzinfo=UTC)
SECRET = b"correct horse battery staple"
QUICK = Pace(first=0.02, longest=0.1, again=60, timeout=2)
NOT_SENT = "no message sent yet"


@dataclass
class Vm:
    """One agent's exchange, behind a listener of its own."""

    name: str
    secret: Path
    now: datetime = NOON
    pace: Pace = QUICK
    acts_for: Sequence[str] = ()
    port: int = 8256
    secrets: dict[str, str] = field(default_factory=dict)
    written: io.StringIO = field(default_factory=io.StringIO)
    known: list[tuple[str, str, datetime | None]] = field(default_factory=list)
    context: Context = field(init=False)
    config: PeersConfig = field(init=False)
    peers: Peers = field(init=False)
    listener: Listener = field(init=False)

    def __post_init__(self) -> None:
        self.context = context(self.written)

    @property
    def counts(self) -> dict[str, str]:
        """Of messages, by result."""
        return dict(re.findall(r'peer_messages_total{result="(\w+)"} ([1-9]\S*)', self.context.metrics.render()))

    def start(self, port: int = 0) -> "Vm":
        # The routes are known only when all have their ports.
        self.listener = Listener(HOST, port, {("POST", READY_PATH): self.receive}, RUNTIME)
        self.listener.start()
        return self

    def meet(self, **addresses: str) -> None:
        self.config = PeersConfig(
            secret_file=str(self.secret), secret_files=self.secrets, addresses=addresses, port=self.port
        )
        self.peers = Peers(
            self.config,
            (self.name, *self.acts_for),
            lambda *readiness: self.known.append(readiness),
            lambda: self.now,
            self.context,
            pace=self.pace,
        )

    def receive(self, request: Request) -> Response:
        return self.peers.receive(request)

    def announce(self, *resources: str, ready_at: datetime | None = NOON) -> None:
        self.peers.announce({EVENT: (resources or ("alice", "bob"), ready_at)})

    @property
    def unacknowledged(self) -> dict[str, str]:
        return dict(self.peers.unacknowledged(EVENT))

    def why(self, name: str = "bob") -> str:
        """Why that peer has not acknowledged the first message."""
        self.announce()
        until(lambda: self.unacknowledged[name] != NOT_SENT)
        return self.unacknowledged[name]

    @property
    def place(self) -> str:
        return "{}:{}".format(*self.listener.address)

    def senders(self) -> set[str]:
        return {name for _, name, _ in self.known}

    def close(self) -> None:
        self.peers.close()
        self.listener.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return secret_file(tmp_path / "secret", SECRET + b"\n")


Fleet = Callable[..., list[Vm]]


@pytest.fixture
def fleet(secret: Path) -> Iterator[Fleet]:
    made: list[Vm] = []

    def make(*names: str, **how: Any) -> list[Vm]:
        vms = [Vm(name, secret, **how).start() for name in names]
        for vm in vms:
            vm.meet(**{other.name: other.place for other in vms})
        made.extend(vms)
        return vms

    yield make
    for vm in made:
        vm.close()
    until(lambda: not threads())


@pytest.fixture
def alice(fleet: Fleet) -> Vm:
    return fleet("alice", "bob")[0]


@pytest.fixture
def bob(fleet: Fleet) -> Vm:
    (vm,) = fleet("bob")
    return vm


@pytest.fixture
def pair(fleet: Fleet) -> list[Vm]:
    return fleet("alice", "bob")


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("peers")]


def closed_port() -> str:
    with socket.create_server((HOST, 0)) as server:
        return f"{HOST}:{server.getsockname()[1]}"


@contextmanager
def listening(respond: Callable[[Request], Response], host: str = HOST) -> Iterator[str]:
    """The address at which another responds in a peer's place."""
    made = Listener(host, 0, {("POST", READY_PATH): respond}, RUNTIME)
    made.start()
    try:
        yield "{}:{}".format(*made.address)
    finally:
        made.close()


@contextmanager
def silent() -> Iterator[tuple[socket.socket, str]]:
    """A server that accepts connections, and sends nothing."""
    with socket.create_server((HOST, 0), backlog=64) as server:
        server.settimeout(5)
        yield server, "{}:{}".format(*server.getsockname())


# Sending


def test_three_agents_report_to_each_other(fleet: Fleet) -> None:
    vms = fleet("web-0", "web-1", "web-2")
    names = [vm.name for vm in vms]
    for vm in vms:
        vm.announce(*names, ready_at=NOON - timedelta(seconds=3))
    until(lambda: all(vm.senders() == set(names) - {vm.name} for vm in vms))
    until(lambda: not any(vm.unacknowledged for vm in vms))
    for vm in vms:
        assert {(event, ready_at) for event, _, ready_at in vm.known} == {(EVENT, NOON - timedelta(seconds=3))}
        assert vm.counts == {"sent": "2.0", "received": "2.0"}


@pytest.mark.parametrize("ready_at", [NOON, None])
def test_a_dead_agent_does_not_keep_a_message_from_others_and_gets_it_when_it_lives(
    pair: list[Vm], secret: Path, ready_at: datetime | None
) -> None:
    alice, bob = pair
    dead = closed_port()
    alice.meet(bob=bob.place, carol=dead)
    alice.announce("alice", "bob", "carol", ready_at=ready_at)
    until(lambda: bob.senders() == {"alice"})
    until(lambda: set(alice.unacknowledged) == {"carol"} and "refused" in alice.unacknowledged["carol"])
    carol = Vm("carol", secret)
    carol.meet()
    with contextlib.closing(carol.start(int(dead.rpartition(":")[2]))):
        until(lambda: carol.known == [(EVENT, "alice", ready_at)] and not alice.unacknowledged)
    assert "failed" in alice.counts


def test_a_peer_that_has_acknowledged_gets_the_message_again_until_it_is_withdrawn(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob", pace=Pace(again=0.02, timeout=2))
    alice.announce()
    until(lambda: len(bob.known) >= 4)
    alice.peers.announce({})
    until(lambda: not threads())
    assert (alice.unacknowledged, set(bob.known)) == ({}, {(EVENT, "alice", NOON)})


def test_only_news_is_sent_at_once(pair: list[Vm]) -> None:
    alice, bob = pair
    for _ in range(5):
        alice.announce()
        until(lambda: not alice.unacknowledged)
    assert len(bob.known) == 1
    alice.announce(ready_at=NOON - timedelta(seconds=1))
    until(lambda: len(bob.known) == 2)
    alice.announce(ready_at=None)
    until(lambda: bob.known[2:] == [(EVENT, "alice", None)] and not alice.unacknowledged)


def test_a_peer_that_begins_anew_learns_at_once_which_others_are_ready(pair: list[Vm]) -> None:
    alice, bob = pair
    alice.announce()
    until(lambda: len(bob.known) == 1 and not alice.unacknowledged)
    bob.announce(ready_at=None)
    until(lambda: bob.known == [(EVENT, "alice", NOON)] * 2)


def test_peers_that_are_not_ready_do_not_remind_each_other(pair: list[Vm]) -> None:
    alice, bob = pair
    for vm in pair:
        vm.announce(ready_at=None)
    until(lambda: not alice.unacknowledged and not bob.unacknowledged)
    alice.peers.announce({EVENT: (("alice", "bob"), None), "LATER": (("alice", "bob"), NOON)})
    until(lambda: ("LATER", "alice", NOON) in bob.known)
    assert (len(alice.known), len(bob.known)) == (1, 2)


def test_messages_go_to_all_other_vms_of_an_event_for_all_that_the_agent_acts_for(pair: list[Vm]) -> None:
    alice, bob = pair
    alice.acts_for = ("router",)
    alice.meet(_BOB=bob.place, switch=closed_port())
    alice.announce("_alice", "Bob", "router", "switch")
    until(lambda: bob.senders() == {"_alice", "router"})
    until(lambda: set(alice.unacknowledged) == {"switch"})
    alice.announce("_alice", "Bob")
    assert alice.unacknowledged.keys() <= {"Bob"}, "a name that left the event gets no messages"


def test_a_lone_vm_needs_no_thread_and_after_the_end_nothing_is_sent(pair: list[Vm]) -> None:
    alice, bob = pair
    alice.announce("ALICE")
    alice.announce("bob", "carol")  # not about us at all
    assert (alice.unacknowledged, threads()) == ({}, [])
    alice.peers.close()
    alice.announce()
    assert (alice.unacknowledged, bob.known) == ({}, [])


def test_without_an_address_the_name_is_a_host_name(fleet: Fleet) -> None:
    alice, local = fleet("alice", "localhost")
    alice.port = local.listener.address[1]
    alice.meet()
    alice.announce("alice", "_localhost")
    until(lambda: local.senders() == {"alice"})


def test_the_pauses_between_attempts_grow(fleet: Fleet) -> None:
    moments: list[float] = []

    def refuse(_: Request) -> Response:
        moments.append(time.monotonic())
        return Response.text("no", 503)

    (alice,) = fleet("alice", pace=Pace(first=0.05, longest=0.2, timeout=2))
    with listening(refuse) as place:
        alice.meet(bob=place)
        alice.announce()
        until(lambda: len(moments) >= 6)
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2, 0.2), strict=False))
        assert min(pauses[3:]) < 0.4, "they grow without end"
        assert "answered 503" in alice.unacknowledged["bob"]


def test_peers_that_never_respond_do_not_hold_up_the_others(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob", pace=Pace(first=0.02, timeout=0.2, concurrent=3))
    names = [f"silent-{number}" for number in range(6)]
    most = 0

    def received() -> bool:
        nonlocal most
        most = max(most, sum(thread.name == "peers-delivery" for thread in threading.enumerate()))
        return bool(bob.known)

    with silent() as (_, place):
        alice.meet(bob=bob.place, **dict.fromkeys(names, place))
        alice.announce("alice", *names, "bob")
        until(received)
        assert most == 3
        assert alice.unacknowledged.keys() >= set(names)
        alice.peers.close()


def test_the_end_does_not_wait_for_a_response_and_the_secret_is_never_sent(fleet: Fleet) -> None:
    (alice,) = fleet("alice", pace=Pace(timeout=60))
    with silent() as (server, place):
        alice.meet(bob=place)
        alice.announce()
        connected, _ = server.accept()
        with connected:
            sent = connected.recv(65536)
            alice.peers.close()
            until(lambda: not threads())
    assert EVENT.encode() in sent
    assert SECRET not in sent
    assert SECRET.decode() not in repr(vars(alice.peers))


@pytest.mark.parametrize("name", ["a\0b", "é" * 100, "x" * 300, ".."])
def test_a_name_that_is_no_host_name_gets_no_message(pair: list[Vm], name: str) -> None:
    alice, bob = pair
    alice.announce("alice", name, "bob")
    until(lambda: bob.senders() == {"alice"})
    until(lambda: alice.unacknowledged.get(name, NOT_SENT) != NOT_SENT)


# Receiving


def message(*, sender: str = "alice", receiver: str = "bob", sent_at: datetime = NOON, **changes: object) -> Message:
    readiness = Readiness(event_id=EVENT, resources=(sender, receiver), ready_at=NOON)
    readiness = msgspec.structs.replace(readiness, **changes)
    return Message(sender=sender, receiver=receiver, sent_at=sent_at, readiness=readiness)


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def send(vm: Vm, sent: Message, *, body: bytes | None = None, signature: str | None = None) -> Said:
    body = msgspec.json.encode(sent) if body is None else body
    return ask(vm.place, "POST", READY_PATH, body, {HEADER: signature or Signer(SECRET).sign(sent, body)})


@pytest.mark.parametrize(("seconds", "status"), [(59, 200), (-59, 200), (62, 403), (-62, 403), (10**9, 403)])
def test_a_message_is_good_for_a_minute_on_both_sides(bob: Vm, seconds: int, status: int) -> None:
    response = send(bob, message(sent_at=later(-seconds)))
    assert (response.status, bool(bob.known)) == (status, status == 200)
    if status != 200:
        assert response.json == {"error": f"our clocks differ by {abs(seconds)} s, and may by 60"}


GOOD = msgspec.json.encode(message())


def changed(**changes: object) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(message()), **changes})


@pytest.mark.parametrize(
    ("body", "signature"),
    [
        (None, " "),
        (None, "v2="),
        (None, "nonsense"),
        (None, "v2=" + "0" * 64),
        (None, Signer(SECRET).sign(message(), msgspec.json.encode(message(ready_at=None)))),
        (None, Signer(SECRET).sign(message(sender="carol"), GOOD)),
        (None, Signer(SECRET).sign(message(receiver="carol"), GOOD)),
        (None, Signer(SECRET).sign(message(), GOOD).upper()),
        (None, Signer(SECRET).sign(message(), GOOD).replace("v2", "v1")),
        (b"", None),
        (b"[]", None),
        (b"\xff", None),
        (changed(sent_at="2026-03-09T12:00:00"), None),
        (changed(sender=""), None),
        (changed(readiness={"event_id": ""}), None),
    ],
)
def test_a_message_without_a_valid_signature_changes_nothing(
    bob: Vm, body: bytes | None, signature: str | None
) -> None:
    response = send(bob, message(), body=body, signature=signature)
    assert (response.status, response.json) == (401, {"error": "invalid signature"})
    assert (bob.known, bob.counts) == ([], {"refused": "1.0"})
    (line,) = logged(bob.written, "peer.refused")
    assert (line["source"], "peer" in line) == (HOST, False)


@pytest.mark.parametrize(
    ("sent", "flaw"),
    [
        (message(sender="mallory", resources=("alice", "bob")), "the event's Resources do not name both VMs"),
        (message(resources=("alice",)), "the event's Resources do not name both VMs"),
        (message(sender="bob"), "this agent itself acts for bob"),
        (message(sender="_BOB"), "this agent itself acts for _BOB"),
        # A message that was recorded on the network is not valid for other receivers.
        (message(receiver="carol"), "this agent acts for bob, and not for carol"),
    ],
)
def test_a_signed_message_must_still_make_sense(bob: Vm, sent: Message, flaw: str) -> None:
    response = send(bob, sent)
    assert (response.status, response.json) == (403, {"error": flaw})
    assert (bob.known, bob.counts) == ([], {"refused": "1.0"})


def test_no_vm_sends_from_an_address_that_is_not_its_own(bob: Vm) -> None:
    """Although it has the secret, as all of them have."""
    bob.meet(alice="127.0.0.7:8256", carol=f"{HOST}:1", dave="no..name:1")
    response = send(bob, message())
    assert (response.status, response.json["error"]) == (
        403,
        "this came from 127.0.0.1, and [peers] has 127.0.0.7 for alice",
    )
    assert send(bob, message(sender="carol")).status == 200
    assert bob.senders() == {"carol"}
    response = send(bob, message(sender="dave"))
    assert response.json["error"] == "no..name, the address of dave in [peers], cannot be resolved"
    assert [line["peer"] for line in logged(bob.written, "peer.refused")] == ["alice", "dave"]


@pytest.mark.parametrize(
    ("listen", "own", "known", "accepted"),
    [
        ("127.0.0.7:1", {}, {"alice": "127.0.0.7:8256"}, True),
        ("0.0.0.0:1", {"alice": "127.0.0.7:1"}, {"alice": "127.0.0.7:8256"}, True),
        ("", {}, {"alice": "127.0.0.7:8256"}, False),
        # Behind address translation, an address is not of this machine.
        ("", {"alice": "192.0.2.1:8256"}, {}, True),
    ],
)
def test_a_vm_with_several_addresses_sends_from_the_one_that_others_know(
    pair: list[Vm], listen: str, own: dict[str, str], known: dict[str, str], accepted: bool
) -> None:
    alice, bob = pair
    bob.meet(**known)
    alice.meet(bob=bob.place, **own)
    flaw = "refused: this came from 127.0.0.1, and [peers] has 127.0.0.7 for alice"
    assert peers.attempt(alice.config, "alice", "bob", NOON, listen) == (bob.place, "" if accepted else flaw)


def test_a_secret_of_its_own_binds_a_name_whatever_address_it_sends_from(pair: list[Vm], tmp_path: Path) -> None:
    own = str(secret_file(tmp_path / "own", "only of alice and bob"))
    alice, bob = pair
    bob.secrets = {"Alice": own}
    bob.meet()
    assert send(bob, message()).status == 401, "the common secret does not make it alice"
    assert send(bob, message(sender="carol")).status == 200
    alice.secrets = {"bob": own}
    alice.meet(bob=bob.place)
    alice.announce()
    until(lambda: bob.senders() == {"alice", "carol"} and not alice.unacknowledged)


def test_fields_of_later_versions_are_ignored_and_moments_are_in_utc_and_not_in_the_future(bob: Vm) -> None:
    early = (NOON - timedelta(seconds=5)).astimezone(timezone(timedelta(hours=-7)))
    sent = message(event_id=EVENT.lower(), ready_at=NOON + timedelta(days=1))
    assert send(bob, sent, body=msgspec.json.encode({**msgspec.to_builtins(sent), "mood": "fine"})).status == 200
    assert send(bob, message(ready_at=early)).status == 200
    assert bob.known == [(EVENT, "alice", NOON), (EVENT, "alice", early)]
    assert bob.known[1][2] is not None
    assert bob.known[1][2].tzinfo is UTC


def test_the_latest_message_counts_in_whichever_order_they_arrive(bob: Vm) -> None:
    accepted = [
        message(ready_at=None, sent_at=later(2)),
        message(sent_at=later(1)),  # overtaken
        message(sender="ALICE", sent_at=later(1.9)),  # another spelling makes no other VM
        message(event_id="another", sent_at=later(1)),
        message(sender="carol", sent_at=later(1)),
        message(sent_at=later(3)),
    ]
    assert [send(bob, sent).status for sent in accepted] == [200] * 6
    assert bob.known == [
        (EVENT, "alice", None),
        ("ANOTHER", "alice", NOON),
        (EVENT, "carol", NOON),
        (EVENT, "alice", NOON),
    ]


def test_the_order_is_known_for_as_long_as_a_message_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    order, second = Order(), timedelta(seconds=1)
    assert order.is_latest(EVENT, "alice", NOON, NOON)
    assert not order.is_latest(EVENT, "alice", NOON - second, NOON + WINDOW)
    assert order.is_latest(EVENT, "bob", NOON, NOON + WINDOW + second)
    assert len(order._received) == 1
    monkeypatch.setattr(peers, "MOST_RECEIVED", 2)
    order = Order()
    assert all(order.is_latest(EVENT, name, NOON, NOON) for name in ("a", "b", "c"))
    assert not order.is_latest(EVENT, "a", NOON - second, NOON)
    assert len(order._received) == 2


def test_the_next_message_is_later_also_when_the_clock_was_set_back_a_little() -> None:
    order = Order()
    first, second = order.stamp(NOON), order.stamp(later(-1))
    assert first == NOON < second < later(1)
    # By much, others would not accept it.
    assert order.stamp(NOON - timedelta(hours=1)) == NOON - timedelta(hours=1)


def test_a_message_of_any_number_of_vms_fits_and_a_huge_one_is_refused(bob: Vm) -> None:
    names = tuple(f"{number:064}" for number in range(100))
    assert send(bob, message(resources=(*names, "alice", "bob"))).status == 200
    assert send(bob, message(resources=("x" * 20_000,))).status == 413


# Why a peer has not acknowledged


def test_another_secret_is_refused_and_the_sender_can_see_why(pair: list[Vm], tmp_path: Path) -> None:
    alice, bob = pair
    alice.secret = secret_file(tmp_path / "other", "quite another secret")
    alice.meet(bob=bob.place)
    why = f"wrong secret: {bob.place} has another one than this VM, or another version of the agent"
    assert alice.why() == why
    assert not bob.known
    assert "quite" not in alice.written.getvalue() + bob.written.getvalue()
    assert until(lambda: logged(alice.written, "peer.failed"))[0]["peer"] == "bob"
    # Once the secret is right, it is over.
    alice.peers.close()
    alice.secret.write_bytes(SECRET)
    alice.meet(bob=bob.place)
    alice.announce()
    until(lambda: not alice.unacknowledged)


def test_the_reason_tells_what_is_wrong_until_the_next_attempt(fleet: Fleet) -> None:
    (alice,) = fleet("alice", pace=Pace(timeout=0.1))
    with silent() as (_, place):
        alice.meet(bob=place)
        assert alice.why() == "slow: no answer within 0.1 s"
        alice.peers.close()
    with silent() as (rude, place):
        alice.meet(bob=place)
        alice.announce()
        rude.accept()[0].close()
        assert alice.why().startswith("no answer: ")
        alice.peers.close()
    with listening(lambda _: Response.text("welcome to nginx")) as place:
        alice.meet(bob=place)
        assert "does not prove to be from bob" in alice.why()
        alice.peers.close()
    alice.meet(bob=closed_port())
    assert alice.why() == "unreachable: Connection refused"
    alice.announce(ready_at=None)
    assert alice.unacknowledged["bob"] == "unreachable: Connection refused"


def test_a_peer_whose_messages_are_refused_here_is_named_here_too(pair: list[Vm]) -> None:
    alice, bob = pair
    with listening(alice.receive, "127.0.0.7") as elsewhere:
        alice.meet(bob=bob.place)
        bob.meet(alice=elsewhere)
        flaw = "this came from 127.0.0.1, and [peers] has 127.0.0.7 for alice"
        assert alice.why() == f"refused: {flaw}"
        bob.announce()
        until(lambda: alice.senders() == {"bob"})
        until(lambda: bob.unacknowledged == {"alice": f"refused here: {flaw}"})
        alice.peers.close()
        assert peers.attempt(alice.config, "alice", "bob", NOON, "127.0.0.7:1") == (bob.place, "")
        until(lambda: not bob.unacknowledged)


def test_an_acknowledgement_is_for_one_message_only(pair: list[Vm]) -> None:
    """Recorded, it cannot be used to keep the next message from its receiver."""
    alice, bob = pair
    kept: list[Response] = []

    def repeat(request: Request) -> Response:
        kept.append(bob.receive(request) if not kept else kept[0])
        return kept[-1]

    with listening(repeat) as between:
        alice.meet(bob=between)
        alice.announce()
        until(lambda: not alice.unacknowledged)
        alice.announce(ready_at=None)
        until(lambda: alice.unacknowledged.get("bob", "").startswith("wrong signature: "))
        assert bob.known == [(EVENT, "alice", NOON)]


def test_a_peer_can_be_tried_without_a_report(pair: list[Vm]) -> None:
    alice, bob = pair
    assert peers.attempt(alice.config, "alice", "bob", NOON) == (bob.place, "")
    _, why = peers.attempt(alice.config, "alice", "BOB", later(90))
    assert why == "refused: our clocks differ by 90 s, and may by 60"
    bob.close()
    assert peers.attempt(alice.config, "alice", "bob", NOON)[1] == "unreachable: Connection refused"
    assert peers.attempt(alice.config, "alice", "a\0b", NOON)[1].startswith("unreachable: ")
    assert not bob.known


# Secrets, signatures and addresses


@pytest.mark.parametrize("content", [b"", b" " * 40, b"fifteen letters", None])
def test_a_secret_that_cannot_be_used_is_refused_without_being_shown(
    tmp_path: Path, secret: Path, content: bytes | None
) -> None:
    path = tmp_path / "short"
    if content is not None:
        secret_file(path, content)
    for config in (
        PeersConfig(secret_file=str(path)),
        PeersConfig(secret_file=str(secret), secret_files={"bob": str(path)}),
    ):
        said = "too short" if content is not None else "cannot be read: no such file"
        with pytest.raises(ConfigError, match=said) as refused:
            Signer.read(config)
        assert "fifteen" not in refused.value.message


NAMES = st.text(min_size=1, max_size=8)


def check(sender: str, receiver: str) -> Message:
    return Message(sender=sender, receiver=receiver, sent_at=NOON, readiness=None)


def request(signature: str, body: bytes, *, method: str = "POST", path: str = READY_PATH) -> Request:
    return Request(method=method, path=path, headers={HEADER.lower(): signature}, body=body)


def received(response: listener.Response) -> http.Response:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return http.Response(status=response.status, reason="", headers=headers, body=response.body)


@settings(max_examples=50)
@given(sender=NAMES, receiver=NAMES, other=NAMES, body=st.binary(max_size=99), secret=st.binary(min_size=16))
def test_a_signature_is_valid_for_what_it_was_made_for_and_for_nothing_else(
    sender: str, receiver: str, other: str, body: bytes, secret: bytes
) -> None:
    signer, sent = Signer(secret), check(sender, receiver)
    signature = signer.sign(sent, body)
    assert signer.is_valid(request(signature, body), sent)
    assert not signer.is_valid(request(signature, body + b"x"), sent)
    assert not signer.is_valid(request(signature, body, method="PUT"), sent)
    assert not signer.is_valid(request(signature, body, path="/peers/other"), sent)
    assert not signer.is_valid(request("é", body), sent)
    assert not Signer(secret + b"x").is_valid(request(signature, body), sent)
    if other.removeprefix("_").lower() != sender.removeprefix("_").lower():
        assert not signer.is_valid(request(signature, body), check(other, receiver))
    if other.removeprefix("_").lower() != receiver.removeprefix("_").lower():
        assert not signer.is_valid(request(signature, body), check(sender, other))


def test_a_response_is_valid_for_one_request_and_comes_from_its_receiver() -> None:
    signer, sent = Signer(SECRET), check("alice", "bob")
    signature = signer.sign(sent, b"{}")
    response = signer.sign_response(Response.text("yes"), sent, request(signature, b"{}"))
    assert signer.is_valid_response(received(response), sent, signature)
    assert not signer.is_valid_response(received(response), sent, signer.sign(sent, b"[]"))
    forged = [
        Response(status=403, headers=response.headers, body=response.body),
        Response.text("yes"),
        Response(status=200, headers={HEADER: signature}, body=b"{}"),  # reflected
    ]
    assert not any(signer.is_valid_response(received(each), sent, signature) for each in forged)


def link(secret: Path, listen: str = "", **addresses: str) -> Link:
    return Link(PeersConfig(secret_file=str(secret), addresses=addresses), "web-0", listen)


@pytest.mark.parametrize(
    ("address", "source", "accepted"),
    [
        ("10.0.0.5:8256", "10.0.0.5", True),
        ("10.0.0.5:8256", "::ffff:10.0.0.5", True),
        ("10.0.0.5:8256", "10.0.0.6", False),
        ("[fe80::1]:8256", "fe80::1%eth0", True),
        ("[fd00::0:1]:8256", "fd00::1", True),
        ("[fd00::1]:8256", "fd00::2", False),
        ("localhost:8256", "127.0.0.1", True),
    ],
)
def test_a_vm_sends_from_its_address(secret: Path, address: str, source: str, accepted: bool) -> None:
    known = link(secret, web_1=address)
    assert (known.flaw("_WEB_1", source) == "") == accepted
    assert known.flaw("web-2", source) == ""


@pytest.mark.parametrize(
    ("listen", "own", "source"),
    [
        ("10.0.0.5:8256", "", "10.0.0.5"),
        ("[fd00::5]:8256", "", "fd00::5"),
        ("0.0.0.0:8256", "", ""),
        ("[::]:8256", "", ""),
        ("web-0.example:8256", "", ""),
        ("0.0.0.0:8256", "10.0.0.6:8256", "10.0.0.6"),
        ("10.0.0.5:8256", "web-0.example:8256", ""),
    ],
)
def test_a_vm_sends_from_the_address_that_others_know(secret: Path, listen: str, own: str, source: str) -> None:
    assert link(secret, listen, **({"WEB-0": own} if own else {})).source == source
