"""`forenotice agent check`, beside what it says of handlers."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.agent.rules.builders import T0, event
from tests.agent.test_peers import Vm
from tests.agent.test_status import a_status

from forenotice.agent import status
from forenotice.agent.rules import transitions
from forenotice.agent.status import PeerStatus
from forenotice.cli.main import program
from forenotice.clock import MachineClock


def check(home: Path, text: str = "", state: str = "state", *more: str) -> Result:
    (home / "agent.toml").write_text(text)
    arguments = ["--config", str(home / "agent.toml"), "--state", str(home / state), *more]
    return CliRunner().invoke(program, ["agent", "check", *arguments], env={"COLUMNS": "200"}, standalone_mode=False)


UNAPPROVED = 'No handler prepares for {}: such events are not approved, unless approve = "always" is set.'


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
def test_problems(tmp_path: Path, text: str, state: str, problem: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    found = json.loads(check(tmp_path, text, state, "--json").stdout)
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
def test_events_that_are_not_approved_are_named(tmp_path: Path, text: str, types: str) -> None:
    found = json.loads(check(tmp_path, text, "state", "--json").stdout)
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


def check_peers(home: Path, text: str, *more: str) -> Result:
    return check(home, text, "state", "--peers", *more)


def config(secret: Path, addresses: str = "") -> str:
    return f'name = "alice"\nlisten = "127.0.0.1:0"\n[peers]\nsecret_file = "{secret}"\naddresses = {{ {addresses} }}\n'


def test_peers_are_really_tried(tmp_path: Path, secret: Path, bob: Vm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        dead = f"127.0.0.1:{probe.getsockname()[1]}"
    hears = config(secret, f'alice = "127.0.0.1:1", bob = "{bob.place}"')
    told = check_peers(tmp_path, hears, "--json")
    found = json.loads(told.stdout)
    assert (told.return_value, found["ok"]) == (0, True)
    (peer,) = found["peers"]
    assert (peer["name"], peer["address"], peer["ok"]) == ("bob", bob.place, True)
    assert peer["said"].startswith("received from alice in ")
    assert bob.known == []
    told = check_peers(tmp_path, config(secret, f'bob = "{bob.place}", carol = "{dead}"'))
    assert told.return_value == 1
    (line,) = [line for line in told.stdout.splitlines() if "carol" in line]
    assert line.split(maxsplit=3) == ["carol", dead, "problem", "unreachable: Connection refused"]
    secret.write_text("another secret than bob has")
    told = check_peers(tmp_path, hears, "--json")
    (peer,) = json.loads(told.stdout)["peers"]
    assert (told.return_value, peer["ok"], peer["said"].partition(":")[0]) == (1, False, "wrong secret")


def test_those_who_share_an_event_are_tried_although_no_address_is_given(tmp_path: Path, secret: Path) -> None:
    (tmp_path / "state").mkdir()
    shared = transitions.appeared(event(resources=("alice", "..", "_ALICE")), T0)
    status.write(tmp_path / "state", a_status(sagas=(shared,)))
    told = check_peers(tmp_path, config(secret), "--json")
    (peer,) = json.loads(told.stdout)["peers"]
    assert (told.return_value, peer["name"], peer["address"]) == (1, "..", "..:8256")


def test_that_there_is_nobody_to_try_is_a_problem(tmp_path: Path, secret: Path) -> None:
    for text, said in (
        ("", "agent.toml has no [peers], so there is no peer to check: add it, or leave out --peers"),
        (config(secret), "there is no peer to check: [peers] has no addresses, and no live event names another VM"),
    ):
        told = check_peers(tmp_path, text, "--json")
        assert (told.return_value, json.loads(told.stdout)["problems"]) == (1, [said])
    secret.write_text("too short")
    told = check_peers(tmp_path, config(secret, 'bob = "127.0.0.1:1"'), "--json")
    (problem,) = json.loads(told.stdout)["problems"]
    assert "too short" in problem, "once, although it is met twice"


def test_the_status_names_who_has_not_answered_and_that_it_only_observes(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").touch()
    company = (
        PeerStatus(name="web-1", ready_at=None, trouble="wrong secret: 10.0.0.11:8256 has another one"),
        PeerStatus(name="web-2", ready_at=MachineClock().now(), trouble=""),
    )
    status.write(tmp_path, a_status(peers={"E1": company}, observe=True))
    arguments = ["status", "--config", str(tmp_path / "agent.toml"), "--state", str(tmp_path)]
    shown = CliRunner().invoke(program, ["agent", *arguments], env={"COLUMNS": "200"}).stdout
    assert "only to observe: nothing is run or approved" in shown
    assert "peer web-1: not ready yet; wrong secret: 10.0.0.11:8256 has another one" in shown
    assert "peer web-2: ready since" in shown
