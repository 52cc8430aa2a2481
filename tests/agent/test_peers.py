"""Agents that tell each other they are ready, over real sockets."""

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.acceptance.running import ask, until

from forenotice.agent import peers
from forenotice.agent.config import file
from forenotice.agent.config.file import READY_PATH
from forenotice.agent.listener import Listener, Reply, Request
from forenotice.agent.metrics import Exchange
from forenotice.agent.peers import WINDOW, Order, Pace, Peers, Seal

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
    known: list[tuple[str, str, datetime | None]] = field(default_factory=list)
    counts: list[Exchange] = field(default_factory=list)
    peers: Peers = field(init=False)
    listener: Listener = field(init=False)

    def start(self, port: int = 0) -> "Vm":
        # The routes are known only when all have their ports.
        self.listener = Listener(HOST, port, {("POST", READY_PATH): self.answer})
        self.listener.start()
        return self

    def meet(self, **addresses: str) -> None:
        config = file.Peers(secret_file=str(self.secret), addresses=addresses)
        self.peers = Peers(
            config,
            (self.name, *self.acts_for),
            lambda *said: self.known.append(said),
            now=lambda: self.now,
            counted=self.counts.append,
            pace=self.pace,
        )

    def answer(self, request: Request) -> Reply:
        return self.peers.hear(request)

    @property
    def place(self) -> str:
        return "{}:{}".format(*self.listener.address)

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


# Telling


def test_three_agents_hear_of_each_other(fleet: Fleet) -> None:
    vms = fleet("web-0", "web-1", "web-2")
    names = [vm.name for vm in vms]
    for vm in vms:
        vm.peers.tell({EVENT: (names, NOON - timedelta(seconds=3))})
    until(lambda: all(vm.heard() == set(names) - {vm.name} for vm in vms))
    until(lambda: not any(vm.peers.untold(EVENT) for vm in vms))
    for vm in vms:
        assert {(event, ready_at) for event, _, ready_at in vm.known} == {(EVENT, NOON - timedelta(seconds=3))}
        assert sorted(vm.counts) == ["heard", "heard", "told", "told"]


def test_a_dead_agent_keeps_nobody_from_the_others_and_is_told_when_it_lives(fleet: Fleet, secret: Path) -> None:
    alice, bob = fleet("alice", "bob")
    dead = closed_port()
    alice.meet(bob=bob.place, carol=dead)
    alice.peers.tell({EVENT: (("alice", "bob", "carol"), NOON)})
    until(lambda: bob.heard() == {"alice"})
    until(lambda: "refused" in alice.peers.untold(EVENT).get("carol", ""))
    until(lambda: set(alice.peers.untold(EVENT)) == {"carol"})
    carol = Vm("carol", secret)
    carol.meet()
    carol.start(int(dead.rpartition(":")[2]))
    try:
        until(lambda: carol.heard() == {"alice"})
        until(lambda: not alice.peers.untold(EVENT))
        assert Exchange.UNTOLD in alice.counts
    finally:
        carol.close()


