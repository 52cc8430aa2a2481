"""Handlers at work."""

import queue
import threading
from collections.abc import Callable

from tests.agent.rules.builders import T0, event

from forenotice.agent.handlers import GRACE, Outcome, Work
from forenotice.agent.rules.policy import Phase
from forenotice.agent.workers import PATIENCE, Ended, Job, Workers

JOB = Job("E1", Phase.PREPARE, "drain", 1)


class Doing:
    def __init__(self, what: Callable[[Work], Outcome]) -> None:
        self.run = what

    def rehearse(self) -> Outcome:
        return Outcome(ok=True)


def work(seconds: float = 5.0) -> Work:
    return Work(
        handler="drain",
        phase=Phase.PREPARE,
        event=event(),
        me="web-0",
        attempt=1,
        deadline=T0,
        seconds_left=seconds,
        stop=threading.Event(),
    )


def test_what_came_of_it_is_posted() -> None:
    posted: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    workers = Workers(posted.put)
    workers.begin(JOB, Doing(lambda _: Outcome(ok=True, said="fine")), work())
    ended = posted.get(timeout=60)
    assert (ended.job, ended.outcome) == (JOB, Outcome(ok=True, said="fine"))
    assert workers.busy
    assert workers.finish(ended)
    assert not workers.finish(ended)
    assert not workers.busy


def test_an_exception_is_a_failure() -> None:
    def break_down(_: Work) -> Outcome:
        raise RuntimeError("broken")

    posted: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    Workers(posted.put).begin(JOB, Doing(break_down), work())
    assert posted.get(timeout=60).outcome == Outcome(ok=False, said="RuntimeError: broken")


def test_it_is_told_to_stop() -> None:
    def wait(work: Work) -> Outcome:
        return Outcome(ok=not work.stop.wait(60))

    posted: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    workers = Workers(posted.put)
    workers.begin(JOB, Doing(wait), work())
    workers.stop(Job("E1", Phase.PREPARE, "drain", 2))
    workers.stop_all()
    assert not posted.get(timeout=4).outcome.ok


def test_one_that_never_ends_is_given_up_and_not_heard_later() -> None:
    go_on = threading.Event()
    posted: queue.SimpleQueue[Ended] = queue.SimpleQueue()
    workers = Workers(posted.put)
    workers.begin(JOB, Doing(lambda _: Outcome(ok=go_on.wait(60))), work(-GRACE - PATIENCE))
    [ended] = workers.give_up()
    assert ended.outcome == Outcome(ok=False, said="did not end when told to")
    assert workers.finish(ended)
    go_on.set()
    assert not workers.finish(posted.get(timeout=60))
