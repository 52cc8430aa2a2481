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
from forenotice.agent.workers import CACHED, KILL_SECONDS, Ended, Job, Workers
from forenotice.settings.spans import Span

JOB = Job("E1", Phase.PREPARE, "drain", 1)
DRAIN = Command(name="drain", prepare=("true",))
FLAG = File(name="flag", path="/run/flag")
CONFIGS: list[tables.Handler] = [
    tables.Command(name="a", prepare=("true",)),
    tables.Webhook(name="a", url="http://localhost"),
    tables.Systemd(name="a", units=("a.service",)),
    tables.File(name="a", path="/run/a"),
    tables.Haproxy(name="a", socket="/run/a", servers=("a/b",)),
    tables.Kubernetes(name="a"),
    tables.Notify(name="a", urls=("json://localhost",)),
    tables.Python(name="a", entry_point="a:b"),
]


class Fake:
    def __init__(self, run: Callable[[Work], Outcome]) -> None:
        self.run = run

    def rehearse(self) -> Outcome:
        return Outcome(ok=True)


def begun(run: Callable[[Work], Outcome], seconds: float = 5.0) -> tuple[Workers, "queue.SimpleQueue[Ended]"]:
    posted: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    made = Workers(posted.put, context())
    made.begin(JOB, Fake(run), work(seconds_left=seconds))
    return made, posted


def test_the_outcome_is_posted() -> None:
    made, posted = begun(lambda _: Outcome(ok=True, message="fine"))
    ended = posted.get(timeout=60)
    assert (ended.job, ended.outcome) == (JOB, Outcome(ok=True, message="fine"))
    assert made.busy
    assert made.finish(ended)
    assert not made.finish(ended)
    assert not made.busy


def test_an_exception_is_a_failure() -> None:
    def fail(_: Work) -> Outcome:
        raise RuntimeError("broken")

    assert begun(fail)[1].get(timeout=60).outcome == Outcome(ok=False, message="RuntimeError: broken")


def test_it_is_told_to_stop() -> None:
    made, posted = begun(lambda work: Outcome(ok=not work.stop.wait(60)))
    made.stop(Job("E1", Phase.PREPARE, "drain", 2))
    made.stop_all()
    assert not posted.get(timeout=4).outcome.ok


def test_one_that_never_ends_is_given_up_and_its_result_ignored() -> None:
    go_on = threading.Event()
    made, posted = begun(lambda _: Outcome(ok=go_on.wait(60)), -GRACE - KILL_SECONDS)
    [ended] = made.give_up()
    assert not ended.outcome.ok
    assert made.finish(ended)
    go_on.set()
    assert not made.finish(posted.get(timeout=60))


def test_every_type_of_handler_can_be_made() -> None:
    made = [type(workers.make(config, RUNTIME)).__name__ for config in CONFIGS]
    assert made == ["Command", "Webhook", "Systemd", "File", "Haproxy", "ChildHandler", "ChildHandler", "ChildHandler"]


def handlers(*configs: tables.Handler) -> workers.HandlerSet:
    return workers.HandlerSet(configs, RUNTIME)


def test_those_that_prepared_come_back_from_the_journal() -> None:
    found = handlers(FLAG).joined_by(handlers(DRAIN, FLAG).written(["drain", "flag"]))
    assert [rule.name for rule in found.rules] == ["flag", "drain"]
    assert found.handler("drain") is found.handler("drain")


def test_a_handler_recovers_as_it_prepared() -> None:
    written = handlers(DRAIN, FLAG).written(["drain", "flag"])
    now = handlers(FLAG, File(name="drain", path="/run/other"))
    joined = now.joined_by(written)
    assert joined._configs == {"flag": FLAG, "drain": DRAIN}
    assert now.joined_by(dict(written)) is joined
    assert handlers(DRAIN).joined_by(handlers(DRAIN).written(["drain"])).rules == [DRAIN.rule]


def test_how_it_is_run_follows_the_present_configuration() -> None:
    how = {"stage": 3, "timeout": Span(seconds=7), "retries": 0, "on_failure": "continue"}
    now = Command(name="drain", prepare=("false",), types=("Freeze",))
    joined = handlers(msgspec.structs.replace(now, **how)).joined_by(handlers(DRAIN).written(["drain"]))
    assert joined._configs == {"drain": msgspec.structs.replace(DRAIN, **how)}


def test_what_has_not_changed_is_not_made_again() -> None:
    now = handlers(DRAIN, FLAG)
    assert now.joined_by(now.written(["drain"])) is now
    flag = now.handler("flag")
    joined = now.joined_by(handlers(Command(name="drain", prepare=("false",))).written(["drain"]))
    assert joined.handler("flag") is flag
    assert joined.handler("drain") is not now.handler("drain")


def test_only_so_many_sets_are_kept() -> None:
    now = handlers()
    for number in range(CACHED + 5):
        now.joined_by(handlers(File(name="flag", path=f"/run/{number}")).written(["flag"]))
    assert len(now._joined) == CACHED


def test_a_configuration_of_another_version_is_left_out() -> None:
    now = handlers(FLAG)
    assert now.joined_by({"drain": '{"type": "of the future"}', "other": "{"}) is now