def test_who_has_acknowledged_is_told_again_until_it_is_withdrawn(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob", pace=Pace(again=0.02, timeout=2))
    alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
    until(lambda: len(bob.known) >= 4)
    alice.peers.tell({})
    until(lambda: not errands())
    assert alice.peers.untold(EVENT) == {}
    assert set(bob.known) == {(EVENT, "alice", NOON)}


def test_saying_the_same_again_sends_nothing_and_something_new_does(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    for _ in range(5):
        alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
        until(lambda: not alice.peers.untold(EVENT))
    assert len(bob.known) == 1
    alice.peers.tell({EVENT: (("alice", "bob"), NOON - timedelta(seconds=1))})
    until(lambda: len(bob.known) == 2)


def test_who_is_no_longer_ready_says_so(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
    until(lambda: bob.known == [(EVENT, "alice", NOON)])
    alice.peers.tell({EVENT: (("alice", "bob"), None)})
    until(lambda: bob.known[1:] == [(EVENT, "alice", None)])
    until(lambda: not alice.peers.untold(EVENT))


def test_that_somebody_is_not_ready_is_told_until_it_is_heard(fleet: Fleet, secret: Path) -> None:
    (alice,) = fleet("alice")
    dead = closed_port()
    alice.meet(bob=dead)
    alice.peers.tell({EVENT: (("alice", "bob"), None)})
    until(lambda: Exchange.UNTOLD in alice.counts)
    bob = Vm("bob", secret)
    bob.meet()
    bob.start(int(dead.rpartition(":")[2]))
    try:
        until(lambda: bob.known == [(EVENT, "alice", None)])
    finally:
        bob.close()


def test_who_begins_anew_is_told_at_once_who_is_ready(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
    until(lambda: len(bob.known) == 1 and not alice.peers.untold(EVENT))
    bob.peers.tell({EVENT: (("alice", "bob"), None)})
    until(lambda: bob.known == [(EVENT, "alice", NOON)] * 2)


def test_those_who_are_not_ready_do_not_remind_each_other(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    for vm in (alice, bob):
        vm.peers.tell({EVENT: (("alice", "bob"), None)})
    until(lambda: not alice.peers.untold(EVENT) and not bob.peers.untold(EVENT))
    alice.peers.tell({EVENT: (("alice", "bob"), None), "LATER": (("alice", "bob"), NOON)})
    until(lambda: ("LATER", "alice", NOON) in bob.known)
    assert (len(alice.known), len(bob.known)) == (1, 2)


def test_a_name_that_left_the_event_is_no_longer_told(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    alice.meet(bob=bob.place, carol=closed_port())
    alice.peers.tell({EVENT: (("alice", "bob", "carol"), NOON)})
    until(lambda: "carol" in alice.peers.untold(EVENT))
    alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
    until(lambda: not alice.peers.untold(EVENT))


def test_a_lone_vm_tells_nobody_and_needs_no_thread(fleet: Fleet) -> None:
    (alice,) = fleet("alice")
    alice.peers.tell({EVENT: (("ALICE",), NOON)})
    alice.peers.tell({EVENT: (("bob", "carol"), NOON)})  # not about us at all
    assert alice.peers.untold(EVENT) == {}
    assert not errands()


def test_an_agent_that_acts_for_others_tells_of_all_of_them(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob", acts_for=("router",))
    alice.meet(bob=bob.place, switch=closed_port())
    alice.peers.tell({EVENT: (("alice", "bob", "router", "switch"), NOON)})
    until(lambda: bob.heard() == {"alice", "router"})
    assert set(alice.peers.untold(EVENT)) <= {"bob", "switch"}


def test_names_are_compared_as_azure_does_and_passed_on_as_the_event_spells_them(fleet: Fleet) -> None:
    alice, bob = fleet("Alice", "bob")
    alice.meet(_BOB=bob.place)
    alice.peers.tell({EVENT: (("_alice", "Bob"), NOON)})
    until(lambda: bob.known == [(EVENT, "_alice", NOON)])


def test_without_an_address_the_name_is_a_host_name(fleet: Fleet, secret: Path) -> None:
    alice, bob = fleet("alice", "localhost")
    config = file.Peers(secret_file=str(secret), port=bob.listener.address[1])
    alice.peers = Peers(config, ("alice",), lambda *_: None, now=lambda: NOON, pace=QUICK)
    alice.peers.tell({EVENT: (("alice", "_localhost"), NOON)})
    until(lambda: bob.heard() == {"alice"})


def test_the_pauses_between_attempts_grow(secret: Path) -> None:
    moments: list[float] = []

    def refuse(_: Request) -> Reply:
        moments.append(time.monotonic())
        return Reply.text("no", 503)

    listener = Listener(HOST, 0, {("POST", READY_PATH): refuse})
    listener.start()
    alice = Vm("alice", secret, pace=Pace(first=0.05, longest=0.2, timeout=2)).start()
    alice.meet(bob="{}:{}".format(*listener.address))
    try:
        alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
        until(lambda: len(moments) >= 7)
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2, 0.2), strict=False))
        assert min(pauses[3:]) < 0.4, "they grow without end"
        assert "answered 503" in alice.peers.untold(EVENT)["bob"]
    finally:
        alice.close()
        listener.close()


def test_those_who_never_answer_do_not_hold_up_the_others(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob", pace=Pace(first=0.02, timeout=0.2, at_a_time=3))
    with socket.create_server((HOST, 0), backlog=64) as silent:
        place = "{}:{}".format(*silent.getsockname())
        names = [f"silent-{number}" for number in range(6)]
        alice.meet(bob=bob.place, **dict.fromkeys(names, place))
        alice.peers.tell({EVENT: (("alice", *names, "bob"), NOON)})
        most = 0

        def told() -> bool:
            nonlocal most
            most = max(most, sum(thread.name == "peers-errand" for thread in threading.enumerate()))
            return bool(bob.known)

        until(told)
        assert most == 3
        assert alice.peers.untold(EVENT).keys() >= set(names)
        alice.peers.close()


def test_the_end_does_not_wait_for_an_answer(fleet: Fleet) -> None:
    (alice,) = fleet("alice", pace=Pace(timeout=60))
    with socket.create_server((HOST, 0)) as silent:
        silent.settimeout(5)
        alice.meet(bob="{}:{}".format(*silent.getsockname()))
        alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
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
    alice.peers.tell({EVENT: (("alice", name, "bob"), NOON)})
    until(lambda: bob.heard() == {"alice"})
    until(lambda: alice.peers.untold(EVENT).get(name, "not told yet") != "not told yet")


def test_one_that_is_no_agent_does_not_count_as_told(fleet: Fleet, secret: Path) -> None:
    (alice,) = fleet("alice")
    listener = Listener(HOST, 0, {("POST", READY_PATH): lambda _: Reply.text("welcome to nginx")})
    listener.start()
    try:
        alice.meet(bob="{}:{}".format(*listener.address))
        alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
        until(lambda: "answered 200" in alice.peers.untold(EVENT)["bob"])
    finally:
        listener.close()


def test_after_the_end_nothing_is_announced(fleet: Fleet) -> None:
    alice, bob = fleet("alice", "bob")
    alice.peers.close()
    alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
    assert alice.peers.untold(EVENT) == {}
    assert not bob.known


# Hearing


def message(**changes: object) -> bytes:
    return json.dumps(
        {
            "event_id": EVENT,
            "names": ["alice"],
            "resources": ["alice", "bob"],
            "ready_at": NOON.isoformat(),
            "said_at": NOON.isoformat(),
            **changes,
        }
    ).encode()


def later(seconds: float) -> str:
    return (NOON + timedelta(seconds=seconds)).isoformat()


def tell(vm: Vm, body: bytes, *, secret: bytes = SECRET, at: datetime = NOON, signature: str | None = None) -> int:
    made = Seal(secret).sign("POST", READY_PATH, body, at) if signature is None else signature
    said = ask(vm.place, "POST", READY_PATH, body, {peers.HEADER: made})
    if said.status == 401:
        assert said.json == {"error": "not for you"}
    return said.status


@pytest.fixture
def bob(fleet: Fleet) -> Vm:
    (vm,) = fleet("bob")
    return vm


@pytest.mark.parametrize(("seconds", "status"), [(0, 200), (59, 200), (-59, 200), (62, 401), (-62, 401), (10**9, 401)])
def test_a_message_is_good_for_a_minute_on_both_sides(bob: Vm, seconds: int, status: int) -> None:
    assert tell(bob, message(), at=NOON - timedelta(seconds=seconds)) == status
    assert bool(bob.known) == (status == 200)


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "t=1,v1=",
        "nonsense",
        f"t={int(NOON.timestamp())},v1=" + "0" * 64,
        "t=" + "9" * 400 + ",v1=" + "0" * 64,
        Seal(SECRET).sign("GET", READY_PATH, message(), NOON),
        Seal(SECRET).sign("POST", "/peers/other", message(), NOON),
        Seal(SECRET).sign("POST", READY_PATH, message(event_id="other"), NOON),
        Seal(SECRET).sign("POST", READY_PATH, message(), NOON).replace("t=", "t=0"),
        Seal(SECRET).sign("POST", READY_PATH, message(), NOON).upper(),
    ],
)
def test_a_message_that_is_not_signed_as_it_is_changes_nothing(bob: Vm, signature: str) -> None:
    assert tell(bob, message(), signature=signature) == 401
    assert not bob.known
    assert bob.counts == [Exchange.REFUSED]


def test_another_secret_is_refused_and_the_sender_can_see_why(fleet: Fleet, tmp_path: Path) -> None:
    alice, bob = fleet("alice", "bob")
    other = tmp_path / "other"
    other.touch(0o600)
    other.write_text("quite another secret")
    alice.secret = other
    alice.meet(bob=bob.place)
    alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
    until(lambda: "another secret" in alice.peers.untold(EVENT)["bob"])
    assert not bob.known
    assert "quite" not in str(alice.peers.untold(EVENT))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        message(names=["mallory"]),
        message(names=["alice", "mallory"]),
        message(names=[]),
        message(event_id=""),
        message(event_id="x" * 100),
        message(ready_at="yesterday"),
        message(ready_at="2026-03-09T12:00:00"),
        message(said_at="2026-03-09T12:00:00"),
        message(said_at=None),
        message(said_at="2026-03-09T11:58:58Z"),
        message(said_at="2026-03-09T12:01:02Z"),
    ],
)
def test_a_signed_message_must_still_make_sense(bob: Vm, body: bytes) -> None:
    assert tell(bob, body) == 400
    assert not bob.known
    assert bob.counts == [Exchange.REFUSED]


def test_words_of_later_versions_are_ignored_and_ids_are_upper_case(bob: Vm) -> None:
    assert tell(bob, message(event_id=EVENT.lower(), mood="fine")) == 200
    assert bob.known == [(EVENT, "alice", NOON)]


def test_nobody_is_ready_in_the_future_and_zones_do_not_matter(bob: Vm) -> None:
    early = (NOON - timedelta(seconds=5)).astimezone(timezone(timedelta(hours=-7)))
    assert tell(bob, message(ready_at=(NOON + timedelta(days=1)).isoformat())) == 200
    assert tell(bob, message(ready_at=early.isoformat())) == 200
    assert [ready_at for _, _, ready_at in bob.known] == [NOON, early]
    assert bob.known[1][2] is not None
    assert bob.known[1][2].tzinfo is UTC


def test_what_was_said_later_counts_in_whichever_order_it_arrives(bob: Vm) -> None:
    assert tell(bob, message(ready_at=None, said_at=later(2))) == 200
    assert tell(bob, message(said_at=later(1))) == 200, "overtaken, but there is no need to say it again"
    assert bob.known == [(EVENT, "alice", None)]
    assert tell(bob, message(names=["ALICE"], resources=["ALICE", "bob"], said_at=later(1.9))) == 200
    assert len(bob.known) == 1, "another spelling makes no other VM"
    assert tell(bob, message(event_id="another", said_at=later(1))) == 200
    assert tell(bob, message(names=["bob"], said_at=later(1))) == 200
    assert tell(bob, message(said_at=later(3))) == 200
    assert bob.known[1:] == [("ANOTHER", "alice", NOON), (EVENT, "bob", NOON), (EVENT, "alice", NOON)]


def test_the_order_need_not_be_known_for_longer_than_a_message_is_good() -> None:
    order = Order()
    assert order.is_latest(EVENT, "alice", NOON, NOON)
    assert not order.is_latest(EVENT, "alice", NOON - timedelta(seconds=1), NOON + WINDOW)
    assert order.is_latest(EVENT, "bob", NOON, NOON + WINDOW + timedelta(seconds=1))
    assert len(order._heard) == 1


def test_who_is_told_more_than_it_can_order_still_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MOST_HEARD", 2)
    order = Order()
    assert all(order.is_latest(EVENT, name, NOON, NOON) for name in ("a", "b", "c"))
    assert not order.is_latest(EVENT, "a", NOON - timedelta(seconds=1), NOON)
    assert len(order._heard) == 2


def test_what_is_said_next_is_later_also_when_the_clock_was_set_back_a_little() -> None:
    order = Order()
    first = order.stamp(NOON)
    second = order.stamp(NOON - timedelta(seconds=1))
    assert first == NOON < second < NOON + timedelta(seconds=1)
    # By much, others would not believe it.
    assert order.stamp(NOON - timedelta(hours=1)) == NOON - timedelta(hours=1)


def test_a_message_of_any_number_of_vms_fits_and_a_huge_one_is_refused(bob: Vm) -> None:
    names = [f"{number:064}" for number in range(100)]
    assert tell(bob, message(names=names, resources=names)) == 200
    assert len(bob.heard()) == 100
    assert tell(bob, message(resources=["x" * 20_000])) == 413


# The secret


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "too short"), (b" " * 40, "too short"), (b"fifteen letters", "too short")]
)
def test_a_secret_that_is_too_short_is_refused_without_being_shown(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(file.ConfigError, match="too short") as refused:
        Seal.read(str(path))
    assert "fifteen" not in refused.value.message


def test_a_secret_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(file.ConfigError, match="cannot be read: no such file"):
        Seal.read(str(tmp_path / "nothing"))


def test_the_secret_never_leaves(secret: Path) -> None:
    with socket.create_server((HOST, 0)) as line:
        line.settimeout(5)
        alice = Vm("alice", secret).start()
        alice.meet(bob="{}:{}".format(*line.getsockname()))
        alice.peers.tell({EVENT: (("alice", "bob"), NOON)})
        caller, _ = line.accept()
        with caller, contextlib.closing(alice):
            sent = caller.recv(65536)
    assert EVENT.encode() in sent
    assert SECRET not in sent
    assert SECRET.decode() not in repr(vars(alice.peers))


MOMENTS = st.integers(0, 10**10).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@given(body=st.binary(max_size=200), other=st.binary(max_size=200), moment=MOMENTS, secret=st.binary(min_size=16))
def test_a_signature_holds_for_what_it_was_made_for_and_for_nothing_else(
    body: bytes, other: bytes, moment: datetime, secret: bytes
) -> None:
    seal = Seal(secret)
    signature = seal.sign("POST", "/a", body, moment)
    assert seal.holds(signature, "POST", "/a", body, moment)
    assert seal.holds(signature, "POST", "/a", other, moment) == (body == other)
    assert not seal.holds(signature, "PUT", "/a", body, moment)
    assert not Seal(secret + b"x").holds(signature, "POST", "/a", body, moment)
