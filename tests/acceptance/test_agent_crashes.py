"""An agent that is killed at any step goes on where it was: the journal knew before anything was done."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.agents import Agent, agent, command, diary, tell
from tests.acceptance.guests import Fleet, Vm
from tests.acceptance.meddling import meddler
from tests.acceptance.running import until
from tests.programs.test_process import alive

from forenotice.agent.rules.saga import State

WHOLE = ("prepare drain 1", "on_started drain 1", "recover drain 1")
NEVER = '[approve]\nwhen = "never"\n'


@contextmanager
def mortal(home: Path, vm: Vm, config: str, endpoint: str = "") -> Iterator[Agent]:
    """An agent that is going to be killed; at last its event must be done with."""
    with agent(home, endpoint or vm.endpoint, config) as guest:
        guest.until_logged("agent.named")
        yield guest
        guest.until_state("done")


def kill(guest: Agent, event_id: str, state: State, config: str = "") -> None:
    """And start again: in that state."""
    guest.kill()
    if config:
        guest.configure(config)
    guest.start()
    found = guest.until_logged("saga.resumed")
    assert (found["event_id"], found["state"]) == (event_id, state)


def seen(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with mortal(home, vm, diary(when="NotBefore - 1s")) as guest:
        event_id = vm.restart()
        guest.until_logged("saga.seen")
        kill(guest, event_id, State.SEEN, config=diary())
        guest.until_done(*WHOLE)


def preparing(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with mortal(home, vm, diary()) as guest:
        guest.hold("prepare")
        event_id = vm.restart()
        guest.until_begun("prepare drain 1")
        kill(guest, event_id, State.PREPARING)
        guest.until_begun("prepare drain 2")
        assert not vm.event(event_id)["approved_at"]
        guest.release("prepare")
        guest.until_done("prepare drain 2", *WHOLE[1:])


FORKING = """
if [ "$FORENOTICE_ATTEMPT" = 1 ]; then
    for number in 1 2; do (for turn in $(seq 2000); do sleep 0.05; done) & echo $! >> "$DIARY.pids"; done
    echo $$ >> "$DIARY.pids"
    echo "first" >> "$DIARY"
    wait
fi
for pid in $(cat "$DIARY.pids"); do
    case "$(cut -d " " -f 3 /proc/$pid/stat 2> /dev/null)" in "" | Z | X) ;; *) echo "beside $pid" >> "$DIARY" ;; esac
