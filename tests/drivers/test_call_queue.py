"""Calls stand in line: never too many at once, in order of start, answered once."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog
from tests.acceptance.running import until

from forenotice.clock import SystemClock
from forenotice.core.driver_calls import Finished, NotYet, Outcome, Task
from forenotice.core.operations import Kind
from forenotice.drivers.call_queue import CallQueue, CallTerms, DriverChoice
from forenotice.runtime import Runtime

START = datetime(2026, 1, 5, tzinfo=UTC)


def task(operation: str, host: str, *vms: str, kind: Kind = Kind.HOST_UPDATE) -> Task:
    return Task(operation=operation, kind=kind, host=host, vms=vms, targets={}, attempt=1, started_at=START)


class Outside:
    """Counts who is inside, and lets nobody out before it is told to."""

    def __init__(self, *, open_at_first: bool = False) -> None:
        self.open = threading.Event()
        self._doors: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.most_in_all = 0
        self.begun: list[str] = []
        self._answers: list[tuple[Task, Outcome]] = []
        self.outcome: Callable[[Task], Outcome] = lambda task: Finished(done=task.vms, failures={})
        self._lock = threading.Lock()
        if open_at_first:
            self.open.set()

    def carry_out(self, task: Task, now: datetime) -> Outcome:
        with self._lock:
            self.begun += task.vms
            self.inside[task.host] += 1
            self.most[task.host] = max(self.most[task.host], self.inside[task.host])
            self.most_in_all = max(self.most_in_all, self.inside.total())
        until(lambda: self.open.is_set() or self._doors[task.vms[0]].is_set())
        with self._lock:
            self.inside[task.host] -= 1
        return self.outcome(task)

    def stop(self) -> None: ...

    @property
    def answers(self) -> list[tuple[Task, Outcome]]:
        self._answers += self.queue.finished()
        return self._answers

    def let_out(self, vm: str) -> None:
        self._doors[vm].set()

    def start(self, **terms: object) -> CallQueue:
        self.queue = CallQueue([DriverChoice(driver=self, terms=CallTerms(**terms))], Runtime(), lambda: None)  # type: ignore[arg-type]
        return self.queue


EACH = frozenset({Kind.HOST_UPDATE})


def test_never_more_than_allowed_in_all_and_for_each_host() -> None:
    outside = Outside()
    queue = outside.start(at_once=4, at_once_per_host=2, each_vm=EACH)
    hosts = "abcdef"
    for host in hosts:
        queue.enter(task(f"first-{host}", host, *(f"{host}{number}" for number in range(5))))
        queue.enter(task(f"second-{host}", host, *(f"{host}{number}" for number in range(5, 9))))
    until(lambda: outside.inside.total() == 4)
    outside.open.set()
    until(lambda: len(outside.answers) == 2 * len(hosts))
    assert outside.most_in_all == 4
    assert max(outside.most.values()) == 2
    assert sorted(outside.begun) == sorted(f"{host}{number}" for host in hosts for number in range(9))
    for asked, outcome in outside.answers:
        assert isinstance(outcome, Finished)
        assert sorted(outcome.done) == sorted(asked.vms)


def test_in_order_of_start_but_for_hosts_that_are_full() -> None:
    outside = Outside()
    queue = outside.start(at_once=2, at_once_per_host=1, each_vm=EACH)
    queue.enter(task("1", "a", "a1", "a2"))
    queue.enter(task("2", "b", "b1"))
    queue.enter(task("3", "c", "c1"))
    for out, inside in (("", {"a1", "b1"}), ("b1", {"c1"}), ("a1", {"a2"})):
        known = set(outside.begun) if out else set()
        outside.let_out(out)
        until(lambda known=known, inside=inside: set(outside.begun) - known == inside)  # type: ignore[misc]
    outside.open.set()
    until(lambda: len(outside.answers) == 3)


def test_an_operation_is_one_call_where_the_terms_say_so() -> None:
    outside = Outside(open_at_first=True)
    calls: list[tuple[str, ...]] = []
    outside.outcome = lambda task: calls.append(task.vms) or Finished(done=task.vms, failures={})  # type: ignore[func-returns-value]
    outside.start().enter(task("1", "a", "x", "y"))
    until(lambda: outside.answers)
    assert calls == [("x", "y")]


def test_parts_are_put_together() -> None:
    outside = Outside(open_at_first=True)

    def outcome(task: Task) -> Outcome:
        (name,) = task.vms
        if name == "bad":
            return Finished(failures={"bad": "no"}, calls=({"vms": ["bad"]},))
        return Finished(done=task.vms, failures={}, calls=({"vms": [name]},))

    outside.outcome = outcome
    outside.start(each_vm=EACH, at_once=1).enter(task("1", "a", "good", "bad"))
    until(lambda: outside.answers)
    assert outside.answers[0][1] == Finished(
        done=("good",), failures={"bad": "no"}, calls=({"vms": ["good"]}, {"vms": ["bad"]})
    )


def test_what_is_not_yet_over_is_asked_for_again_without_what_is_done() -> None:
    outside = Outside(open_at_first=True)
    outside.outcome = lambda task: (
        NotYet(again_at=START) if task.vms == ("slow",) else Finished(done=task.vms, failures={})
    )
    outside.start(each_vm=EACH).enter(task("1", "a", "quick", "slow"))
    until(lambda: outside.answers)
    assert outside.answers[0][1] == NotYet(again_at=START, done=("quick",))


def test_an_exception_is_a_failure_of_those_it_was_about() -> None:
    outside = Outside(open_at_first=True)

    def outcome(task: Task) -> Outcome:
        raise RuntimeError("no such machine")

    outside.outcome = outcome
    with structlog.testing.capture_logs() as logs:
        outside.start().enter(task("1", "a", "x"))
        until(lambda: outside.answers)
    assert outside.answers[0][1] == Finished(failures={"x": "RuntimeError: no such machine"})
    assert [entry["action"] for entry in logs] == ["driver.failed"]


def test_when_it_stops_what_is_done_is_answered_and_the_rest_is_for_later() -> None:
    outside = Outside()
    queue = outside.start(each_vm=EACH, at_once=1)
    queue.enter(task("1", "a", "done", "stuck", "waiting"))
    queue.enter(task("2", "a", "never"))
    until(lambda: outside.begun == ["done"])
    outside.let_out("done")
    until(lambda: outside.begun == ["done", "stuck"])
    queue.stop(seconds=0.1)
    answers = {asked.operation: outcome for asked, outcome in outside.answers}
    assert {key: outcome.done for key, outcome in answers.items()} == {"1": ("done",), "2": ()}
    assert all(isinstance(outcome, NotYet) for outcome in answers.values())
    # Who comes late is no longer heard, and nobody new is asked.
    outside.open.set()
    until(lambda: not outside.inside.total())
    queue.enter(task("3", "a", "x"))
    assert len(outside.answers) == 2
    assert outside.begun == ["done", "stuck"]


def test_it_is_known_who_stands_in_line_and_when_a_try_is_over_at_the_latest() -> None:
    outside = Outside()
    queue = outside.start(at_once=2, each_vm=EACH, longest=timedelta(minutes=5))
    begun = SystemClock().now()
    queue.enter(task("1", "a", "a1"))
    queue.enter(task("2", "b", "b1", "b2"))
    first, second = queue.pending("1"), queue.pending("2")
    assert first is not None
    assert second is not None
    assert (first.waiting, first.under_way) == (0, 2)
    assert first.until is not None
    assert timedelta(0) <= first.until - begun - timedelta(minutes=5) < timedelta(seconds=5)
    assert (second.waiting, second.until) == (1, None)
    assert queue.pending("3") is None
    outside.open.set()
    until(lambda: len(outside.answers) == 2)
    assert queue.pending("1") is None
