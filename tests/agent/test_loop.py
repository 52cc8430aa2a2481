"""The agent's one loop, with all its parts but the threads that would feed it."""

import contextlib
import io
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.parts import FINE, NOBODY, RUNTIME, context, logged, secret_file
from tests.agent.rules.builders import ME, event
from tests.client.scripted import Asked, answer, scripted

from forenotice.agent.config import Config
from forenotice.agent.endpoint import Approver, Named, Poller
from forenotice.agent.freeze import Sampler
from forenotice.agent.handlers import Handler, HandlerError, Outcome, Work, tables
from forenotice.agent.journal import Journal
from forenotice.agent.loop import Loop, Message, Parts, PeerReady, Signal
from forenotice.agent.network import Network
from forenotice.agent.rules.saga import ProcessGroup, Progress, Saga, State
from forenotice.agent.sagas import Sagas
from forenotice.agent.workers import Workers, make
from forenotice.client import Client, Document, Event, News
from forenotice.clock import MachineClock, boot_id
from forenotice.programs import process
from forenotice.runtime import Runtime, Started

Run = Callable[[Work], Outcome]


class Scripted:
    """A handler that does what a test says."""

    def __init__(self, run: Run, rehearsal: Outcome) -> None:
        self._run = run
        self._rehearsal = rehearsal

    def run(self, work: Work) -> str:
        return self._give(self._run(work))

    def rehearse(self) -> str:
        return self._give(self._rehearsal)

    def _give(self, outcome: Outcome) -> str:
        if not outcome.ok:
            raise HandlerError(outcome.message)
        return outcome.message


def recorder(*attributes: str) -> tuple[Run, list[Any]]:
    """A handler that succeeds, and what it was given."""
    seen: list[Any] = []

    def run(work: Work) -> Outcome:
        values = tuple(getattr(work, name) for name in attributes)
        seen.append(values if len(values) > 1 else values[0])
        return Outcome(ok=True)

    return run, seen


def never(work: Work) -> Outcome:
    raise AssertionError(f"{work.phase} was run")


def config(*handlers: dict[str, Any], **more: Any) -> Config:
    given = {"name": ME, "handler": [{"type": "command", **handler} for handler in handlers], **more}
    return msgspec.convert(given, Config, dec_hook=tables.read)


def command(name: str = "drain", **more: Any) -> dict[str, Any]:
    return {"name": name, "prepare": ["true"], "recover": ["true"], **more}


class Bench:
    """The loop and its surroundings; what would come from outside, tests put into its inbox."""

    def __init__(
        self,
        directory: Path,
        run: Run | None = lambda _: Outcome(ok=True),
        *,
        endpoint: str = NOBODY,
        observe: bool = False,
        boot: str = "",
        rehearsal: Outcome = Outcome(ok=True, message="would drain"),  # noqa: B008
        runtime: Runtime = RUNTIME,
    ) -> None:
        """Without `run`, handlers are the real ones."""

        def scripted(config: tables.Handler, runtime: Runtime) -> Handler:
            return make(config, runtime) if run is None else Scripted(run, rehearsal)

        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.client = Client(NOBODY)
        self.written = io.StringIO()
        shared = context(self.written, observe=observe, boot=boot)
        self.memory = Sagas(directory, shared)
        self.parts = Parts(
            sagas=self.memory,
            poller=Poller(self.client, self.inbox.put, shared),
            approver=Approver(Client(endpoint), self.inbox.put, RUNTIME),
            workers=Workers(self.inbox.put, replace(shared, runtime=runtime), scripted),
            network=Network(lambda: FINE, lambda *_: None, MachineClock().now, shared),
            sampler=Sampler(RUNTIME),
            context=shared,
        )
        self.loop = Loop(self.inbox, config(command()), self.parts)

    @property
    def saga(self) -> Saga:
        return self.memory.sagas["E1"]

    def logged(self, action: str) -> list[dict[str, Any]]:
        return logged(self.written, action)

    def see(self, *events: Event, polls: int = 2) -> "Bench":
        """In so many polls."""
        now = time.monotonic()
        document = Document(incarnation=1, events=events)
        news = News(document=document, changed=True, error=None, date=None, asked_at=now, answered_at=now)
        for _ in range(polls):
            self.inbox.put(news)
        return self

    def run(self, *, reload: Callable[[], None] = lambda: None, after_turn: Callable[[], None] | None = None) -> None:
        """For one turn, unless it is told otherwise."""
        self.loop.run(reload=reload, after_turn=after_turn or (lambda: self.inbox.put(Signal.QUIT)))

    def run_until(self, question: Callable[[], object]) -> "Bench":
        until = time.monotonic() + 60

        def look() -> None:
            if question() or time.monotonic() > until:
                self.inbox.put(Signal.QUIT)

        self.run(after_turn=look)
        assert question(), self.written.getvalue()
        return self

    def prepared(self, *events: Event) -> "Bench":
        """Sees them, and runs until the first is prepared for."""
        return self.see(*events).run_until(lambda: self.saga.state is State.PREPARED)

    def over(self) -> "Bench":
        """Sees no event any more, and runs until all are done with."""
        return self.see().run_until(lambda: self.memory.sagas and not self.memory.live)

    def play(self, *listings: tuple[Event, ...]) -> "Bench":
        """One listing after each turn, until all are done with."""
        course = iter(listings)

        def ended() -> bool:
            listed = next(course, None)
            if listed is not None:
                self.see(*listed)
            return listed is None and bool(self.memory.sagas) and not self.memory.live

        return self.run_until(ended)


