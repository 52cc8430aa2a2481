"""`agent check` and `agent status`, beside a running agent and without one."""

import json
import re
from pathlib import Path

from tests.acceptance.agents import Agent, agent, command, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.running import until

NEVER = '[approve]\nwhen = "never"\n'


def facts(text: str) -> dict[str, str]:
    """What `status` lists, one fact a line."""
    return dict(re.findall(r"^(\S+(?: \S+)*) {2,}(\S.*)$", text, re.MULTILINE))


# Status


def a_life_as_status_tells_it(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary()) as guest:
        guest.until_logged("agent.named")
        guest.hold("prepare")
        until(lambda: guest.status["name"])
        quiet = guest.cli("status")
        assert quiet.returncode == 0
        told = facts(quiet.stdout)
        assert told["agent"].startswith(f"runs (process {guest.pid})")
        assert (told["this VM"], told["endpoint"]) == (vm.name, vm.endpoint)
        assert (told["polling"], told["ready"]) == ("works", "yes")
        assert "No event has concerned this VM yet." in quiet.stdout

        event_id = vm.restart()
        until(lambda: "at work" in guest.why)
        busy = guest.cli("status")
        told = facts(busy.stdout)
        assert (told["event"], told["state"], told["type"]) == (event_id, "preparing", "Reboot")
        assert told["why"] == "drain is at work (prepare, attempt 1)"
        assert told["ready"] == "no: Reboot: drain is at work (prepare, attempt 1)"
        assert "prepare drain: running" in busy.stdout
        found = json.loads(guest.cli("status", "--json").stdout)
        assert (found["running"], found["status"]["sagas"][0]["event_id"]) == (True, event_id)

        guest.release("prepare")
        guest.until_state("done")
        until(lambda: guest.status["recent"])
        assert guest.terminate() == 0
        over = guest.cli("status")
        assert over.returncode == 1
        assert facts(over.stdout)["agent"].startswith("does not run")
        assert re.search(rf"Reboot +{event_id} +recovered$", over.stdout, re.MULTILINE)
        found = json.loads(guest.cli("status", "--json").stdout)
        assert (found["running"], found["status"]["recent"][0]["why"]) == (False, "recovered")


def what_it_waits_for(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary(when="NotBefore - 1s"), covered=False) as guest:
        event_id = vm.restart()
        until(lambda: guest.why.startswith("drain begins at "))
        told = facts(guest.cli("status").stdout)
        assert (told["state"], told["ready"]) == ("seen", "yes")
        assert re.fullmatch(r"drain begins at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", told["why"])
        guest.reload(NEVER + diary())
        until(lambda: guest.why == "ready; this agent is set never to approve")
        assert facts(guest.cli("status").stdout)["why"] == "ready; this agent is set never to approve"
        vm.cancel(event_id)
        guest.until_state("done")
        until(lambda: guest.status["recent"])
        assert "cancelled before its start, and undone" in guest.cli("status").stdout


def without_an_agent(home: Path, _: Fleet) -> None:
    home.mkdir()
    guest = Agent(home, "", diary(), covered=False)
    told = guest.cli("status")
    assert (told.returncode, told.stdout) == (1, "The agent has not run yet.\n")
    assert json.loads(guest.cli("status", "--json").stdout) == {"running": False, "status": None}
    guest.state.mkdir()
    (guest.state / "status.json").write_text('{"pid": ')
    told = guest.cli("status")
    assert (told.returncode, "cannot be read" in told.stderr, "Traceback" in told.stderr) == (1, True, False)


# Check


def well_configured(home: Path, _: Fleet) -> None:
    home.mkdir()
    guest = Agent(home, "", 'act_for = ["web-7"]\n' + diary(types=["Reboot"], when="NotBefore - 5m", stage=3))
    told = guest.cli("check")
    assert told.returncode == 0, told
    assert "is well-formed." in told.stdout
    assert "It also acts for web-7." in told.stdout
    assert re.search(
        r"^drain +command +3 +Reboot +5 min before NotBefore +ok +prepare would", told.stdout, re.MULTILINE
    )
    found = json.loads(guest.cli("check", "--json").stdout)
    assert (found["ok"], found["problems"], found["handlers"][0]["handler"]) == (True, [], "drain")
    # It changes nothing.
    assert (guest.begun, guest.state.exists()) == ([], False)


def something_missing(home: Path, _: Fleet) -> None:
    home.mkdir()
    missing = command("drain", {"prepare": "/nowhere/drain"}, shell=False)
    peers = f'listen = "127.0.0.1:0"\n[peers]\nsecret_file = "{home / "secret"}"\n'
    guest = Agent(home, "", NEVER + missing, covered=False)
    told = guest.cli("check")
    assert told.returncode == 1
    assert "prepare would fail: there is no program /nowhere/drain" in told.stdout
    assert "It never approves" in told.stdout
    found = json.loads(guest.cli("check", "--json").stdout)
    assert (found["ok"], found["handlers"][0]["ok"]) == (False, False)
    guest.configure(peers)
    told = guest.cli("check")
    assert told.returncode == 1
    assert f"the secret of the peers, {home / 'secret'}, cannot be read" in told.stdout
    found = json.loads(guest.cli("check", "--json").stdout)
    assert (found["ok"], len(found["problems"])) == (False, 1)


def badly_configured(home: Path, _: Fleet) -> None:
    home.mkdir()
    guest = Agent(home, "", "", covered=False)
    for config, complaint in {
        "listen = ": "is not TOML",
        diary(tiemout="5s"): "handler \"drain\": there is no key 'tiemout'; did you mean 'timeout'?",
        'endpoint = "https://here"\n': "is not a metadata endpoint",
    }.items():
        guest.configure(config)
        for what in ("check", "run"):
            told = guest.cli(what)
            assert (told.returncode, told.stdout) == (2, "")
            assert complaint in told.stderr
            assert "Traceback" not in told.stderr


def test_status(fleet: Fleet, tmp_path: Path) -> None:
    tell(tmp_path, fleet, a_life_as_status_tells_it, what_it_waits_for, without_an_agent)


def test_check(fleet: Fleet, tmp_path: Path) -> None:
    tell(tmp_path, fleet, well_configured, something_missing, badly_configured)
