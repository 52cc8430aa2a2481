"""Agents that tell each other they are ready, over real sockets."""

import contextlib
import io
import itertools
import json
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
from tests.acceptance.running import Said, ask, until
from tests.agent.parts import RUNTIME, context

from forenotice.agent import peers
from forenotice.agent.config import READY_PATH, ConfigError
from forenotice.agent.config import Peers as PeersConfig
from forenotice.agent.context import Context
from forenotice.agent.listener import Listener, Request, Response
from forenotice.agent.peers import Order, Pace, Peers
from forenotice.agent.signature import HEADER, WINDOW, Message, Readiness, Signer

HOST = "127.0.0.1"
EVENT = "C7061BAC-AFDC-4513-B24B-AA5F13A16123"
NOON = datetime(2026, 3, 9, 12, 0, 0, tzinfo=UTC)
SECRET = b"correct horse battery staple"
QUICK = Pace(first=0.02, longest=0.1, again=60, timeout=2)


@dataclass
class Vm:
    """One agent's exchange, behind a listener of its own."""

    name: str
    secret: Path
    now: datetime = NOON
    pace: Pace = QUICK
    acts_for: Sequence[str] = ()
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
        self.listener = Listener(HOST, port, {("POST", READY_PATH): self.answer}, RUNTIME)
        self.listener.start()
        return self

    def meet(self, **addresses: str) -> None:
        self.config = PeersConfig(secret_file=str(self.secret), secret_files=self.secrets, addresses=addresses)
        self.peers = Peers(
            self.config,
            (self.name, *self.acts_for),
            lambda *said: self.known.append(said),
            lambda: self.now,
            self.context,
            pace=self.pace,
        )

    def answer(self, request: Request) -> Response:
        return self.peers.receive(request)

    @property
    def place(self) -> str:
        return "{}:{}".format(*self.listener.address)

    def logged(self, action: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.written.getvalue().splitlines()]
        return [line for line in lines if line["action"] == action]

    def heard(self) -> set[str]:
        return {name for _, name, _ in self.known}

    def close(self) -> None:
        self.peers.close()
        self.listener.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(SECRET + b"\n")
    return path


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
    until(lambda: not errands())


def closed_port() -> str:
    with socket.create_server((HOST, 0)) as line:
        return f"{HOST}:{line.getsockname()[1]}"


@contextmanager
def listening(answer: Callable[[Request], Response], host: str = HOST) -> Iterator[str]:
    """At which address another answers in a peer's place."""
    listener = Listener(host, 0, {("POST", READY_PATH): answer}, RUNTIME)
    listener.start()
    try:
        yield "{}:{}".format(*listener.address)
    finally:
        listener.close()


@contextmanager
def late(name: str, secret: Path, place: str) -> Iterator[Vm]:
    """A peer that starts only now, at the address that was given for it."""
    vm = Vm(name, secret)
    vm.meet()
    with contextlib.closing(vm.start(int(place.rpartition(":")[2]))):
        yield vm


# Telling


def test_three_agents_hear_of_each_other(fleet: Fleet) -> None:
    vms = fleet("web-0", "web-1", "web-2")
    names = [vm.name for vm in vms]
    for vm in vms:
        vm.peers.announce({EVENT: (names, NOON - timedelta(seconds=3))})
    until(lambda: all(vm.heard() == set(names) - {vm.name} for vm in vms))
    until(lambda: not any(vm.peers.unacknowledged(EVENT) for vm in vms))
    for vm in vms:
        assert {(event, ready_at) for event, _, ready_at in vm.known} == {(EVENT, NOON - timedelta(seconds=3))}
        assert vm.counts == {"sent": "2.0", "received": "2.0"}