done
echo "again" >> "$DIARY"
"""


def preparing_outside_systemd(home: Path, fleet: Fleet) -> None:
    """Nobody but the next agent ends the handler, and all that it started, of one that was killed."""
    vm = fleet.alone()
    with mortal(home, vm, command("drain", {"prepare": FORKING, "recover": "true"})) as guest:
        event_id = vm.restart()
        guest.until_done("first")
        guest.die()
        pids = [int(pid) for pid in (home / "diary.pids").read_text().split()]
        assert all(map(alive, pids))
        guest.start()
        guest.until_logged("step.interrupted", event_id=event_id, handler="drain", phase="prepare", attempt=1)
        guest.until_done("first", "again")
        assert not any(map(alive, pids))


def prepared(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with mortal(home, vm, NEVER + diary()) as guest:
        event_id = vm.restart()
        guest.until_state("prepared")
        kill(guest, event_id, State.PREPARED, config=diary())
        guest.until_done(*WHOLE)


def approved(home: Path, fleet: Fleet) -> None:
    """Somebody else on the host takes longer."""
    vm, other = fleet.twins()
    with mortal(home, vm, diary()) as guest:
        event_id = vm.maintain_host()
        guest.until_state("approved")
        kill(guest, event_id, State.APPROVED)
        other.approve(*other.listed)
        guest.until_done(*WHOLE)
        assert guest.logged("approval.done") == []


def started(home: Path, fleet: Fleet) -> None:
    """In the middle of what is done then. The document says Started for as long as that takes."""
    vm = fleet.alone()
    with meddler(vm.place) as between, mortal(home, vm, diary(), between.url) as guest:
        guest.hold("on_started")
        event_id = vm.restart()
        guest.until_begun("on_started drain 1")
        between.pin()
        kill(guest, event_id, State.STARTED)
        guest.until_begun("on_started drain 2")
        guest.release("on_started")
        guest.until_done("prepare drain 1", "on_started drain 2")
        between.unpin()
        guest.until_done("prepare drain 1", "on_started drain 2", "recover drain 1")


def rebooted(home: Path, fleet: Fleet) -> None:
    """Killed by what it prepared for, and back when that is over."""
    vm = fleet.alone()
    with mortal(home, vm, diary()) as guest:
        event_id = vm.restart()
        guest.until_done(*WHOLE[:2])
        guest.kill()
        vm.until_over(event_id)
        guest.start()
        assert guest.until_logged("saga.resumed")["state"] == State.STARTED
        guest.until_done(*WHOLE)


def recovering(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with mortal(home, vm, diary()) as guest:
        guest.hold("recover")
        event_id = vm.restart()
        guest.until_begun("recover drain 1")
        kill(guest, event_id, State.RECOVERING)
        guest.until_begun("recover drain 2")
        guest.release("recover")
        guest.until_done(*WHOLE[:2], "recover drain 2")


def undoing(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with mortal(home, vm, NEVER + diary()) as guest:
        guest.hold("undo")
        event_id = vm.restart()
        guest.until_done("prepare drain 1")
        vm.cancel(event_id)
        guest.until_begun("undo drain 1")
        kill(guest, event_id, State.UNDOING)
        guest.until_begun("undo drain 2")
        guest.release("undo")
        guest.until_done("prepare drain 1", "undo drain 2")


def done(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with mortal(home, vm, diary()) as guest:
        vm.restart()
        guest.until_done(*WHOLE)
        guest.until_state("done")
        guest.kill()
        guest.start()
        # Of another event it can be seen that the first is not done again.
        vm.restart()
        guest.until_done(*WHOLE, *WHOLE)
        assert guest.logged("saga.resumed") == []


@contextmanager
def forgetful(home: Path, endpoint: str, config: str = "") -> Iterator[Agent]:
    """An agent that is going to lose its state. On its first start it had none, and has recovered from that."""
    handlers = diary() + diary("mount", always_recover=True, stage=1)
    with agent(home, endpoint, config + handlers) as guest:
        guest.until_done("recover mount 1")
        guest.until_state("done")
        guest.forget()
        yield guest


def restart_without_state(guest: Agent) -> None:
    guest.kill()
    guest.lose_state()
    guest.forget()
    guest.start()


def lost_in_the_reboot(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with forgetful(home, vm.endpoint) as guest:
        event_id = vm.restart()
        guest.until_begun("on_started mount 1")
        guest.kill()
        vm.until_over(event_id)
        guest.lose_state()
        guest.forget()
        guest.start()
        guest.until_state("done")
        assert guest.begun == ["recover mount 1"]
        # That is settled once and for all.
        guest.kill()
        guest.start()
        vm.restart()
        guest.until_state("done")
        assert guest.begun.count("recover mount 1") == 2


def lost_while_started(home: Path, fleet: Fleet) -> None:
    """It recovers when the event is over, not before."""
    vm = fleet.alone()
    with meddler(vm.place) as between, forgetful(home, between.url) as guest:
        vm.restart()
        guest.until_begun("on_started mount 1")
        between.pin()
        restart_without_state(guest)
        guest.until_done("on_started drain 1", "on_started mount 1")
        between.unpin()
        guest.until_state("done")
        assert guest.begun[2:] == ["recover mount 1"]


def lost_before_the_start(home: Path, fleet: Fleet) -> None:
    """What is listed is prepared for as if for the first time, after recovering from whatever was."""
    vm = fleet.alone()
    with forgetful(home, vm.endpoint, NEVER) as guest:
        event_id = vm.restart()
        guest.until_state("prepared")
        restart_without_state(guest)
        guest.until_state("prepared")
        assert sorted(guest.begun[:2]) == ["prepare drain 1", "recover mount 1"]
        assert guest.begun[2:] == ["prepare mount 1"]
        vm.cancel(event_id)
        until(lambda: guest.begun[3:] == ["undo mount 1", "undo drain 1"])


STEPS = (seen, preparing, prepared, approved, started, recovering, undoing, done)
LOSSES = (lost_in_the_reboot, lost_while_started, lost_before_the_start)


def test_killed_at_every_step(fleet: Fleet, tmp_path: Path) -> None:
    assert [step.__name__ for step in STEPS] == list(State)
    tell(tmp_path, fleet, *STEPS, preparing_outside_systemd, rebooted, *LOSSES)