def coming(**more: object) -> Event:
    return event(not_before=datetime.now(UTC) + timedelta(minutes=15), **more)


def started(event: Event) -> Event:
    return msgspec.structs.replace(event, status="Started", not_before_text="")


def test_nothing_is_begun_when_it_is_to_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, never).see(coming())
    bench.inbox.put(Signal.QUIT)
    bench.run()
    again = Bench(tmp_path)
    again.memory.try_to_open()
    assert [saga.steps for saga in again.memory.live] in ([], [()])


def test_a_defect_ends_nothing_else(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("what a pity")

    bench = Bench(tmp_path).see(coming())
    bench.inbox.put(Signal.RELOAD)
    until = time.monotonic() + 60

    def after_turn() -> None:
        if "prepared" in bench.written.getvalue() or time.monotonic() > until:
            bench.inbox.put(Signal.QUIT)
        broken()

    bench.run(reload=broken, after_turn=after_turn)
    assert "RuntimeError in broken" in bench.written.getvalue()
    assert bench.saga.state is State.PREPARED


def test_a_handler_gets_its_memo_again_and_learns_when_one_is_not_written(tmp_path: Path) -> None:
    memos: list[str] = []

    def keep(work: Work) -> Outcome:
        memos.append(work.memo)
        try:
            work.remember(f"{work.phase} was here")
        except OSError as error:
            memos.append(str(error))
        return Outcome(ok=True)

    Bench(tmp_path, keep).prepared(coming())
    Bench(tmp_path, keep).over()
    assert memos == ["", "prepare was here"]
    bench = Bench(tmp_path, keep).see(coming(id="E2"))

    def after_turn() -> None:
        if "E2" in bench.memory.sagas and bench.memory._journal is not None:
            bench.memory._journal._connection.execute("PRAGMA query_only = ON")
        if len(memos) == 4:
            bench.inbox.put(Signal.QUIT)

    bench.run(after_turn=after_turn)
    assert memos[3] == "the journal cannot be written"


@pytest.mark.parametrize(("notice", "least", "most"), [(900, 50, 60), (30, 18, 28)])
def test_a_handler_learns_how_long_it_may_take_by_the_endpoints_clock(
    tmp_path: Path, notice: float, least: float, most: float
) -> None:
    """Its timeout, or until shortly before NotBefore."""
    run, given = recorder("seconds_left", "deadline")
    bench = Bench(tmp_path, run)
    bench.client.remote.ahead = 3600.0
    by_endpoint = datetime.now(UTC) + timedelta(hours=1)
    bench.prepared(event(not_before=by_endpoint + timedelta(seconds=notice)))
    ((seconds_left, deadline),) = given
    assert least < seconds_left <= most
    assert least < (deadline - by_endpoint).total_seconds() <= most + 10


def test_a_handler_recovers_as_it_prepared_although_it_is_no_longer_configured(tmp_path: Path) -> None:
    run, done = recorder("handler", "phase")
    assert Bench(tmp_path, run).prepared(coming()).saga.configs.keys() == {"drain"}
    again = Bench(tmp_path, run)
    again.loop.configure(config())
    again.over()
    assert [handler for handler, _ in done] == ["drain", "drain"]
    assert again.saga.configs == {}


def test_readiness_of_peers_is_kept_under_one_spelling(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    bench.inbox.put(PeerReady("e1", "Web-1", at))
    bench.run_until(lambda: bench.memory.peers)
    assert bench.memory.peers == {"E1": {"web-1": at}}


def test_nothing_is_done_without_a_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loop.me = ""
    bench.see(coming()).run()
    assert bench.memory.sagas == {}
    bench.loop._quitting = False
    bench.see(coming()).inbox.put(Named(ME.upper()))
    bench.run_until(lambda: bench.memory.sagas)
    assert bench.loop.me == ME.upper()


def test_a_name_that_is_only_guessed_makes_no_event_foreign(tmp_path: Path) -> None:
    Bench(tmp_path).prepared(coming())
    again = Bench(tmp_path)
    again.loop.me = "localhost"
    again.see(coming()).run()
    assert again.saga.state is State.PREPARED


def test_a_freeze_is_measured_and_the_handler_learns_the_pause(tmp_path: Path) -> None:
    run, pauses = recorder("pause")
    freeze = event(not_before=datetime.now(UTC) + timedelta(seconds=20), type="Freeze", duration_seconds=9)
    bench = Bench(tmp_path, run).play((freeze,), (freeze,), (started(freeze),), ())
    (line,) = bench.logged("freeze.measured")
    assert (line["by"], line["announced_seconds"]) == ("own clock", 9)
    assert pauses[0] is None
    assert pauses[-1] is not None, "0, unless this machine is too busy for us"


def test_a_handler_leaves_an_event_that_is_far_for_one_that_is_near(tmp_path: Path) -> None:
    begun: list[tuple[str, int]] = []

    def drain(work: Work) -> Outcome:
        begun.append((work.event.id, work.attempt))
        return Outcome(ok=not (len(begun) == 1 and work.stop.wait(60)))

    Bench(tmp_path, drain).see(coming()).run_until(lambda: begun)
    begun.clear()
    bench = Bench(tmp_path, drain).see(coming())
    preempt = event(id="E2", type="Preempt", not_before=datetime.now(UTC) + timedelta(seconds=30))
    nearer = iter([preempt])

    def look() -> bool:
        if begun and (found := next(nearer, None)):
            bench.see(coming(), found)
        return len(begun) == 3

    bench.run_until(look)
    assert begun == [("E1", 2), ("E2", 1), ("E1", 3)]


def no_thread(_run: object, _name: str) -> Started:
    raise RuntimeError("can't start new thread")


def test_a_handler_that_cannot_be_begun_has_failed_and_is_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, runtime=Runtime(start_thread=no_thread)).see(coming())
    bench.run_until(lambda: bench.saga.steps and bench.saga.steps[0].failures)
    (step,) = bench.saga.steps
    assert (step.progress, step.message) == (Progress.RETRYING, "can't start new thread")


def test_peers_learn_of_an_event_as_long_as_it_lives(tmp_path: Path) -> None:
    secret = secret_file(tmp_path / "secret")
    peers = {"secret_file": str(secret), "addresses": {"web-9": "127.0.0.1:1"}}
    shared = config(listen="127.0.0.1:0", peers=peers)
    bench, again = Bench(tmp_path / "state"), Bench(tmp_path / "state")
    for each in (bench, again):
        each.loop.configure(shared)
    network = again.parts.network = bench.parts.network
    network.apply(shared, (ME,))
    try:
        bench.see(coming(resources=(ME, "web-9"))).run_until(lambda: network.unacknowledged("E1"))
        again.over()
        assert network.unacknowledged("E1") == {}
    finally:
        network.close()


def test_an_event_without_a_handler_is_not_approved_and_the_log_tells_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loop.configure(config())
    bench.see(coming()).run_until(lambda: bench.logged("saga.waits"))
    (waits,) = bench.logged("saga.waits")
    assert (bench.saga.approving_at, waits["why"]) == (None, bench.saga.why)
    assert "no handler prepares for it" in bench.saga.why


def test_the_log_tells_which_stage_begins_and_how_long_all_took(tmp_path: Path) -> None:
    bench = Bench(tmp_path, None)
    bench.loop.configure(config(command(), command("mount", stage=1)))
    bench.prepared(coming())
    begun = [(line["handler"], line["phase"], line["stage"]) for line in bench.logged("step.begun")]
    assert begun == [("drain", "prepare", 0), ("mount", "prepare", 1)]
    seconds = [line["seconds"] for line in bench.logged("step.done")]
    moved = {line["state"]: line["seconds"] for line in bench.logged("saga.moved")}
    assert all(seconds)
    assert moved["prepared"] >= sum(seconds)


def test_an_approval_that_was_refused_before_a_cancellation_leads_to_undo(tmp_path: Path) -> None:
    run, phases = recorder("phase")
    with scripted(lambda asked, ended: answer("400 Bad Request", b'{"error":"no such event"}')) as endpoint:
        bench = Bench(tmp_path, run, endpoint=endpoint.url).see(coming())
        bench.run_until(lambda: bench.logged("approval.failed"))
        Bench(tmp_path, run, endpoint=endpoint.url).over()
    assert phases == ["prepare", "undo"]


def test_a_refusal_after_an_approval_without_a_response_leaves_the_doubt(tmp_path: Path) -> None:
    def respond(_asked: Asked, _ended: threading.Event) -> bytes | None:
        return answer("400 Bad Request", b"{}") if len(endpoint.asked) > 1 else None

    with scripted(respond) as endpoint:
        bench = Bench(tmp_path, endpoint=endpoint.url).see(coming())
        bench.run_until(lambda: "400" in str(bench.logged("approval.failed")))
    assert bench.saga.approving_at is not None


# Only observing


def observed(directory: Path, *events: Event, **more: Any) -> Bench:
    """Runs until it would have approved."""
    bench = Bench(directory, never, observe=True, **more).see(*events)
    return bench.run_until(lambda: "would have approved" in bench.saga.why)


def test_observing_shows_what_would_have_been_done_and_leaves_no_trace(tmp_path: Path) -> None:
    bench = observed(tmp_path, coming())
    bench.loop._quitting = False
    # The journal in memory is closed with the first run.
    bench.memory._journal = None
    bench.play((started(coming()),), ())
    shown = [(line["event"], line["phase"], line["output"]) for line in bench.logged("step.observed")]
    assert shown == [("A handler would have run", phase, "would drain") for phase in ("prepare", "recover")]
    assert bench.saga.why.startswith("only observed: would have approved at ")
    assert bench.saga.why.endswith("; would have been recovered from")
    assert {step.progress for step in bench.saga.steps} == {Progress.OBSERVED}
    assert bench.saga.approving_at is None
    assert bench.logged("approval.failed") == bench.logged("step.done") == []
    assert 'steps_total{handler="drain"' not in bench.parts.context.metrics.render()
    assert list(tmp_path.iterdir()) == []
    run, done = recorder("phase", "attempt")
    real = Bench(tmp_path, run).see(coming())
    real.run_until(lambda: real.saga.approving_at)
    assert done == [("prepare", 1)], "an agent that acts prepares for what was only observed"


def test_real_preparation_is_recovered_from_although_its_end_was_only_observed(tmp_path: Path) -> None:
    run, phases = recorder("phase")
    first = Bench(tmp_path, run).see(coming())
    first.run_until(lambda: first.saga.approving_at)
    kept = (tmp_path / "journal.db").read_bytes()
    observing = Bench(tmp_path, never, observe=True).over()
    assert [line["phase"] for line in observing.logged("step.observed")] == ["recover"]
    assert [saga.id for saga in observing.memory.pending if saga.out] == ["E1"], "it is still drained"
    assert (tmp_path / "journal.db").read_bytes() == kept
    Bench(tmp_path, run).over()
    assert phases == ["prepare", "recover"]


@pytest.mark.parametrize("observe", [False, True])
def test_an_agent_that_observes_announces_no_readiness(tmp_path: Path, observe: bool) -> None:
    bench = Bench(tmp_path, observe=observe).prepared(coming(resources=(ME, "web-9")))
    ((_, ready_at),) = bench.parts.network._announced.values()
    assert (ready_at is None) == observe


def test_a_handler_that_could_not_run_is_a_warning_when_observing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, never, observe=True, rehearsal=Outcome(ok=False, message="no such program"))
    bench.see(coming()).run_until(lambda: bench.logged("step.observed"))
    (line,) = bench.logged("step.observed")
    assert (line["event"], line["level"], line["output"]) == ("A handler could not run", "warning", "no such program")


