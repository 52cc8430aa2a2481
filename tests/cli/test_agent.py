"""`forenotice agent check` and `status`, beside what they tell of handlers."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.agent.rules.builders import T0, event
from tests.agent.test_peers import Vm
from tests.agent.test_status import a_status
from tests.cli.conftest import Ran, Run

from forenotice.agent import status
from forenotice.agent.rules import transitions
from forenotice.agent.status import PeerStatus
from forenotice.clock import MachineClock

UNAPPROVED = 'No handler prepares for {}: such events are not approved, unless approve = "always" is set.'


class Check(Protocol):
    def __call__(self, text: str, *more: str, state: str = "state", failing: int = 0) -> Ran: ...


@pytest.fixture
def check(run: Run, tmp_path: Path) -> Check:
    """`agent check`, of an agent.toml with this text."""

    def call(text: str, *more: str, state: str = "state", failing: int = 0) -> Ran:
        (tmp_path / "agent.toml").write_text(text)
        where = ("--config", str(tmp_path / "agent.toml"), "--state", str(tmp_path / state))
        return run("agent", "check", *where, *more, failing=failing)

    return call


@pytest.mark.parametrize(
    ("text", "state", "problem"),
    [
        ('listen = "192.0.2.1:0"', "a/b", "Nothing can listen on 192.0.2.1:0: Cannot assign requested address."),
        ('act_for = ["web-1", ""]', "a/b", "A name in act_for is empty: give the names of VMs."),
        ("", "a/b", ""),
        ('listen = "127.0.0.1:8256"', "a/b", ""),
        ("", "file/b", "The state directory {0}/file/b cannot be used: {0}/file is not a directory."),
        ("", "open", "the state directory {0}/open can be changed by other users"),
        ("", "open/not/yet", "{0}/open, which leads to {0}/open/not/yet, can be changed by other users"),
    ],
)
def test_problems(check: Check, tmp_path: Path, text: str, state: str, problem: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    found = check(text, "--json", state=state, failing=int(bool(problem))).json
    assert (len(found["problems"]), found["ok"]) == (1 if problem else 0, not problem)
    assert problem.format(tmp_path) in "".join(found["problems"])


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("", "Freeze, Reboot, Redeploy, Preempt, Terminate"),
        ('[[approve.at_once]]\ntypes = ["Freeze"]', "Reboot, Redeploy, Preempt, Terminate"),
        ('approve = "always"', ""),
    ],
)
def test_events_that_are_not_approved_are_named(check: Check, text: str, types: str) -> None:
    found = check(text, "--json").json
    assert (found["ok"], found["warnings"]) == (True, [UNAPPROVED.format(types)] if types else [])


# Peers


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("sixteen or more bytes")
    return path


@pytest.fixture
def bob(secret: Path) -> Iterator[Vm]:
    vm = Vm("bob", secret, now=MachineClock().now()).start()
    vm.meet()
    yield vm
    vm.close()


def config(secret: Path, addresses: str = "") -> str:
    return f'name = "alice"\nlisten = "127.0.0.1:0"\n[peers]\nsecret_file = "{secret}"\naddresses = {{ {addresses} }}\n'


def only_peer(ran: Ran) -> Any:
    (peer,) = ran.json["peers"]
    return peer


def test_peers_are_really_tried(check: Check, secret: Path, bob: Vm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        dead = f"127.0.0.1:{probe.getsockname()[1]}"
    reached = config(secret, f'alice = "127.0.0.1:1", bob = "{bob.place}"')
    peer = only_peer(check(reached, "--peers", "--json"))
    assert (peer["name"], peer["address"], peer["ok"]) == ("bob", bob.place, True)
    assert peer["said"].startswith("received from alice in ")
    assert bob.known == []
    ran = check(config(secret, f'bob = "{bob.place}", carol = "{dead}"'), "--peers", failing=1)
    ran.shows(rf"carol +{dead} +problem +unreachable: Connection refused")
    secret.write_text("another secret than bob has")
    peer = only_peer(check(reached, "--peers", "--json", failing=1))
    assert (peer["ok"], peer["said"].partition(":")[0]) == (False, "wrong secret")


def test_vms_that_share_an_event_are_tried_although_no_address_is_given(
    check: Check, secret: Path, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    shared = transitions.appeared(event(resources=("alice", "..", "_ALICE")), T0)
    status.write(tmp_path / "state", a_status(sagas=(shared,)))
    peer = only_peer(check(config(secret), "--peers", "--json", failing=1))
    assert (peer["name"], peer["address"]) == ("..", "..:8256")


def test_a_check_without_peers_is_a_problem(check: Check, secret: Path) -> None:
    for text, problem in (
        ("", "agent.toml has no [peers], so there is no peer to check: add it, or leave out --peers"),
        (config(secret), "there is no peer to check: [peers] has no addresses, and no live event names another VM"),
    ):
        assert check(text, "--peers", "--json", failing=1).json["problems"] == [problem]
    secret.write_text("too short")
    (problem,) = check(config(secret, 'bob = "127.0.0.1:1"'), "--peers", "--json", failing=1).json["problems"]
    assert "too short" in problem, "once, although it is met twice"


def test_the_status_names_peers_in_trouble_and_that_it_only_observes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").touch()
    company = (
        PeerStatus(name="web-1", ready_at=None, trouble="wrong secret: 10.0.0.11:8256 has another one"),
        PeerStatus(name="web-2", ready_at=MachineClock().now(), trouble=""),
    )
    status.write(tmp_path, a_status(peers={"E1": company}, observe=True))
    where = ("--config", str(tmp_path / "agent.toml"), "--state", str(tmp_path))
    ran = run("agent", "status", *where, failing=1)
    assert "only to observe: nothing is run or approved" in ran.out
    ran.shows(
        "  peer web-1: not ready yet; wrong secret: 10.0.0.11:8256 has another one", "  peer web-2: ready since .*"
    )
