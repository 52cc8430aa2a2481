"""Never worse than nothing: whatever breaks, the agent neither exits nor approves by mistake, and goes on later."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.acceptance.agents import agent, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.meddling import meddler, said
from tests.acceptance.running import HOST, until
from tests.client.older import OLDEST, knowing, refusal, version_of
from tests.client.scripted import scripted

NEVER = '[approve]\nwhen = "never"\n'
WHOLE = ("prepare drain 1", "on_started drain 1", "recover drain 1")
DEAD = f"{HOST}:1"


# The endpoint


def an_endpoint_that_goes_away(home: Path, fleet: Fleet) -> None:
    """In the middle of everything; what happened meanwhile is found out afterwards."""
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, diary()) as guest:
        between.patient = False
        guest.hold("prepare")
        event_id = vm.restart()
        guest.until_begun("prepare drain 1")
        between.target = DEAD
        guest.until_logged("poll.failed")
        guest.release("prepare")
        guest.until_logged("approval.failed")
        assert guest.done == ["prepare drain 1"]
        assert vm.event(event_id)["status"] == "Scheduled"
        between.target = vm.place
        guest.until_done(*WHOLE)
        guest.until_state("done")


def an_endpoint_that_talks_nonsense(home: Path, fleet: Fleet) -> None:
    """None of it means that the event is gone."""
    vm = fleet.alone()
    nonsense = (
        said(200, b"<html>Sign in to the wireless network</html>"),
        said(200, b""),
        said(404, b'{"error":"who are you?"}'),
        said(200, b" \n"),
        said(200, b'{"DocumentIncarnation":1,"Ev'),
    )
    with meddler(vm.place) as between, agent(home, between.url, NEVER + diary()) as guest:
        between.patient = False
        event_id = vm.restart()
        guest.until_state("prepared")
        asked = between.asked
        between.fail_first(*nonsense, method="GET")
        until(lambda: between.asked > asked + len(nonsense))
        assert guest.moves == ["preparing", "prepared"]
        vm.cancel(event_id)
        guest.until_done("prepare drain 1", "undo drain 1")
        guest.until_state("done")
        reasons = " ".join(entry.get("reason", "") for entry in guest.logged("poll.failed"))
        assert "who are you?" in reasons
        assert "gave no Scheduled Events document" in reasons


def an_endpoint_that_knows_only_the_first_version(home: Path, fleet: Fleet) -> None:
    """Its names begin with an underscore, and it says nothing of sources and durations."""
    rules = diary(sources=["User"]) + diary("stop", longer_than="1m") + diary("skip", shorter_than="1m")
    with scripted(knowing([OLDEST], refusal(), Resources=["_WestNO_0"])) as endpoint:
        with agent(home, endpoint.url, rules) as guest:
            until(lambda: any(asked.method == "POST" for asked in endpoint.asked))
            guest.until_state("approved")
            assert sorted(guest.done) == ["prepare drain 1", "prepare stop 1"]
            assert [entry["api_version"] for entry in guest.logged("poll.version")] == [OLDEST]
        assert [version_of(asked) for asked in endpoint.asked if asked.method == "POST"] == [OLDEST]


# The disk


def mounted(script: str) -> tuple[str, ...]:
    """What to put before a command: mounts that nobody else sees."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True).returncode:
        assert os.environ.get("CI") != "true", "this test needs to mount a file system of its own"
        pytest.skip("needs to mount a file system of its own, as root or in a user namespace")
    return (*unshare, "sh", "-c", f'cd "$HOME" && mkdir -p state && {script} && exec "$@"', "sh")


SMALL = "mount -t tmpfs -o size=512k,mode=700 tmpfs state"
READABLE = "mount --bind state state && mount -o remount,bind,ro state"


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


