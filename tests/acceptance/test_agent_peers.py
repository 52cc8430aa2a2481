"""Events that name several VMs: approved once all of them are ready, and recovered from on each of them."""

import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.acceptance.agents import Agent, agent, diary, tell
from tests.acceptance.guests import SOON, Fleet, Vm
from tests.acceptance.meddling import DroppedError, meddler
from tests.acceptance.running import HOST, until

SECRET = "known-to-all-three-and-to-nobody-else"
WHOLE = ["prepare drain 1", "on_started drain 1", "recover drain 1"]


def places(names: Sequence[str]) -> Mapping[str, str]:
    """Where each agent can listen."""
    with ExitStack() as taken:
        sockets = [taken.enter_context(socket.create_server((HOST, 0))) for _ in names]
        return {name: f"{HOST}:{line.getsockname()[1]}" for name, line in zip(names, sockets, strict=True)}


def config(home: Path, name: str, at: Mapping[str, str], timeout: str) -> str:
    secret = home / "secret"
    secret.touch(0o600)
    secret.write_text(SECRET)
    addresses = ", ".join(f'"{other}" = "{place}"' for other, place in at.items() if other != name)
    return (
        f'listen = "{at[name]}"\n'
        f'[peers]\nsecret_file = "{secret}"\ntimeout = "{timeout}"\naddresses = {{ {addresses} }}\n'
        f"{diary()}"
    )


@contextmanager
def company(home: Path, vms: Sequence[Vm], *endpoints: str, timeout: str = "20s") -> Iterator[list[Agent]]:
    """An agent in each of them; those whose endpoint is not given ask their VM's own."""
    home.mkdir()
    at = places([vm.name for vm in vms])
    with ExitStack() as started:
        guests = []
        for number, vm in enumerate(vms):
            endpoint = endpoints[number] if number < len(endpoints) else vm.endpoint
            told = config(home, vm.name, at, timeout)
            guests.append(started.enter_context(agent(home / vm.name, endpoint, told)))
        for guest in guests:
            guest.until_logged("agent.named")
        yield guests
        for guest in guests:
            assert SECRET not in guest.errors
            assert SECRET not in (guest.state / "status.json").read_text()


def all_ready(home: Path, fleet: Fleet) -> None:
    vms = fleet.trio()
    with company(home, vms) as guests:
        guests[2].hold("prepare")
        event_id = vms[0].maintain_host()
        assert vms[0].event(event_id)["resources"] == [vm.name for vm in vms]
        until(lambda: guests[0].why == f"ready; waits until {vms[2].name} is ready too")
        until(lambda: guests[1].why == f"ready; waits until {vms[2].name} is ready too")
        assert vms[0].event(event_id)["approved_at"] is None
        guests[2].release("prepare")
        for guest in guests:
            guest.until_done(*WHOLE)
        # By the first, and by nobody else.
        assert vms[0].event(event_id)["approved_by"] == vms[0].name
        guests[0].until_logged("approval.done")
        assert [len(guest.logged("approval.done")) for guest in guests] == [1, 0, 0]


def one_dead_before_it_was_ready(home: Path, fleet: Fleet) -> None:
    """Nobody speaks for it: the event comes at its NotBefore, and all recover. The dead one, which has not really been
    rebooted, undoes when it is back."""
    vms = fleet.trio()
    with company(home, vms, timeout="100ms") as guests:
        guests[2].hold("prepare")
        event_id = vms[0].maintain_host(minutes=SOON)
        guests[2].until_begun("prepare drain 1")
        guests[2].kill()
        missing = re.compile(rf"ready; waits until {vms[2].name}( \(unreachable: Connection refused\))? is ready too")
        for guest in guests[:2]:
            until(lambda guest=guest: missing.fullmatch(guest.why))  # type: ignore[misc]
        tried = guests[0].cli("check", "--peers", "--json")
        told = {peer["name"]: peer["said"] for peer in json.loads(tried.stdout)["peers"]}
        assert told[vms[1].name].startswith(f"received from {vms[0].name} ")
        assert (tried.returncode, told[vms[2].name]) == (1, "unreachable: Connection refused")
        for guest in guests[:2]:
            guest.until_done(*WHOLE)
        assert vms[0].event(event_id)["approved_at"] is None
        vms[0].until_over(event_id)
        guests[2].start()
        guests[2].until_done("undo drain 1")


def the_first_dead_after_it_was_ready(home: Path, fleet: Fleet) -> None:
    """The next one approves after a while."""
    vms = fleet.trio()
    with meddler(vms[0].place) as between, company(home, vms, between.url, timeout="3s") as guests:
        between.fail_first(*[DroppedError] * 100)
        event_id = vms[0].maintain_host()
        until(lambda: guests[1].why == f"all are ready; {vms[0].name} approves first")
        guests[0].kill()
        assert vms[0].event(event_id)["approved_at"] is None
        for guest in guests[1:]:
            guest.until_done(*WHOLE)
        assert vms[0].event(event_id)["approved_by"] == vms[1].name
        guests[1].until_logged("approval.done")
        assert [len(guest.logged("approval.done")) for guest in guests[1:]] == [1, 0]
        vms[0].until_over(event_id)
        guests[0].start()
        guests[0].until_done("prepare drain 1", "undo drain 1")


def one_that_is_no_longer_ready(home: Path, fleet: Fleet) -> None:
    """It was, and lost its state; it was again, and is told never to approve."""
    vms = fleet.trio()
    with company(home, vms) as guests:
        first, other, third = guests
        third.hold("prepare")
        event_id = vms[0].maintain_host()
        for_one = f"ready; waits until {vms[2].name} is ready too"
        for_two = f"ready; waits until {vms[1].name}, {vms[2].name} are ready too"
        until(lambda: first.why == for_one)
        other.kill()
        other.lose_state()
        other.hold("prepare")
        other.start()
        until(lambda: first.why == for_two)
        other.release("prepare")
        until(lambda: first.why == for_one)
        other.reload(other.config.read_text() + '[approve]\nwhen = "never"\n')
        until(lambda: first.why == for_two)
        third.release("prepare")
        until(lambda: first.why == f"ready; waits until {vms[1].name} is ready too")
        assert vms[0].event(event_id)["approved_at"] is None
        vms[0].cancel(event_id)
        # For all that it knows, the others became ready and approved; but this machine was not rebooted.
        first.until_done("prepare drain 1", "undo drain 1")


def without_peers(home: Path, fleet: Fleet) -> None:
    """Nobody approves for others."""
    vms = fleet.trio()
    with agent(home, vms[0].endpoint, diary()) as guest:
        event_id = vms[0].maintain_host()
        others = f"{vms[1].name}, {vms[2].name}"
        until(lambda: guest.why == f"ready; not approved, because the event also names {others} and [peers] is not set")
        vms[0].cancel(event_id)
        guest.until_done("prepare drain 1", "undo drain 1")
        assert guest.logged("approval.done") == []


def test_several_vms_in_one_event(fleet: Fleet, tmp_path: Path) -> None:
    tell(
        tmp_path,
        fleet,
        all_ready,
        one_dead_before_it_was_ready,
        the_first_dead_after_it_was_ready,
        one_that_is_no_longer_ready,
        without_peers,
    )
