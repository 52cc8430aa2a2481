"""The handlers of a configuration, and the threads that run them."""

import queue
import threading
from collections.abc import Callable

import msgspec
from tests.agent.handlers.work import work
from tests.agent.parts import RUNTIME, context

from forenotice.agent import workers
from forenotice.agent.handlers import GRACE, Outcome, Work, tables
from forenotice.agent.handlers.tables import Command, File
from forenotice.agent.rules.policy import Phase
from forenotice.agent.workers import KILL_SECONDS, Ended, HandlerSet, Job, Workers
from forenotice.settings.values import Span

JOB = Job("E1", Phase.PREPARE, "drain", 1)
DRAIN = Command(name="drain", prepare=("true",))
FLAG = File(name="flag", path="/run/flag")
CONFIGS: dict[str, tables.Handler] = {
    "Command": DRAIN,
    "Webhook": tables.Webhook(name="a", url="http://localhost"),
    "Systemd": tables.Systemd(name="a", units=("a.service",)),
    "File": FLAG,
    "Haproxy": tables.Haproxy(name="a", socket="/run/a", servers=("a/b",)),
    "ChildHandler": tables.Kubernetes(name="a"),
}


class Scripted:
    def __init__(self, run: Callable[[Work], str]) -> None:
        self.run = run

    def rehearse(self) -> str:
        return ""


def begun(run: Callable[[Work], str], seconds: float = 5.0) -> tuple[Workers, "queue.SimpleQueue[Ended]"]:
    posted: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    made = Workers(posted.put, context(), lambda config, runtime: Scripted(run))
    made.begin(JOB, DRAIN, work(seconds_left=seconds))
    return made, posted


def test_the_outcome_is_posted_and_taken_once() -> None:
    made, posted = begun(lambda _: "fine")
    ended = posted.get(timeout=60)
    assert (ended.job, ended.outcome, made.busy) == (JOB, Outcome(ok=True, message="fine"), True)
    assert [made.finish(ended), made.finish(ended), made.busy] == [True, False, False]


def test_an_exception_is_a_failure() -> None:
    def fail(_: Work) -> str:
        raise RuntimeError("broken")

    assert begun(fail)[1].get(timeout=60).outcome == Outcome(ok=False, message="RuntimeError: broken")


def test_handlers_are_stopped() -> None:
    made, posted = begun(lambda work: str(work.stop.wait(60)))
    made.stop(Job("E1", Phase.PREPARE, "drain", 2))
    made.stop_all()
    assert posted.get(timeout=4).outcome.message == "True"


def test_one_that_never_ends_is_given_up_and_its_result_ignored() -> None:
    go_on = threading.Event()
    made, posted = begun(lambda _: str(go_on.wait(60)), -GRACE - KILL_SECONDS)
    [ended] = made.give_up()
    assert not ended.outcome.ok
    assert made.finish(ended)
    go_on.set()
    assert not made.finish(posted.get(timeout=60))


def test_every_type_of_handler_can_be_made() -> None:
    assert [type(workers.make(config, RUNTIME)).__name__ for config in CONFIGS.values()] == list(CONFIGS)


def handlers(*configs: tables.Handler) -> HandlerSet:
    return HandlerSet(configs)


def test_a_handler_recovers_as_it_prepared() -> None:
    written = handlers(DRAIN, FLAG).written(["drain", "flag"])
    now = handlers(FLAG, File(name="drain", path="/run/other"))
    joined = now.joined_by(written)
    assert joined.configs == {"flag": FLAG, "drain": DRAIN}
    assert now.joined_by(dict(written)) is joined
    assert [rule.name for rule in handlers(FLAG).joined_by(written).rules] == ["flag", "drain"]
    same = handlers(DRAIN)
    assert same.joined_by(same.written(["drain"])) is same


def test_how_it_is_run_follows_the_present_configuration() -> None:
    how = {"stage": 3, "timeout": Span(seconds=7), "retries": 0, "on_failure": "continue"}
    now = Command(name="drain", prepare=("false",), types=("Freeze",))
    joined = handlers(msgspec.structs.replace(now, **how)).joined_by(handlers(DRAIN).written(["drain"]))
    assert joined.configs == {"drain": msgspec.structs.replace(DRAIN, **how)}


def test_a_configuration_of_another_version_is_left_out() -> None:
    now = handlers(FLAG)
    assert now.joined_by({"drain": '{"type": "of the future"}', "other": "{"}) is now
