"""Where seconds count: a Preempt's thirty, and those for which a Freeze stopped everything."""

import signal
import threading
import time
from pathlib import Path

import pytest
from tests.acceptance.agents import agent, command, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.meddling import meddler, said
from tests.acceptance.running import HOST, Server, serving, until

FROZEN = 1.5
CHECKPOINT = command("checkpoint", {"prepare": 'sleep 1; echo saved >> "$DIARY"'})
TELL = command("tell", {"recover": 'echo "$FORENOTICE_PAUSE_SECONDS" > "$DIARY.pause"'})


def seconds_until_started(server: Server, name: str) -> float:
    """Evict the VM; how long it takes until that has begun."""
    begun = time.monotonic()
    (event,) = server.schedule("eviction", name)["events"]
    assert event["type"] == "Preempt"
    until(lambda: server.get(f"/v1/events/{event['id']}")["status"] == "Started")
    return time.monotonic() - begun


def smoothly(home: Path, server: Server) -> None:
    with agent(home, f"http://{server.listeners['batch']}", CHECKPOINT) as guest:
        guest.until_logged("agent.named")
        assert seconds_until_started(server, "batch") < 20
        assert guest.done == ["saved"]
        guest.until_logged("approval.done")


def with_trouble(home: Path, server: Server) -> None:
    """Nobody holds its polls, so it asks once a second, as it would on Azure; and just then some of them fail."""
    with meddler(server.listeners["batch-2"]) as between:
        between.patient = False
        with agent(home, between.url, CHECKPOINT) as guest:
            guest.until_logged("agent.named")
            between.fail_first(said(503), said(429, Retry_After="2"), method="GET")
            assert seconds_until_started(server, "batch-2") < 25
            assert guest.done == ["saved"]
            guest.until_logged("approval.done")


def thirty_seconds_suffice_for_a_preempt(home: Path, _: Fleet) -> None:
    """With all settings as they come, on both sides."""
    home.mkdir()
    listeners = ("--metadata", f"{HOST}:0=batch", "--metadata", f"{HOST}:0=batch-2")
    with serving(home, "--demo", *listeners) as server:
        another = {"host": "host-c", "spot": True, "policy": {"listening": "always"}}
        server.post("/v1/fleet", {"vms": {"batch-2": another}})
        tell(home, server, smoothly, with_trouble)


def a_freeze_is_measured(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    config = 'listen = "127.0.0.1:0"\n' + diary() + TELL
    with agent(home, vm.endpoint, config) as guest:
        guest.until_logged("agent.named")
        event_id = vm.maintain_host("host-update")
        guest.until_state("started")
        begun = time.monotonic()
        guest.signal(signal.SIGSTOP)
        threading.Event().wait(FROZEN)
        guest.signal(signal.SIGCONT)
        guest.until_state("done")
        measured = guest.until_logged("freeze.measured")
        at_most = time.monotonic() - begun
        assert (measured["event_id"], measured["announced_seconds"]) == (event_id, 9)
        # A busy machine may have stood still for longer.
        assert FROZEN - 0.2 < measured["seconds"] < at_most
        told = float((guest.home / "diary.pause").read_text())
        assert told == pytest.approx(measured["seconds"], abs=0.01)
        (recent,) = until(lambda: guest.status["recent"])
        assert recent["pause"]["seconds"] == pytest.approx(told, abs=0.01)
        assert f"{told:.1f} s (9 s announced)" in guest.cli("status").stdout
        assert f"freeze_measured_seconds {recent['pause']['seconds']}" in guest.page("/metrics").body.decode()


def test_timing(fleet: Fleet, tmp_path: Path) -> None:
    tell(tmp_path, fleet, thirty_seconds_suffice_for_a_preempt, a_freeze_is_measured)
