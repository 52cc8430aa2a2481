"""The call queue: never too many at once, in order of start, each task finished once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from tests.service.rig import START, ManualClock

from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.fleet import Host
from forenotice.core.operations import Kind
from forenotice.core.selectors import of_hosts
from forenotice.drivers.call_queue import CallQueue, CallTerms, DriverChoice
from forenotice.runtime import Runtime

EACH = frozenset({Kind.HOST_UPDATE})


def task(operation: str, host: str, *vms: str) -> Task:
    return Task(operation=operation, kind=Kind.HOST_UPDATE, host=host, vms=vms, targets={}, attempt=1, started_at=START)


def done(task: Task) -> Outcome:
    return Finished(done=task.vms, failures={})


class Outside:
    """A driver whose calls go on until the test ends them, and the queue before it."""

    def __init__(self, outcome: Callable[[Task], Outcome] = done, **terms: Any) -> None:
        self.outcome = outcome
        self.calls: dict[tuple[str, ...], Task] = {}
        """Under way, by their VMs."""
        self.begun: list[tuple[str, ...]] = []
        self.stopped = self.woken = 0
        self.clock = ManualClock()
        choice = DriverChoice(driver=self, terms=CallTerms(**terms))
        self.queue = CallQueue([choice], Runtime(clock=self.clock, start_thread=self._start), self._wake)

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        if task.vms not in self.calls:
            self.calls[task.vms] = task
            self.begun.append(task.vms)
            raise Waiting
        del self.calls[task.vms]
        return self.outcome(task)

    def stop(self) -> None:
        self.stopped += 1

    def _wake(self) -> None:
        self.woken += 1

    def _start(self, run: Callable[[], None], name: str) -> "Outside":
        """As a thread would that stops inside of the driver."""
        try:
            run()
        except Waiting:
            self._threads = {**getattr(self, "_threads", {}), self.begun[-1]: run}
        return self

    def join(self, timeout: float | None = None) -> None: ...

    def end(self, *vms: str) -> None:
        self._threads.pop(vms)()

    def hosts(self) -> Counter[str]:
        return Counter(each.host for each in self.calls.values())


class Waiting(BaseException):
    """The call goes on."""


def test_never_more_than_allowed_in_all_and_for_each_host() -> None:
    outside = Outside(at_once=4, at_once_per_host=2, each_vm=EACH)
    for host in "abcdef":
        outside.queue.enter(task(f"first-{host}", host, *(f"{host}{number}" for number in range(5))))
        outside.queue.enter(task(f"second-{host}", host, *(f"{host}{number}" for number in range(5, 9))))
    finished = []
    while outside.calls:
        assert (outside.hosts().total() <= 4, max(outside.hosts().values()) <= 2) == (True, True)
        assert outside.hosts().total() == 4 or len(outside.begun) > 9 * 6 - 4
        outside.end(*next(iter(outside.calls)))
        finished += outside.queue.finished()
    assert sorted(outside.begun) == sorted((f"{host}{number}",) for host in "abcdef" for number in range(9))
    assert len(finished) == 12
    assert all(sorted(outcome.done) == sorted(asked.vms) for asked, outcome in finished)


def test_in_order_of_start_but_for_hosts_that_are_full() -> None:
    outside = Outside(at_once=2, at_once_per_host=1, each_vm=EACH)
    for each in (task("1", "a", "a1", "a2"), task("2", "b", "b1"), task("3", "c", "c1")):
        outside.queue.enter(each)
    outside.end("b1")
    outside.end("a1")
    assert outside.begun == [("a1",), ("b1",), ("c1",), ("a2",)]


def test_parts_are_put_together_and_an_operation_is_one_call_where_the_terms_say_so() -> None:
    def outcome(task: Task) -> Outcome:
        calls = ({"vms": list(task.vms)},)
        failures = {"bad": "no"} if task.vms == ("bad",) else {}
        return Finished(done=() if failures else task.vms, failures=failures, calls=calls)

    outside = Outside(outcome, each_vm=EACH)
    outside.queue.enter(task("1", "a", "good", "bad"))
    outside.end("good")
    assert (outside.queue.finished(), outside.woken) == ([], 1)
    outside.end("bad")
    ((_, found),) = outside.queue.finished()
    assert found == Finished(done=("good",), failures={"bad": "no"}, calls=({"vms": ["good"]}, {"vms": ["bad"]}))
    whole = Outside()
    whole.queue.enter(task("1", "a", "x", "y"))
    assert whole.begun == [("x", "y")]


def test_what_is_not_yet_over_is_called_again_without_what_is_done() -> None:
    outside = Outside(lambda task: NotYet(again_at=START) if task.vms == ("slow",) else done(task), each_vm=EACH)
    outside.queue.enter(task("1", "a", "quick", "slow"))
    outside.end("quick")
    outside.end("slow")
    assert [outcome for _, outcome in outside.queue.finished()] == [NotYet(again_at=START, done=("quick",))]


def test_why_the_driver_waits_is_told_of_each_vm() -> None:
    reasons = {"x": "host b does not answer", "y": "host c does not answer"}

    def waits(part: Task) -> Outcome:
        return NotYet(again_at=START, waiting={part.vms[0]: reasons[part.vms[0]]} if part.vms[0] in reasons else {})

    outside = Outside(waits, each_vm=EACH)
    outside.queue.enter(task("1", "a", "x", "y", "z"))
    for vm in "xyz":
        outside.end(vm)
    assert [outcome for _, outcome in outside.queue.finished()] == [NotYet(again_at=START, waiting=reasons)]


def test_an_accepted_call_keeps_its_place_until_it_is_called_again_or_dropped() -> None:
    later = START + timedelta(minutes=1)
    outside = Outside(lambda task: NotYet(again_at=later), at_once=1, awaits_results=True)
    for name in "12":
        outside.queue.enter(task(name, "a", f"vm-{name}"))
    outside.end("vm-1")
    assert (outside.queue.finished(), outside.begun) == ([], [("vm-1",)])
    assert outside.queue.call_again(START) == later
    assert outside.queue.call_again(later) is None
    assert outside.begun == [("vm-1",)] * 2
    # While it is dropped a call is being made: it keeps its place until it returns, and its outcome is ignored.
    outside.queue.drop("1")
    assert ("vm-2",) not in outside.begun
    outside.end("vm-1")
    assert outside.begun[-1] == ("vm-2",)
    outside.end("vm-2")
    outside.queue.drop("2")
    outside.queue.enter(task("3", "a", "vm-3"))
    assert (outside.begun[-1], outside.queue.finished()) == (("vm-3",), [])


def test_an_exception_is_a_failure_of_those_it_was_about() -> None:
    def outcome(task: Task) -> Outcome:
        raise RuntimeError("no such machine")

    outside = Outside(outcome)
    outside.queue.enter(task("1", "a", "x"))
    with structlog.testing.capture_logs() as logs:
        outside.end("x")
    assert [found for _, found in outside.queue.finished()] == [
        Finished(failures={"x": "RuntimeError: no such machine"})
    ]
    assert [entry["action"] for entry in logs] == ["driver.failed"]


def test_when_it_stops_what_is_done_is_finished_and_the_rest_is_for_later() -> None:
    outside = Outside(each_vm=EACH, at_once=1)
    outside.queue.enter(task("1", "a", "done", "stuck", "waiting"))
    outside.queue.enter(replace(task("2", "a", "never"), waiting={"never": "what it waits for"}))
    outside.end("done")
    outside.queue.stop(seconds=0)
    assert outside.stopped == 1
    found = {asked.operation: outcome for asked, outcome in outside.queue.finished()}
    assert found == {
        "1": NotYet(again_at=START, done=("done",)),
        "2": NotYet(again_at=START, waiting={"never": "what it waits for"}),
    }
    # A late outcome is ignored, and nothing new is called.
    outside.end("stuck")
    outside.queue.enter(task("3", "a", "x"))
    assert (outside.queue.finished(), outside.begun) == ([], [("done",), ("stuck",)])


def test_a_call_that_is_accepted_while_the_service_stops_is_made_again_right_after_the_next_start() -> None:
    def end_at_stop() -> None:
        outside.end("a1")

    outside = Outside(lambda task: NotYet(again_at=START + timedelta(hours=1)), awaits_results=True)
    outside.queue.enter(task("1", "a", "a1"))
    outside.stop = end_at_stop  # type: ignore[method-assign]
    outside.queue.stop()
    assert [outcome for _, outcome in outside.queue.finished()] == [NotYet(again_at=outside.clock.now())]


def test_it_is_known_how_many_wait_and_when_a_try_is_over_at_the_latest() -> None:
    outside = Outside(at_once=2, each_vm=EACH, longest=timedelta(minutes=5))
    outside.queue.enter(task("1", "a", "a1"))
    outside.queue.enter(task("2", "b", "b1", "b2"))
    first, second = outside.queue.pending("1"), outside.queue.pending("2")
    assert first is not None
    assert second is not None
    assert (first.waiting, first.under_way, first.until) == (0, 2, START + timedelta(minutes=5))
    assert (second.waiting, second.until) == (1, None)
    outside.end("a1")
    assert outside.queue.pending("1") is None


def test_a_host_has_the_first_driver_that_selects_it_and_each_driver_its_own_limits() -> None:
    first, last = Outside(), Outside()
    started: list[str] = []
    choices = [
        DriverChoice(driver=first, terms=CallTerms(at_once=1, awaits_results=True), hosts=of_hosts("label:cloud=*")),
        DriverChoice(driver=last, terms=CallTerms(at_once=1)),
    ]
    queue = CallQueue(choices, Runtime(start_thread=lambda run, name: started.append(name) or first), lambda: None)  # type: ignore[func-returns-value]
    cloud = Host(name="a", labels={"cloud": "one"})
    assert (queue.awaits_results(cloud), queue.awaits_results(Host(name="b"))) == (True, False)
    for number, labels in enumerate((cloud.labels, {}, {})):
        each = task(str(number), "h", f"vm-{number}")
        queue.enter(Task(**{**{name: getattr(each, name) for name in each.__slots__}, "labels": labels}))
    waiting = [pending.waiting for number in range(3) if (pending := queue.pending(str(number)))]
    assert (len(started), waiting) == (2, [0, 0, 1])
