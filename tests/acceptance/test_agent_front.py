"""What probes, load balancers and Prometheus see of a running agent."""

import re
import socket
from pathlib import Path

from tests.acceptance.agents import Agent, agent, diary, tell
from tests.acceptance.guests import Fleet
from tests.acceptance.meddling import meddler, said
from tests.acceptance.running import NOBODY, until

LISTEN = 'listen = "127.0.0.1:0"\n'
NEVER = '[approve]\nwhen = "never"\n'


def readiness(guest: Agent) -> int:
    return guest.page("/readyz").status


def metric(guest: Agent, sample: str) -> float:
    found = re.search(rf"^notbefore_agent_{re.escape(sample)} (\S+)$", guest.page("/metrics").body.decode(), re.M)
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
        assert answer.json == {"ok": False, "why": "Reboot: drain is at work (prepare, attempt 1)"}
        guest.release("prepare")
        while "recover drain 1" not in guest.begun:
            assert readiness(guest) == 503
        assert metric(guest, 'sagas{state="recovering"}') == 1
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


def ready_while_there_is_time(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with agent(home, vm.endpoint, LISTEN + diary(when="NotBefore - 1s"), covered=False) as guest:
        event_id = vm.restart()
        until(lambda: guest.why.startswith("drain begins at "))
        assert readiness(guest) == 200
        vm.cancel(event_id)
        guest.until_state("done")
        assert readiness(guest) == 200


def not_ready_after_a_blocking_failure(home: Path, fleet: Fleet) -> None:
    """Half of what was to be stopped may be: no work for this VM until that is undone."""
    vm = fleet.alone()
    failing = diary(retries=0).replace("while", "exit 1; while", 1)
    with agent(home, vm.endpoint, LISTEN + failing, covered=False) as guest:
        event_id = vm.restart()
        guest.until_logged("step.failed")
        until(lambda: readiness(guest) == 503)
        vm.cancel(event_id)
        until(lambda: readiness(guest) == 200)


def approvals_are_counted(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with meddler(vm.place) as between, agent(home, between.url, LISTEN + diary()) as guest:
        between.fail_first(said(503), said(400))
        vm.restart()
        guest.until_logged("approval.done")
        counted = {result: metric(guest, f'approvals_total{{result="{result}"}}') for result in ("error", "refused")}
        assert counted == {"error": 1, "refused": 1}


def an_address_that_is_taken_at_first(home: Path, fleet: Fleet) -> None:
    """Everything else works meanwhile."""
    vm = fleet.alone()
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = somebody.getsockname()[1]
        with agent(home, vm.endpoint, f'listen = "127.0.0.1:{port}"\n' + diary()) as guest:
            assert "in use" in guest.until_logged("listen.failed")["reason"]
            vm.restart()
            guest.until_state("done")
            somebody.close()
            guest.until_logged("listen.started")
            assert guest.page("/healthz").status == 200


def nobody_answers_at_first(home: Path, fleet: Fleet) -> None:
    vm = fleet.alone()
    with meddler(NOBODY.removeprefix("http://")) as between, agent(home, between.url, LISTEN + diary()) as guest:
        guest.until_logged("poll.failed")
        answer = guest.page("/healthz")
        assert answer.status == 503
        assert "cannot reach the metadata endpoint" in answer.json["why"]
        # What is not known is no reason to take work away.
        assert readiness(guest) == 200
        vm.restart()
        between.target = vm.place
        guest.until_done("prepare drain 1", "on_started drain 1", "recover drain 1")
        assert guest.page("/healthz").json == {"ok": True, "why": "the endpoint answers"}


def test_pages(fleet: Fleet, tmp_path: Path) -> None:
    tell(
        tmp_path,
        fleet,
        not_ready_until_recovered,
        ready_while_there_is_time,
        not_ready_after_a_blocking_failure,
        approvals_are_counted,
        an_address_that_is_taken_at_first,
        nobody_answers_at_first,
    )