def test_a_dead_agent_keeps_nobody_from_the_others_and_is_told_when_it_lives(fleet: Fleet, secret: Path) -> None:
    alice, bob = fleet("alice", "bob")
    dead = closed_port()
    alice.meet(bob=bob.place, carol=dead)
    alice.peers.announce({EVENT: (("alice", "bob", "carol"), NOON)})
    until(lambda: bob.heard() == {"alice"})
    until(lambda: "refused" in alice.peers.unacknowledged(EVENT).get("carol", ""))
    until(lambda: set(alice.peers.unacknowledged(EVENT)) == {"carol"})
    with late("carol", secret, dead) as carol:
        until(lambda: carol.heard() == {"alice"})
        until(lambda: not alice.peers.unacknowledged(EVENT))
        assert "failed" in alice.counts


def test_who_has_acknowledged_is_told_again_until_it_is_withdrawn(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob", pace=Pace(again=0.02, timeout=2))
    alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
    until(lambda: len(bob.known) >= 4)
    alice.peers.announce({})
    until(lambda: not errands())
    assert alice.peers.unacknowledged(EVENT) == {}
    assert set(bob.known) == {(EVENT, "alice", NOON)}


def test_saying_the_same_again_sends_nothing_and_something_new_does(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    for _ in range(5):
        alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
        until(lambda: not alice.peers.unacknowledged(EVENT))
    assert len(bob.known) == 1
    alice.peers.announce({EVENT: (("alice", "bob"), NOON - timedelta(seconds=1))})
    until(lambda: len(bob.known) == 2)


def test_who_is_no_longer_ready_says_so(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
    until(lambda: bob.known == [(EVENT, "alice", NOON)])
    alice.peers.announce({EVENT: (("alice", "bob"), None)})
    until(lambda: bob.known[1:] == [(EVENT, "alice", None)])
    until(lambda: not alice.peers.unacknowledged(EVENT))


def test_that_somebody_is_not_ready_is_told_until_it_is_received(fleet: Fleet, secret: Path) -> None:
    (alice,) = fleet("alice")
    dead = closed_port()
    alice.meet(bob=dead)
    alice.peers.announce({EVENT: (("alice", "bob"), None)})
    until(lambda: "failed" in alice.counts)
    with late("bob", secret, dead) as bob:
        until(lambda: bob.known == [(EVENT, "alice", None)])


def test_who_begins_anew_is_told_at_once_who_is_ready(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
    until(lambda: len(bob.known) == 1 and not alice.peers.unacknowledged(EVENT))
    bob.peers.announce({EVENT: (("alice", "bob"), None)})
    until(lambda: bob.known == [(EVENT, "alice", NOON)] * 2)


def test_those_who_are_not_ready_do_not_remind_each_other(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    for vm in (alice, bob):
        vm.peers.announce({EVENT: (("alice", "bob"), None)})
    until(lambda: not alice.peers.unacknowledged(EVENT) and not bob.peers.unacknowledged(EVENT))
    alice.peers.announce({EVENT: (("alice", "bob"), None), "LATER": (("alice", "bob"), NOON)})
    until(lambda: ("LATER", "alice", NOON) in bob.known)
    assert (len(alice.known), len(bob.known)) == (1, 2)


def test_a_name_that_left_the_event_is_no_longer_told(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    alice.meet(bob=bob.place, carol=closed_port())
    alice.peers.announce({EVENT: (("alice", "bob", "carol"), NOON)})
    until(lambda: "carol" in alice.peers.unacknowledged(EVENT))
    alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
    until(lambda: not alice.peers.unacknowledged(EVENT))


def test_a_lone_vm_tells_nobody_and_needs_no_thread(fleet: Fleet) -> None:
    (alice,) = fleet("alice")
    alice.peers.announce({EVENT: (("ALICE",), NOON)})
    alice.peers.announce({EVENT: (("bob", "carol"), NOON)})  # not about us at all
    assert alice.peers.unacknowledged(EVENT) == {}
    assert not errands()


def test_an_agent_that_acts_for_others_tells_of_all_of_them(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    alice.acts_for = ("router",)
    alice.meet(bob=bob.place, switch=closed_port())
    alice.peers.announce({EVENT: (("alice", "bob", "router", "switch"), NOON)})
    until(lambda: bob.heard() == {"alice", "router"})
    assert set(alice.peers.unacknowledged(EVENT)) <= {"bob", "switch"}


def test_names_are_compared_as_azure_does_and_passed_on_as_the_event_spells_them(fleet: Fleet) -> None:
    alice, bob = fleet("Alice", "bob")
    alice.meet(_BOB=bob.place)
    alice.peers.announce({EVENT: (("_alice", "Bob"), NOON)})
    until(lambda: bob.known == [(EVENT, "_alice", NOON)])


def test_without_an_address_the_name_is_a_host_name(fleet: Fleet, secret: Path) -> None:
    alice, bob = fleet("alice", "localhost")
    config = PeersConfig(secret_file=str(secret), port=bob.listener.address[1])
    alice.peers = Peers(config, ("alice",), lambda *_: None, lambda: NOON, alice.context, pace=QUICK)
    alice.peers.announce({EVENT: (("alice", "_localhost"), NOON)})
    until(lambda: bob.heard() == {"alice"})


def test_the_pauses_between_attempts_grow(fleet: Fleet) -> None:
    moments: list[float] = []

    def refuse(_: Request) -> Response:
        moments.append(time.monotonic())
        return Response.text("no", 503)

    (alice,) = fleet("alice", pace=Pace(first=0.05, longest=0.2, timeout=2))
    with listening(refuse) as place:
        alice.meet(bob=place)
        alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
        until(lambda: len(moments) >= 7)
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2, 0.2), strict=False))
        assert min(pauses[3:]) < 0.4, "they grow without end"
        assert "answered 503" in alice.peers.unacknowledged(EVENT)["bob"]


def test_those_who_never_answer_do_not_hold_up_the_others(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob", pace=Pace(first=0.02, timeout=0.2, concurrent=3))
    with socket.create_server((HOST, 0), backlog=64) as silent:
        place = "{}:{}".format(*silent.getsockname())
        names = [f"silent-{number}" for number in range(6)]
        alice.meet(bob=bob.place, **dict.fromkeys(names, place))
        alice.peers.announce({EVENT: (("alice", *names, "bob"), NOON)})
        most = 0

        def told() -> bool:
            nonlocal most
            most = max(most, sum(thread.name == "peers-delivery" for thread in threading.enumerate()))
            return bool(bob.known)

        until(told)
        assert most == 3
        assert alice.peers.unacknowledged(EVENT).keys() >= set(names)
        alice.peers.close()


def test_the_end_does_not_wait_for_an_answer(fleet: Fleet) -> None:
    (alice,) = fleet("alice", pace=Pace(timeout=60))
    with socket.create_server((HOST, 0)) as silent:
        silent.settimeout(5)
        alice.meet(bob="{}:{}".format(*silent.getsockname()))
        alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
        caller, _ = silent.accept()
        with caller:
            assert caller.recv(1)
            alice.peers.close()
            until(lambda: not errands())


def errands() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("peers")]


@pytest.mark.parametrize("name", ["a\0b", "é" * 100, "x" * 300, ".."])
def test_a_name_that_is_no_host_name_is_only_not_told(fleet: Fleet, name: str) -> None:
    alice, bob = fleet("alice", "bob")
    alice.peers.announce({EVENT: (("alice", name, "bob"), NOON)})
    until(lambda: bob.heard() == {"alice"})
    until(lambda: alice.peers.unacknowledged(EVENT).get(name, "no message sent yet") != "no message sent yet")


def test_a_response_of_a_server_that_is_no_agent_is_no_acknowledgement(fleet: Fleet) -> None:
    (alice,) = fleet("alice")
    with listening(lambda _: Response.text("welcome to nginx")) as place:
        alice.meet(bob=place)
        alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
        until(lambda: "does not prove to be from bob" in alice.peers.unacknowledged(EVENT)["bob"])


def test_after_the_end_nothing_is_announced(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    alice.peers.close()
    alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
    assert alice.peers.unacknowledged(EVENT) == {}
    assert not bob.known


# Hearing


def readiness(**changes: object) -> Readiness:
    said = Readiness(event_id=EVENT, resources=("alice", "bob"), ready_at=NOON)
    return msgspec.structs.replace(said, **changes)


def message(*, sender: str = "alice", receiver: str = "bob", sent_at: datetime = NOON, **changes: object) -> Message:
    return Message(sender=sender, receiver=receiver, sent_at=sent_at, readiness=readiness(**changes))


def later(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def say(vm: Vm, told: Message, *, secret: bytes = SECRET, body: bytes | None = None, mark: str | None = None) -> Said:
    sent = msgspec.json.encode(told) if body is None else body
    return ask(vm.place, "POST", READY_PATH, sent, {HEADER: mark or Signer(secret).sign(told, sent)})


def tell(vm: Vm, told: Message, **how: Any) -> int:
    return say(vm, told, **how).status


@pytest.fixture
def bob(fleet: Fleet) -> Vm:
    (vm,) = fleet("bob")
    return vm


@pytest.mark.parametrize(("seconds", "status"), [(0, 200), (59, 200), (-59, 200), (62, 403), (-62, 403), (10**9, 403)])
def test_a_message_is_good_for_a_minute_on_both_sides(bob: Vm, seconds: int, status: int) -> None:
    said = say(bob, message(sent_at=later(-seconds)))
    assert said.status == status
    assert bool(bob.known) == (status == 200)
    if status != 200:
        assert said.json == {"error": f"our clocks differ by {abs(seconds)} s, and may by 60"}


@pytest.mark.parametrize(
    ("body", "mark"),
    [
        (None, " "),
        (None, "v2="),
        (None, "nonsense"),
        (None, "v2=" + "0" * 64),
        (None, Signer(SECRET).sign(message(), msgspec.json.encode(message(ready_at=None)))),
        (None, Signer(SECRET).sign(message(sender="carol"), msgspec.json.encode(message()))),
        (None, Signer(SECRET).sign(message(receiver="carol"), msgspec.json.encode(message()))),
        (None, Signer(SECRET).sign(message(), msgspec.json.encode(message())).upper()),
        (None, Signer(SECRET).sign(message(), msgspec.json.encode(message())).replace("v2", "v1")),
        (b"", None),
        (b"[]", None),
        (b"\xff", None),
        (msgspec.json.encode({**msgspec.to_builtins(message()), "sent_at": "2026-03-09T12:00:00"}), None),
        (msgspec.json.encode({**msgspec.to_builtins(message()), "sender": ""}), None),
        (msgspec.json.encode({**msgspec.to_builtins(message()), "readiness": {"event_id": ""}}), None),
    ],
)
def test_a_message_that_is_not_signed_as_it_is_changes_nothing(bob: Vm, body: bytes | None, mark: str | None) -> None:
    said = say(bob, message(), body=body, mark=mark)
    assert (said.status, said.json) == (401, {"error": "invalid signature"})
    assert not bob.known
    assert bob.counts == {"refused": "1.0"}
    (line,) = bob.logged("peer.refused")
    assert (line["source"], "peer" in line) == (HOST, False)


def test_a_message_for_one_is_not_taken_by_another(fleet: Fleet) -> None:
    """Who listens on the network may repeat it, but only to whom it was said."""
    _, carol = fleet("bob", "carol")
    said = say(carol, message(resources=("alice", "bob", "carol")))
    assert (said.status, said.json["error"]) == (403, "this agent acts for carol, and not for bob")
    assert not carol.known


@pytest.mark.parametrize(
    ("told", "flaw"),
    [
        (message(sender="mallory"), "the event's Resources do not name both VMs"),
        (message(resources=("alice",)), "the event's Resources do not name both VMs"),
        (message(sender="bob"), "this agent itself acts for bob"),
        (message(sender="_BOB", resources=("_BOB", "bob")), "this agent itself acts for _BOB"),
    ],
)
def test_a_signed_message_must_still_make_sense(bob: Vm, told: Message, flaw: str) -> None:
    said = say(bob, told)
    assert (said.status, said.json) == (403, {"error": flaw})
    assert not bob.known
    assert bob.counts == {"refused": "1.0"}


def test_nobody_speaks_for_a_vm_from_an_address_that_is_not_its_own(fleet: Fleet) -> None:
    """Although it has the secret, as all of them have."""
    (bob,) = fleet("bob")
    bob.meet(alice="127.0.0.7:8256", carol=f"{HOST}:1", dave="no..name:1")
    said = say(bob, message())
    assert (said.status, said.json["error"]) == (403, "this came from 127.0.0.1, and [peers] has 127.0.0.7 for alice")
    assert tell(bob, message(sender="carol", resources=("carol", "bob"))) == 200
    assert bob.heard() == {"carol"}
    said = say(bob, message(sender="dave", resources=("dave", "bob")))
    assert said.json["error"] == "no..name, the address of dave in [peers], cannot be resolved"
    assert [line["peer"] for line in bob.logged("peer.refused")] == ["alice", "dave"]


@pytest.mark.parametrize(
    ("listen", "own", "believed"),
    [("127.0.0.7:1", {}, True), ("0.0.0.0:1", {"alice": "127.0.0.7:1"}, True), ("", {}, False)],
)
def test_a_vm_with_several_addresses_speaks_from_the_one_that_others_know(
    fleet: Fleet, listen: str, own: dict[str, str], believed: bool
) -> None:
    alice, bob = fleet("alice", "bob")
    bob.meet(alice="127.0.0.7:8256")
    alice.meet(bob=bob.place, **own)
    said = peers.attempt(alice.config, "alice", "bob", NOON, listen)
    assert said == ("" if believed else "refused: this came from 127.0.0.1, and [peers] has 127.0.0.7 for alice")


def test_an_address_that_is_not_of_this_machine_keeps_nobody_from_being_told(fleet: Fleet) -> None:
    """As behind address translation."""
    alice, bob = fleet("alice", "bob")
    alice.meet(bob=bob.place, alice="192.0.2.1:8256")
    assert peers.attempt(alice.config, "alice", "bob", NOON) == ""


def test_a_secret_of_its_own_binds_a_name_wherever_it_speaks_from(fleet: Fleet, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.touch(0o600)
    own.write_text("only of alice and bob")
    alice, bob = fleet("alice", "bob")
    bob.secrets = {"Alice": str(own)}
    bob.meet()
    assert tell(bob, message()) == 401, "who has the common secret is not alice"
    assert tell(bob, message(sender="carol", resources=("carol", "bob"))) == 200
    alice.secrets = {"bob": str(own)}
    alice.meet(bob=bob.place)
    alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
    until(lambda: bob.heard() == {"alice", "carol"} and not alice.peers.unacknowledged(EVENT))


def test_words_of_later_versions_are_ignored_and_ids_are_upper_case(bob: Vm) -> None:
    told = message(event_id=EVENT.lower())
    body = msgspec.json.encode({**msgspec.to_builtins(told), "mood": "fine"})
    assert tell(bob, told, body=body) == 200
    assert bob.known == [(EVENT, "alice", NOON)]


def test_nobody_is_ready_in_the_future_and_zones_do_not_matter(bob: Vm) -> None:
    early = (NOON - timedelta(seconds=5)).astimezone(timezone(timedelta(hours=-7)))
    assert tell(bob, message(ready_at=NOON + timedelta(days=1))) == 200
    assert tell(bob, message(ready_at=early)) == 200
    assert [ready_at for _, _, ready_at in bob.known] == [NOON, early]
    assert bob.known[1][2] is not None
    assert bob.known[1][2].tzinfo is UTC


def test_what_was_said_later_counts_in_whichever_order_it_arrives(bob: Vm) -> None:
    assert tell(bob, message(ready_at=None, sent_at=later(2))) == 200
    assert tell(bob, message(sent_at=later(1))) == 200, "overtaken, but there is no need to say it again"
    assert bob.known == [(EVENT, "alice", None)]
    assert tell(bob, message(sender="ALICE", resources=("ALICE", "bob"), sent_at=later(1.9))) == 200
    assert len(bob.known) == 1, "another spelling makes no other VM"
    assert tell(bob, message(event_id="another", sent_at=later(1))) == 200
    assert tell(bob, message(sender="carol", resources=("carol", "bob"), sent_at=later(1))) == 200
    assert tell(bob, message(sent_at=later(3))) == 200
    assert bob.known[1:] == [("ANOTHER", "alice", NOON), (EVENT, "carol", NOON), (EVENT, "alice", NOON)]


def test_the_order_need_not_be_known_for_longer_than_a_message_is_good() -> None:
    order = Order()
    assert order.is_latest(EVENT, "alice", NOON, NOON)
    assert not order.is_latest(EVENT, "alice", NOON - timedelta(seconds=1), NOON + WINDOW)
    assert order.is_latest(EVENT, "bob", NOON, NOON + WINDOW + timedelta(seconds=1))
    assert len(order._received) == 1


def test_who_is_told_more_than_it_can_order_still_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MOST_RECEIVED", 2)
    order = Order()
    assert all(order.is_latest(EVENT, name, NOON, NOON) for name in ("a", "b", "c"))
    assert not order.is_latest(EVENT, "a", NOON - timedelta(seconds=1), NOON)
    assert len(order._received) == 2


def test_what_is_said_next_is_later_also_when_the_clock_was_set_back_a_little() -> None:
    order = Order()
    first = order.stamp(NOON)
    second = order.stamp(NOON - timedelta(seconds=1))
    assert first == NOON < second < NOON + timedelta(seconds=1)
    # By much, others would not believe it.
    assert order.stamp(NOON - timedelta(hours=1)) == NOON - timedelta(hours=1)


def test_a_message_of_any_number_of_vms_fits_and_a_huge_one_is_refused(bob: Vm) -> None:
    names = tuple(f"{number:064}" for number in range(100))
    assert tell(bob, message(resources=(*names, "alice", "bob"))) == 200
    assert tell(bob, message(resources=("x" * 20_000,))) == 413


# Who has not answered, and why


def unacknowledged(vm: Vm, name: str = "bob") -> str:
    vm.peers.announce({EVENT: (("alice", "bob"), NOON)})
    until(lambda: vm.peers.unacknowledged(EVENT)[name] != "no message sent yet")
    return vm.peers.unacknowledged(EVENT)[name]


def test_another_secret_is_refused_and_the_sender_can_see_why(fleet: Fleet, tmp_path: Path) -> None:
    alice, bob = fleet("alice", "bob")
    other = tmp_path / "other"
    other.touch(0o600)
    other.write_text("quite another secret")
    alice.secret = other
    alice.meet(bob=bob.place)
    assert (
        unacknowledged(alice)
        == f"wrong secret: {bob.place} has another one than this VM, or another version of the agent"
    )
    assert not bob.known
    assert "quite" not in alice.written.getvalue() + bob.written.getvalue()
    until(lambda: alice.logged("peer.failed"))
    assert alice.logged("peer.failed")[0]["peer"] == "bob"
    # And once the secret is right, it is over.
    alice.peers.close()
    other.write_bytes(SECRET)
    alice.meet(bob=bob.place)
    alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
    until(lambda: not alice.peers.unacknowledged(EVENT))


def test_one_that_does_not_answer_in_time_is_slow(fleet: Fleet) -> None:
    (alice,) = fleet("alice", pace=Pace(timeout=0.1))
    with socket.create_server((HOST, 0)) as silent:
        alice.meet(bob="{}:{}".format(*silent.getsockname()))
        assert unacknowledged(alice) == "slow: no answer within 0.1 s"


def test_one_that_hangs_up_is_neither(fleet: Fleet) -> None:
    (alice,) = fleet("alice")
    with socket.create_server((HOST, 0)) as rude:
        rude.settimeout(5)
        alice.meet(bob="{}:{}".format(*rude.getsockname()))
        alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
        rude.accept()[0].close()
        assert unacknowledged(alice).startswith("no answer: ")


def test_clocks_that_differ_are_told_from_a_wrong_secret(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    bob.now = NOON + timedelta(minutes=2)
    assert unacknowledged(alice) == "refused: our clocks differ by 120 s, and may by 60"


def test_one_that_answers_but_is_not_believed_here_is_named_here_too(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    with listening(alice.answer, "127.0.0.7") as elsewhere:
        alice.meet(bob=bob.place)
        bob.meet(alice=elsewhere)
        flaw = "this came from 127.0.0.1, and [peers] has 127.0.0.7 for alice"
        assert unacknowledged(alice) == f"refused: {flaw}"
        bob.peers.announce({EVENT: (("alice", "bob"), NOON)})
        until(lambda: alice.heard() == {"bob"})
        assert bob.peers.unacknowledged(EVENT) == {"alice": f"refused here: {flaw}"}
        alice.peers.close()
        until(
            lambda: (
                peers.attempt(alice.config, "alice", "bob", NOON, "127.0.0.7:1") == ""
                and not bob.peers.unacknowledged(EVENT)
            )
        )


def test_an_acknowledgement_is_for_one_message_only(fleet: Fleet) -> None:
    """Who has seen one cannot use it to keep the next message from its receiver."""
    alice, bob = fleet("alice", "bob")
    kept: list[Response] = []

    def repeat(request: Request) -> Response:
        kept.append(bob.peers.receive(request) if not kept else kept[0])
        return kept[-1]

    with listening(repeat) as between:
        alice.meet(bob=between)
        alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
        until(lambda: not alice.peers.unacknowledged(EVENT))
        alice.peers.announce({EVENT: (("alice", "bob"), None)})
        until(lambda: alice.peers.unacknowledged(EVENT).get("bob", "").startswith("wrong signature: "))
        assert bob.known == [(EVENT, "alice", NOON)]


def test_what_kept_a_peer_from_being_told_is_said_until_something_new_was_tried(fleet: Fleet) -> None:
    (alice,) = fleet("alice")
    alice.meet(bob=closed_port())
    assert unacknowledged(alice) == "unreachable: Connection refused"
    alice.peers.announce({EVENT: (("alice", "bob"), None)})
    assert alice.peers.unacknowledged(EVENT)["bob"] == "unreachable: Connection refused"


def test_a_peer_can_be_tried_without_telling_it_anything(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    assert peers.attempt(alice.config, "alice", "bob", NOON) == ""
    assert peers.attempt(alice.config, "alice", "BOB", later(90)) == "refused: our clocks differ by 90 s, and may by 60"
    bob.close()
    assert peers.attempt(alice.config, "alice", "bob", NOON) == "unreachable: Connection refused"
    assert peers.attempt(alice.config, "alice", "a\0b", NOON).startswith("unreachable: ")
    assert not bob.known


# The secret


@pytest.mark.parametrize("content", [b"", b" " * 40, b"fifteen letters"])
def test_a_secret_that_is_too_short_is_refused_without_being_shown(
    tmp_path: Path, secret: Path, content: bytes
) -> None:
    path = tmp_path / "short"
    path.touch(0o600)
    path.write_bytes(content)
    for config in (
        PeersConfig(secret_file=str(path)),
        PeersConfig(secret_file=str(secret), secret_files={"bob": str(path)}),
    ):
        with pytest.raises(ConfigError, match="too short") as refused:
            Signer.read(config)
        assert "fifteen" not in refused.value.message


def test_a_secret_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: no such file"):
        Signer.read(PeersConfig(secret_file=str(tmp_path / "nothing")))


def test_the_secret_never_leaves(secret: Path) -> None:
    with socket.create_server((HOST, 0)) as line:
        line.settimeout(5)
        alice = Vm("alice", secret).start()
        alice.meet(bob="{}:{}".format(*line.getsockname()))
        alice.peers.announce({EVENT: (("alice", "bob"), NOON)})
        caller, _ = line.accept()
        with caller, contextlib.closing(alice):
            sent = caller.recv(65536)
    assert EVENT.encode() in sent
    assert SECRET not in sent
    assert SECRET.decode() not in repr(vars(alice.peers))