# Programs that an agent left behind


def test_the_journal_has_the_process_group_before_a_program_does_anything(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "state", None, boot="this")
    copy = ["cp", "-r", str(tmp_path / "state"), str(tmp_path / "copy")]
    bench.loop.configure(config(command(prepare=copy)))
    bench.prepared(coming())
    with contextlib.closing(Journal(tmp_path / "copy")) as then:
        ((step,),) = (saga.steps for saga in then.sagas())
    assert step.progress is Progress.RUNNING
    assert step.group is not None
    assert step.group.boot == "this"
    assert bench.saga.steps[0].group is None


def leave_running(directory: Path, pid: int, *, boot: str = "this") -> None:
    """As if an agent had been killed while a handler prepared."""
    saga = Bench(directory, boot=boot).prepared(coming()).saga
    group = ProcessGroup(number=pid, started=process.started(pid) or 1, boot=boot)
    with contextlib.closing(Journal(directory)) as journal:
        journal.write(replace(saga, steps=(replace(saga.steps[0], progress=Progress.RUNNING, group=group),)))


def test_a_program_that_an_agent_left_behind_is_ended_before_its_handler_runs_again(tmp_path: Path) -> None:
    """Also when it is another phase that is to run next."""
    done: list[tuple[str, int | None]] = []

    def note(work: Work) -> Outcome:
        done.append((work.phase, left.poll()))
        return Outcome(ok=True)

    with subprocess.Popen(["sleep", "60"], start_new_session=True) as left:
        leave_running(tmp_path, left.pid)
        bench = Bench(tmp_path, note, boot="this").over()
    assert done == [("undo", -signal.SIGTERM)]
    (line,) = bench.logged("step.interrupted")
    assert line["output"] == "ended, because an earlier agent left it running"


