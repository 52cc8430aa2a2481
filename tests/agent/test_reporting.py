"""What the agent tells others after each turn."""

import io
import json
from pathlib import Path

from tests.agent.rules.builders import T0, Story, event

from forenotice.agent.endpoint import Poller
from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.agent.posix import SILENT
from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Phase
from forenotice.agent.sagas import Sagas
from forenotice.agent.status import HANGS, Reporter
from forenotice.client import Client
from forenotice.clock import MachineClock
from forenotice.settings import LogFormat, LogLevel


def test_what_a_handler_said_is_for_the_status_and_not_for_the_world(tmp_path: Path) -> None:
    log, metrics = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, io.StringIO()), Metrics()
    memory = Sagas(tmp_path, log, metrics)
    memory.try_to_open()
    polling = Poller(Client("http://127.33.0.1:1"), lambda _: None, log, metrics)
    story = Story()
    story.turn()
    for _ in range(3):
        story.end(Phase.PREPARE, ok=False, said="password=hunter2")
        story.wait(60)
        story.turn()
    memory.begin(transitions.appeared(event(), T0))
    memory.keep(story.saga, {}, forward=False)
    reporter = Reporter(tmp_path, memory, polling, MachineClock(), log, metrics, SILENT)
    reporter.report("web-0")
    assert reporter.standing.ready_why == "Reboot: preparing"
    [saga] = json.loads((tmp_path / "status.json").read_text())["sagas"]
    assert "hunter2" in saga["why"]


def test_a_vm_is_not_ready_while_nobody_knows_what_was_prepared(tmp_path: Path) -> None:
    log, metrics = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, io.StringIO()), Metrics()
    memory = Sagas(tmp_path, log, metrics)
    polling = Poller(Client("http://127.33.0.1:1"), lambda _: None, log, metrics)
    (tmp_path / "journal.db").mkdir()
    memory.try_to_open()
    reporter = Reporter(tmp_path, memory, polling, MachineClock(), log, metrics, SILENT)
    assert (reporter.standing.ready, reporter.standing.ready_why) == (False, "the journal has not been read yet")
    (tmp_path / "journal.db").rmdir()
    memory.try_to_open()
    reporter.report("web-0")
    assert reporter.standing.ready


def test_a_loop_that_makes_no_turns_is_not_healthy(tmp_path: Path) -> None:
    log, metrics = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, io.StringIO()), Metrics()
    polling = Poller(Client("http://127.33.0.1:1"), lambda _: None, log, metrics)
    reporter = Reporter(tmp_path, Sagas(tmp_path, log, metrics), polling, MachineClock(), log, metrics, SILENT)
    reporter._turned_at -= HANGS
    assert (reporter.standing.polling_ok, reporter.standing.polling_why) == (False, "the agent hangs")
    reporter.report("web-0")
    assert reporter.standing.polling_why != "the agent hangs"


def test_one_that_only_observes_says_so_and_is_as_ready_as_it_was(tmp_path: Path) -> None:
    log, metrics = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, io.StringIO()), Metrics()
    memory = Sagas(tmp_path, log, metrics, observe=True)
    memory.try_to_open()
    story = Story()
    story.turn(observes=True)
    memory.begin(transitions.appeared(event(), T0))
    memory.keep(story.saga, {}, forward=True)
    assert story.saga.out
    polling = Poller(Client("http://127.33.0.1:1"), lambda _: None, log, metrics)
    reporter = Reporter(tmp_path, memory, polling, MachineClock(), log, metrics, SILENT)
    reporter.report("web-0", observe=True)
    assert reporter.standing.ready
    found = json.loads((tmp_path / "status.json").read_text())
    assert (found["observe"], found["sagas"][0]["would_approve_at"]) == (True, None)


def test_it_says_who_among_the_peers_is_ready_and_who_has_not_answered(tmp_path: Path) -> None:
    log, metrics = Log(MachineClock(), LogLevel.INFO, LogFormat.JSON, io.StringIO()), Metrics()
    memory = Sagas(tmp_path, log, metrics)
    memory.try_to_open()
    memory.begin(transitions.appeared(event(resources=("web-0", "Web-1", "web-2")), T0, ("web-0",)))
    memory.heard("E1", "web-1", T0)
    polling = Poller(Client("http://127.33.0.1:1"), lambda _: None, log, metrics)
    reporter = Reporter(tmp_path, memory, polling, MachineClock(), log, metrics, SILENT)
    why = {"web-2": "not told yet"}

    def shown() -> list[dict[str, object]]:
        reporter.report("web-0", untold=lambda _: why)
        return list(json.loads((tmp_path / "status.json").read_text())["sagas"][0]["peers"])

    ready = {"name": "Web-1", "ready_at": "2026-01-01T12:00:00Z", "trouble": ""}
    assert shown() == [ready, {"name": "web-2", "ready_at": None, "trouble": "not told yet"}]
    why["web-2"] = "slow: no answer within 5 s"
    assert shown()[1]["trouble"] == "slow: no answer within 5 s", "it is written as soon as it changes"
    reporter.report("web-0")
    assert json.loads((tmp_path / "status.json").read_text())["sagas"][0]["peers"] == []