def a_full_disk(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    config = 'listen = "127.0.0.1:0"\n' + diary()
    with agent(home, vm.endpoint, config, before=mounted(SMALL)) as guest:
        guest.until_logged("agent.named")
        filler = Path(f"/proc/{guest.pid}/root{guest.state}/filler")
        # What cannot be written down is not begun.
        fill(filler)
        event_id = vm.restart()
        assert "full" in guest.until_logged("journal.failed")["reason"]
        assert guest.page("/healthz").status == 200
        assert guest.begun == []
        filler.unlink()
        guest.hold("prepare")
        guest.until_begun("prepare drain 1")
        # Nor is it approved.
        fill(filler)
        guest.release("prepare")
        guest.until_logged("step.done")
        until(lambda: len(guest.logged("journal.failed")) >= 3)
        assert vm.event(event_id)["approved_at"] is None
        filler.unlink()
        guest.until_done(*WHOLE[:2])
        # But what goes back is done in any case.
        fill(filler)
        guest.until_done(*WHOLE)
        guest.until_state("done")
        filler.unlink()
        assert guest.terminate() == 0


def a_disk_that_can_only_be_read(home: Path, fleet: Fleet) -> None:
    """As after a reboot that the file system did not like: what was prepared is recovered from."""
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary()) as guest:
        event_id = vm.restart()
        guest.until_done(*WHOLE[:2])
        guest.kill()
        vm.until_over(event_id)
        guest.before = mounted(READABLE)
        guest.start()
        guest.until_logged("journal.failed")
        guest.until_done(*WHOLE)
        another = vm.restart()
        until(lambda: another in vm.listed)
        until(lambda: len(guest.logged("journal.failed")) >= 3)
        assert len(guest.begun) == 3
        vm.cancel(another)


def a_state_directory_that_is_none(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    home.mkdir()
    (home / "state").write_text("in the way")
    with agent(home, vm.endpoint, 'listen = "127.0.0.1:0"\n' + diary()) as guest:
        guest.until_logged("journal.failed")
        event_id = vm.restart()
        until(lambda: guest.page("/healthz").status == 200)
        until(lambda: len(guest.logged("journal.failed")) >= 3)
        assert guest.begun == []
        assert vm.event(event_id)["approved_at"] is None
        (home / "state").unlink()
        guest.until_done(*WHOLE)


def a_journal_that_cannot_be_read(home: Path, fleet: Fleet) -> None:
    """It is put aside, and what wants to recover then does."""
    vm = fleet.alone()
    config = NEVER + diary() + diary("mount", always_recover=True)
    with agent(home, vm.endpoint, config) as guest:
        guest.until_done("recover mount 1")
        event_id = vm.restart()
        guest.until_state("prepared")
        guest.kill()
        for name in ("journal.db-wal", "journal.db-shm"):
            (guest.state / name).unlink()
        content = b"overwritten " * 1000
        (guest.state / "journal.db").write_bytes(content)
        guest.forget()
        guest.start()
        assert Path(guest.until_logged("journal.put_aside")["kept"]).read_bytes() == content
        guest.until_state("prepared")
        assert sorted(guest.done) == ["prepare drain 1", "prepare mount 1", "recover mount 1"]
        vm.cancel(event_id)
        until(lambda: len(guest.done) == 5)


def a_journal_that_cannot_be_opened(home: Path, fleet: Fleet) -> None:
    """And a status that can be written, and says so."""
    vm = fleet.alone()
    (home / "state" / "journal.db").mkdir(parents=True)
    with agent(home, vm.endpoint, diary()) as guest:
        assert not guest.status["journal"]
        event_id = vm.restart()
        until(lambda: len(guest.logged("journal.failed")) >= 3)
        assert vm.event(event_id)["approved_at"] is None
        (guest.state / "journal.db").rmdir()
        guest.until_done(*WHOLE)
        until(lambda: guest.status["journal"])


def test_trouble(fleet: Fleet, tmp_path: Path) -> None:
    tell(
        tmp_path,
        fleet,
        an_endpoint_that_goes_away,
        an_endpoint_that_talks_nonsense,
        an_endpoint_that_knows_only_the_first_version,
        a_full_disk,
        a_disk_that_can_only_be_read,
        a_state_directory_that_is_none,
        a_journal_that_cannot_be_read,
        a_journal_that_cannot_be_opened,
    )