def test_a_program_that_cannot_be_ended_now_holds_up_its_handler_and_no_other_event(tmp_path: Path) -> None:
    leave_running(tmp_path, 2**22)
    bench = Bench(tmp_path, never, boot="this", runtime=Runtime(start_thread=no_thread))
    bench.see(coming(), coming(id="E2", type="Freeze"))
    bench.run_until(lambda: "E2" in bench.memory.sagas and bench.memory.sagas["E2"].why)
    assert bench.memory.sagas["E2"].why == "drain runs for another event"
    assert bench.saga.steps[0].group is not None


@pytest.mark.parametrize("boot", ["this", ""], ids=["boot id known", "boot id not known"])
def test_an_agent_that_observes_ends_no_program_that_another_left_behind(tmp_path: Path, boot: str) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as left:
        leave_running(tmp_path, left.pid, boot=boot)
        Bench(tmp_path, never, observe=True, boot=boot).over()
        assert left.poll() is None
        left.kill()


# Documents and reboots


def test_an_event_that_one_document_lacks_is_not_over(tmp_path: Path) -> None:
    run, phases = recorder("phase")
    Bench(tmp_path, run).prepared(coming())
    again = Bench(tmp_path, run)
    for events in ((coming(),), (), (coming(),), ()):
        again.see(*events, polls=1)
    again.run()
    assert (again.saga.state, phases) == (State.PREPARED, ["prepare"])
    again.loop._quitting = False
    again.see(polls=1).run_until(lambda: not again.memory.live)
    assert len(phases) == 2


