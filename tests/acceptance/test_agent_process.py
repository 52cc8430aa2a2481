"""The agent as a process: signals, a second one, what systemd is told, and what nobody is told."""

import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

from tests.acceptance.agents import agent, command, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.running import HOST, run, until

NEVER = '[approve]\nwhen = "never"\n'
WHOLE = ("prepare drain 1", "on_started drain 1", "recover drain 1")
SECRET = "Bearer 7d1c-nobody-must-see-this"


def another_configuration(home: Path, fleet: Fleet) -> None:
    """What prepared is asked to recover, also when it is no longer there; and what is new takes part from then on."""
    vm = fleet.alone()
    with agent(home, vm.endpoint, NEVER + diary() + diary("old", ["prepare", "recover"])) as guest:
        vm.restart()
        guest.until_state("prepared")
        guest.reload(diary() + diary("new", ["prepare", "recover"], stage=1))
        assert guest.until_logged("agent.reloaded")["needs_a_restart"] == []
        guest.until_state("done")
        assert sorted(guest.done[:2]) == ["prepare drain 1", "prepare old 1"]
        assert guest.done[2] == "on_started drain 1"
        assert sorted(guest.done[3:]) == ["recover drain 1", "recover old 1"]
        guest.forget()
        vm.restart()
        until(lambda: guest.moves.count("done") == 2)
        assert guest.done == [*WHOLE[:1], "prepare new 1", "on_started drain 1", "recover new 1", "recover drain 1"]


def a_broken_configuration(home: Path, fleet: Fleet) -> None:
    """The old one holds, after a restart in the middle too: then nothing runs until it is mended."""
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary()) as guest:
        guest.until_logged("agent.named")
        guest.reload("[[handler]]\nname = 'drain'\ntype = 'comand'\n")
        assert "'comand': give one of command, " in guest.until_logged("agent.reload_failed")["reason"]
        vm.restart()
        guest.until_done(*WHOLE)
        guest.config.unlink()
        guest.signal(signal.SIGHUP)
        until(lambda: len(guest.logged("agent.reload_failed")) == 2)
        assert guest.terminate() == 0
        refused = run("forenotice", "agent", "run", *guest.flags, env=guest.env)
        assert (refused.returncode, "cannot be read" in refused.stderr) == (2, True)
        assert "Traceback" not in refused.stderr


def settings_that_need_a_restart(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary()) as guest:
        guest.reload('name = "another"\n' + diary())
        assert guest.until_logged("agent.reloaded")["needs_a_restart"] == ["name"]
        vm.restart()
        guest.until_done(*WHOLE)


def told_to_end_while_preparing(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary()) as guest:
        guest.hold("prepare")
        event_id = vm.restart()
        guest.until_begun("prepare drain 1")
        begun = time.monotonic()
        assert guest.terminate() == 0
        assert time.monotonic() - begun < 5
        assert guest.logged("agent.stopped")
        guest.release("prepare")
        assert vm.event(event_id)["approved_at"] is None
        guest.start()
        guest.until_done("prepare drain 2", *WHOLE[1:])


def told_to_end_with_a_stubborn_handler(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    stubborn = "trap '' TERM; echo $$ > \"$DIARY.pid\"; while :; do sleep 0.1; done"
    with agent(home, vm.endpoint, command("stuck", {"prepare": stubborn})) as guest:
        vm.restart()
        until((home / "diary.pid").exists)
        begun = time.monotonic()
        assert guest.terminate() == 0
        assert time.monotonic() - begun < 30
        process = (home / "diary.pid").read_text().strip()
        assert not Path(f"/proc/{process}").exists()


def a_second_one(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary()) as guest:
        guest.until_logged("agent.named")
        second = run("forenotice", "agent", "run", *guest.flags, env=guest.env)
        assert second.returncode == 1
        assert second.stderr == f"forenotice: another agent runs on the state directory {guest.state}\n"
        vm.restart()
        guest.until_done(*WHOLE)


def what_systemd_is_told(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    home.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(home / "notify"))
        systemd.setblocking(False)
        told: list[str] = []

        def heard(line: str) -> bool:
            with suppress(BlockingIOError):
                while True:
                    told.extend(systemd.recv(4096).decode().splitlines())
            return line in told

        def until_told(line: str) -> None:
            until(lambda: heard(line), what=lambda: f"{line} among {told}")

        env = {"NOTIFY_SOCKET": str(home / "notify"), "WATCHDOG_USEC": "4000000"}
        scripts = {"prepare": 'env > "$DIARY.env"', "recover": "true"}
        with agent(home, vm.endpoint, command("drain", scripts), **env) as guest:
            until_told("READY=1")
            until_told("WATCHDOG=1")
            vm.restart()
            until_told("STATUS=Reboot: started")
            until_told("STATUS=no event is near")
            told.clear()
            until_told("WATCHDOG=1")
            guest.reload(diary())
            until_told("RELOADING=1")
            until_told("READY=1")
            assert guest.terminate() == 0
            until_told("STOPPING=1")
        # No handler speaks for the agent.
        assert "NOTIFY_SOCKET" not in (home / "diary.env").read_text()


def a_dead_sink_and_a_secret(home: Path, fleet: Fleet) -> None:
    """A webhook to nowhere changes nothing, and what it would have sent is in no log."""
    vm = fleet.alone()
    home.mkdir()
    (home / "token").touch(0o600)
    (home / "token").write_text(SECRET)
    webhook = (
        f'[[handler]]\nname = "chat"\ntype = "webhook"\nurl = "http://{HOST}:1/hook?key={SECRET[-8:]}"\n'
        f'header_files = {{ Authorization = "{home / "token"}" }}\non_failure = "continue"\nretries = 0\n'
    )
    notify = f'[[handler]]\nname = "page"\ntype = "notify"\nurls = ["json://{HOST}:1"]\nphases = ["prepare"]\n'
    with agent(home, vm.endpoint, webhook + notify + diary(stage=1)) as guest:
        vm.restart()
        guest.until_done(*WHOLE)
        guest.until_state("done")
        assert "connection refused" in guest.until_logged("step.failed", handler="chat")["output"]
        guest.until_logged("step.failed", handler="page")
        assert guest.until_logged("approval.done")
        shown = guest.errors + str(guest.status) + guest.cli("status").stdout
        assert SECRET not in shown
        assert SECRET[-8:] not in shown


def test_processes(fleet: Fleet, tmp_path: Path) -> None:
    tell(
        tmp_path,
        fleet,
        another_configuration,
        a_broken_configuration,
        settings_that_need_a_restart,
        told_to_end_while_preparing,
        told_to_end_with_a_stubborn_handler,
        a_second_one,
        what_systemd_is_told,
        a_dead_sink_and_a_secret,
    )
