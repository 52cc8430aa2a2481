"""What an agent shows: its pages to probes and Prometheus, `agent status` and `agent check` to people."""

import json
import re
from pathlib import Path

from tests.acceptance.agents import Agent, agent, command, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.meddling import meddler, said
from tests.acceptance.running import NOBODY, until

LISTEN = 'listen = "127.0.0.1:0"\n'
NEVER = '[approve]\nwhen = "never"\n'


# Pages


def readiness(guest: Agent) -> int:
    return guest.page("/readyz").status


def metric(guest: Agent, sample: str) -> float:
    found = re.search(rf"^forenotice_agent_{re.escape(sample)} (\S+)$", guest.page("/metrics").body.decode(), re.M)
    assert found, sample
    return float(found[1])


def not_ready_until_recovered(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, LISTEN + diary(when="at once") + diary("late", ["prepare"], stage=1)) as guest:
        until(lambda: guest.page("/healthz").status == 200)
        assert readiness(guest) == 200
        assert metric(guest, "ready") == 1
        guest.hold("prepare")
        guest.hold("recover")
        event_id = vm.restart()
        guest.until_begun("prepare drain 1")
        until(lambda: readiness(guest) == 503)
        answer = guest.page("/readyz")
        assert answer.json == {"ok": False, "why": "Reboot: preparing"}
        guest.release("prepare")

        def recovers_and_was_never_ready() -> bool:
            assert readiness(guest) == 503
            return "recover drain 1" in guest.begun

        until(recovers_and_was_never_ready)
        until(lambda: metric(guest, 'sagas{state="recovering"}') == 1)
        guest.release("recover")
        until(lambda: readiness(guest) == 200)
        guest.until_state("done")
        text = guest.page("/metrics").body.decode()
        assert event_id.lower() not in text.lower()
        assert vm.name not in text
        assert metric(guest, 'events_total{type="Reboot"}') == 1
        assert metric(guest, 'approvals_total{result="accepted"}') == 1
        assert metric(guest, 'steps_total{handler="drain",phase="recover",result="ok"}') == 1
        # It was there all the time, at one place.
        assert len(guest.logged("listen.started")) == 1


def approvals_are_counted(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, LISTEN + diary()) as guest:
        between.fail_first(said(503), said(400))
        vm.restart()
        guest.until_logged("approval.done")
        counted = {result: metric(guest, f'approvals_total{{result="{result}"}}') for result in ("error", "refused")}
        assert counted == {"error": 1, "refused": 1}


def nobody_answers_at_first(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with meddler(NOBODY.removeprefix("http://")) as between, agent(home, between.url, LISTEN + diary()) as guest:
        guest.until_logged("poll.failed")
        until(lambda: "cannot reach the metadata endpoint" in guest.page("/healthz").json["why"])
        assert guest.page("/healthz").status == 503
        # What is not known is no reason to take work away.
        assert readiness(guest) == 200
        vm.restart()
        between.target = vm.place
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")
        assert guest.page("/healthz").json == {"ok": True, "why": "the endpoint answers"}


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
        until(lambda: " runs (" in guest.why)
        busy = guest.cli("status")
        told = facts(busy.stdout)
        assert (told["event"], told["state"], told["type"]) == (event_id, "preparing", "Reboot")
        assert told["why"] == "drain runs (prepare, attempt 1)"
        assert told["ready"] == "no: Reboot: preparing"
        assert "prepare drain: running" in busy.stdout

        guest.release("prepare")
        guest.until_state("done")
        until(lambda: guest.status["recent"])
        assert guest.terminate() == 0
        over = guest.cli("status")
        assert over.returncode == 1
        assert facts(over.stdout)["agent"].startswith("does not run")
        assert re.search(
            rf"Reboot +{event_id} +recovered, although this machine did not reboot$", over.stdout, re.MULTILINE
        )
        found = json.loads(guest.cli("status", "--json").stdout)
        assert (found["running"], found["status"]["recent"][0]["why"]) == (
            False,
            "recovered, although this machine did not reboot",
        )


def what_it_waits_for(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, diary(when="NotBefore - 1s")) as guest:
        event_id = vm.restart()
        until(lambda: guest.why.startswith("drain begins at "))
        told = facts(guest.cli("status").stdout)
        assert (told["state"], told["ready"]) == ("seen", "yes")
        assert re.fullmatch(r"drain begins at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", told["why"])
        guest.reload(NEVER + diary())
        until(lambda: guest.why == "ready; agent.toml says never to approve")
        found = json.loads(guest.cli("status", "--json").stdout)
        assert found["running"]
        assert found["status"]["sagas"][0]["why"] == "ready; agent.toml says never to approve"
        vm.cancel(event_id)
        guest.until_state("done")
        until(lambda: guest.status["recent"])
        assert "cancelled before its start, and undone" in guest.cli("status").stdout


def without_an_agent(home: Path, _: Fleet) -> None:
    home.mkdir()
    guest = Agent(home, "", diary())
    told = guest.cli("status")
    assert (told.returncode, told.stdout) == (1, "The agent has not run yet.\n")
    assert json.loads(guest.cli("status", "--json").stdout) == {"running": None, "status": None}
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
    guest = Agent(home, "", NEVER + missing)
    told = guest.cli("check")
    assert told.returncode == 1
    assert "prepare would fail: there is no program /nowhere/drain" in told.stdout
    assert "It never approves" in told.stdout
    guest.configure(peers + missing)
    told = guest.cli("check", "--json")
    assert told.returncode == 1
    found = json.loads(told.stdout)
    assert (found["ok"], found["handlers"][0]["ok"]) == (False, False)
    (problem,) = found["problems"]
    assert problem.startswith(f"the peers' secret {home / 'secret'} cannot be read")


def badly_configured(home: Path, _: Fleet) -> None:
    home.mkdir()
    guest = Agent(home, "", "")
    for config, complaint in {
        "listen = ": "is not TOML",
        diary(tiemout="5s"): "handler \"drain\": there is no key 'tiemout'; did you mean 'timeout'?",
        'endpoint = "https://here"\n': "give one such as http://169.254.169.254",
    }.items():
        guest.configure(config)
        told = guest.cli("run" if config.startswith("endpoint") else "check")
        assert (told.returncode, told.stdout) == (2, "")
        assert complaint in told.stderr
        assert "Traceback" not in told.stderr


def test_what_is_shown(fleet: Fleet, tmp_path: Path) -> None:
    tell(
        tmp_path,
        fleet,
        not_ready_until_recovered,
        approvals_are_counted,
        nobody_answers_at_first,
        a_life_as_status_tells_it,
        what_it_waits_for,
        without_an_agent,
        well_configured,
        something_missing,
        badly_configured,
    )