def test_nothing_is_begun_for_an_event_that_the_first_document_after_a_restart_lacks(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda _: Outcome(ok=False)).see(coming())
    bench.run_until(lambda: bench.logged("step.failed"))
    again = Bench(tmp_path, never).see(polls=1)
    again.run()
    assert again.logged("step.begun") == []


def test_a_reboot_before_the_start_is_noticed_by_the_boot_id(tmp_path: Path) -> None:
    run, begun = recorder("phase", "attempt")
    file = tmp_path / "boot_id"
    for boot in ("first", "first", "second"):
        file.write_text(f"{boot}\n")
        bench = Bench(tmp_path / "state", run, boot=boot_id(file)).see(coming())
        bench.run_until(lambda memory=bench.memory: memory.sagas["E1"].ready_at)  # type: ignore[misc]
    assert begun == [("prepare", 1), ("prepare", 2)]
    assert len(bench.logged("saga.rebooted")) == 1
    assert boot_id(tmp_path / "none") == ""


def test_a_poll_without_news_wakes_no_saga(tmp_path: Path) -> None:
    loop = Bench(tmp_path).prepared(coming()).loop
    now = time.monotonic()
    news = News(document=loop._events.document, changed=False, error=None, date=None, asked_at=now, answered_at=now)
    loop._stirred = False
    loop._take(news)
    assert not loop._stirred
    loop._take(replace(news, document=Document(incarnation=2), changed=True))
    assert loop._stirred


def test_a_turn_that_took_long_is_not_made_again_at_once(tmp_path: Path) -> None:
    """Unless something happens."""
    bench = Bench(tmp_path).see(coming())
    turns: list[float] = []

    def rested() -> bool:
        return len(turns) > 1 and turns[-1] - turns[-2] > 1

    def work() -> None:
        turns.append(time.monotonic())
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        if len(turns) > 20 or rested():
            bench.inbox.put(Signal.QUIT)

    bench.run(after_turn=work)
    assert rested()
