"""The agent's one loop, with all its parts but the threads that would feed it."""

import contextlib
import io
import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.parts import RUNTIME, context
from tests.agent.rules.builders import ME, event
from tests.client.scripted import Asked, answer, scripted

from forenotice.agent.config import Config
from forenotice.agent.endpoint import Approver, Named, Polled, Poller
from forenotice.agent.freeze import Sampler
from forenotice.agent.handlers import Handler, Outcome, Work, tables
from forenotice.agent.journal import Journal
from forenotice.agent.loop import Loop, Message, Parts, PeerReady, Quit, Reload
from forenotice.agent.network import Network
from forenotice.agent.rules.saga import ProcessGroup, Progress, State
from forenotice.agent.sagas import Sagas
from forenotice.agent.status import Health
from forenotice.agent.workers import Job, Workers
from forenotice.client import Client, Document, Event, News
from forenotice.clock import MachineClock, boot_id
from forenotice.programs import process

NOBODY = "http://127.0.0.1:1"
FINE = Health(polling_ok=True, polling_why="", ready=True, ready_why="")


class Doing:
    """A handler that does what a test says."""

    def __init__(self, what: Callable[[Work], Outcome]) -> None:
        self.run = what

    def rehearse(self) -> Outcome:
        return Outcome(ok=True, message="would drain")


def recorder(attribute: str) -> tuple[Callable[[Work], Outcome], list[Any]]:
    """A handler that succeeds, and what it was given."""
    seen: list[Any] = []

    def run(work: Work) -> Outcome:
        seen.append(getattr(work, attribute))
        return Outcome(ok=True)

    return run, seen


def config(**commands: str) -> Config:
    """A handler for each, one stage after the other."""
    handlers = [
        {"type": "command", "name": name, "prepare": [command], "recover": [command], "stage": stage}
        for stage, (name, command) in enumerate(commands.items())
    ]
    return msgspec.convert({"name": ME, "handler": handlers}, Config, dec_hook=tables.read)


class Bench:
    """The loop and its surroundings; what would come from outside, tests put into its inbox."""

    def __init__(
        self,
        directory: Path,
        what: Callable[[Work], Outcome] = lambda _: Outcome(ok=True),
        *,
        endpoint: str = NOBODY,
        observe: bool = False,
        boot: str = "",
    ) -> None:
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.written = io.StringIO()
        shared = context(self.written, observe=observe, boot=boot)
        self.memory = Sagas(directory, shared)
        parts = Parts(
            sagas=self.memory,
            poller=Poller(Client(NOBODY), self.inbox.put, shared),
            approver=Approver(Client(endpoint), self.inbox.put, RUNTIME),
            workers=Workers(self.inbox.put, shared),
            network=Network(lambda: FINE, lambda *_: None, MachineClock().now, shared),
            sampler=Sampler(RUNTIME),
            context=shared,
        )
        self.loop = Loop(self.inbox, config(drain="true"), parts)
        self.loop._handlers._made["drain"] = Doing(what)

    def see(self, *events: Event, polls: int = 2) -> "Bench":
        """In so many polls."""
        now = time.monotonic()
        document = Document(incarnation=1, events=events)
        news = News(document=document, changed=True, error=None, date=None, asked_at=now, answered_at=now)
        for _ in range(polls):
            self.inbox.put(Polled(news))
        return self

    def prepared(self, *events: Event) -> "Bench":
        """Sees them, and runs until the first is prepared for."""
        self.see(*events)
        self.run_until(lambda: self.memory.sagas["E1"].state is State.PREPARED)
        return self

    def run(self, *, reload: Callable[[], None] = lambda: None, after_turn: Callable[[], None] = lambda: None) -> None:
        self.loop.run(reload=reload, after_turn=after_turn)

    def run_until(self, question: Callable[[], object]) -> None:
        """For so many turns."""
        until = time.monotonic() + 60

        def look() -> None:
            if question() or time.monotonic() > until:
                self.inbox.put(Quit())

        self.run(after_turn=look)
        assert question(), self.written.getvalue()


def coming(**more: object) -> Event:
    return event(not_before=datetime.now(UTC) + timedelta(minutes=15), **more)


def test_nothing_is_begun_when_it_is_to_end(tmp_path: Path) -> None:
    note, done = recorder("phase")

    bench = Bench(tmp_path, note).see(coming())
    bench.inbox.put(Quit())
    bench.run()
    assert done == []
    again = Bench(tmp_path)
    again.memory.try_to_open()
    assert [saga.steps for saga in again.memory.live] in ([], [()])


def test_a_defect_ends_nothing_else(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("what a pity")

    bench = Bench(tmp_path).see(coming())
    bench.inbox.put(Reload())
    until = time.monotonic() + 60

    def after_turn() -> None:
        if "prepared" in bench.written.getvalue() or time.monotonic() > until:
            bench.inbox.put(Quit())
        broken()

    bench.run(reload=broken, after_turn=after_turn)
    assert "RuntimeError in broken" in bench.written.getvalue()
    assert bench.memory.sagas["E1"].state is State.PREPARED


def test_a_handler_is_reminded_of_what_it_kept(tmp_path: Path) -> None:
    reminded: list[str] = []

    def keep(work: Work) -> Outcome:
        reminded.append(work.memo)
        work.remember(f"{work.phase} was here")
        return Outcome(ok=True)

    Bench(tmp_path, keep).prepared(coming())
    again = Bench(tmp_path, keep).see()
    again.run_until(lambda: len(reminded) == 2)
    assert reminded == ["", "prepare was here"]


def test_a_handler_learns_that_its_memo_is_not_kept(tmp_path: Path) -> None:
    met: list[str] = []

    def keep(work: Work) -> Outcome:
        assert bench.memory._journal is not None
        blocked.set()
        try:
            work.remember("it ran")
        except OSError as error:
            met.append(str(error))
        return Outcome(ok=False)

    blocked = threading.Event()
    bench = Bench(tmp_path, keep).see(coming())

    def after_turn() -> None:
        if bench.memory.sagas and bench.memory._journal is not None:
            bench.memory._journal._connection.execute("PRAGMA query_only = ON")
        if met:
            bench.inbox.put(Quit())

    bench.run(after_turn=after_turn)
    assert met == ["the journal cannot be written"]


def test_what_peers_tell_is_kept_under_one_spelling(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    bench.inbox.put(PeerReady("e1", "Web-1", at))
    bench.run_until(lambda: bench.memory.peers)
    assert bench.memory.peers == {"E1": {"web-1": at}}


def test_nothing_is_done_without_a_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loop._me = ""
    bench.see(coming())
    bench.run(after_turn=lambda: bench.inbox.put(Quit()))
    assert bench.memory.sagas == {}
    bench = Bench(tmp_path)
    bench.loop._me = ""
    bench.see(coming())
    bench.inbox.put(Named(ME.upper()))
    bench.run_until(lambda: bench.memory.sagas)
    assert bench.loop.me == ME.upper()


def logged(bench: Bench, action: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in bench.written.getvalue().splitlines())
    return [line for line in lines if line["action"] == action]


def measured(bench: Bench) -> list[dict[str, Any]]:
    return logged(bench, "freeze.measured")


def started(event: Event) -> Event:
    return msgspec.structs.replace(event, status="Started", not_before_text="")


def near_freeze() -> Event:
    return event(not_before=datetime.now(UTC) + timedelta(seconds=20), type="Freeze", duration_seconds=9)


def live_through(bench: Bench, freeze: Event, *, stall: Callable[[], None] = lambda: None) -> None:
    """From its announcement to its end, one step in each turn."""

    def story() -> Iterator[None]:
        bench.see(freeze)
        while bench.loop._parts.sampler._since is None:
            yield
        stall()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            yield
        for events in ((freeze,), (started(freeze),), ()):
            bench.see(*events)
            yield

    steps = story()
    next(steps)
    bench.run_until(lambda: next(steps, "told") and not bench.memory.live)


def test_a_freeze_without_a_pause_is_told_too(tmp_path: Path) -> None:
    note, handed = recorder("pause")

    bench = Bench(tmp_path, note)
    live_through(bench, near_freeze())
    (told,) = measured(bench)
    assert told["by"] == "own clock"
    assert handed[0] is None
    assert handed[-1] is not None, "0, unless this machine is too busy for us"
    assert "\nforenotice_agent_freeze_measured_seconds " in bench.loop._metrics.render()


def test_a_freeze_that_was_not_watched_from_its_start_is_not_said_to_be_without_a_pause(tmp_path: Path) -> None:
    bench = Bench(tmp_path).see(started(near_freeze()))
    bench.run_until(lambda: bench.memory.sagas)
    again = Bench(tmp_path).see()
    again.run_until(lambda: not again.memory.live)
    (told,) = measured(again)
    assert "seconds" not in told
    assert told["announced_seconds"] == 9
    assert "\nforenotice_agent_freeze_measured_seconds " not in again.loop._metrics.render()


def test_a_freeze_whose_start_this_run_did_not_wait_for_is_not_said_to_be_without_a_pause(tmp_path: Path) -> None:
    freeze = near_freeze()
    bench = Bench(tmp_path).see(freeze)
    bench.run_until(lambda: bench.memory.sagas)
    again = Bench(tmp_path)
    steps = iter(((started(freeze),), ()))

    def over() -> bool:
        events = next(steps, None)
        if events is not None:
            again.see(*events)
        return events is None and not again.memory.live

    again.run_until(over)
    (told,) = measured(again)
    assert "seconds" not in told or told.get("by") == "own clock", "this machine may be too busy for us"


def test_a_stall_while_the_start_is_waited_for_is_no_pause(tmp_path: Path) -> None:
    stalled = [0.0]
    bench = Bench(tmp_path)
    bench.loop._parts.sampler = Sampler(RUNTIME, boot=lambda: time.monotonic() + sum(stalled), hardware=lambda: None)
    live_through(bench, near_freeze(), stall=lambda: stalled.append(50.0))
    (told,) = measured(bench)
    assert float(str(told["seconds"])) < 40


def test_a_freeze_of_another_vm_is_not_measured_here(tmp_path: Path) -> None:
    """The agent acts for it, but this machine's clocks do not stand still."""
    note, handed = recorder("pause")

    bench = Bench(tmp_path, note)
    bench.loop._config = msgspec.structs.replace(bench.loop._config, act_for=("web-7",))
    freeze = msgspec.structs.replace(near_freeze(), resources=("web-7",))
    steps = iter([(freeze,), (freeze,), (started(freeze),), ()])

    def over() -> bool:
        events = next(steps, None)
        if events is not None:
            bench.see(*events)
        return events is None and not bench.memory.live

    bench.run_until(over)
    assert handed[1:] == [None]
    assert not measured(bench)


def test_a_freeze_that_never_came_is_not_measured(tmp_path: Path) -> None:
    bench = Bench(tmp_path).see(coming(type="Freeze", duration_seconds=9))
    bench.run_until(lambda: bench.memory.sagas)
    again = Bench(tmp_path).see()
    again.run_until(lambda: not again.memory.live)
    assert "freeze.measured" not in again.written.getvalue()


def test_a_handler_leaves_what_is_far_for_what_is_near(tmp_path: Path) -> None:
    begun: list[tuple[str, int]] = []

    def drain(work: Work) -> Outcome:
        begun.append((work.event.id, work.attempt))
        first = len(begun) == 1
        return Outcome(ok=not (first and work.stop.wait(60)))

    bench = Bench(tmp_path, drain).see(coming())
    bench.run_until(lambda: begun)
    begun.clear()
    again = Bench(tmp_path, drain).see(coming())
    preempt = event(id="E2", type="Preempt", not_before=datetime.now(UTC) + timedelta(seconds=30))
    seen: list[int] = []

    def look() -> bool:
        if begun and not seen:
            seen.append(1)
            again.see(coming(), preempt)
        return len(begun) == 3

    again.run_until(look)
    assert begun == [("E1", 2), ("E2", 1), ("E1", 3)]


def test_a_name_that_is_only_guessed_makes_no_event_foreign(tmp_path: Path) -> None:
    Bench(tmp_path).prepared(coming())
    again = Bench(tmp_path)
    again.loop._me = "localhost"
    again.see(coming())
    again.run(after_turn=lambda: again.inbox.put(Quit()))
    assert again.memory.sagas["E1"].state is State.PREPARED


def test_a_handler_that_cannot_be_begun_has_failed_and_is_tried_again(tmp_path: Path) -> None:
    class Unable(Workers):
        def begin(self, job: Job, handler: Handler, work: Work) -> None:
            raise RuntimeError("can't start new thread")

    bench = Bench(tmp_path)
    bench.loop._parts.workers = Unable(bench.inbox.put, context())
    bench.see(coming())

    def tried() -> list[tuple[Progress, str]]:
        steps = bench.memory.sagas["E1"].steps
        return [(step.progress, step.message) for step in steps if step.failures]

    bench.run_until(tried)
    assert tried() == [(Progress.RETRYING, "RuntimeError: can't start new thread")]


def test_peers_are_told_of_an_event_as_long_as_it_lives(tmp_path: Path) -> None:
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text("sixteen or more bytes")
    peers_config = {"secret_file": str(tmp_path / "secret"), "addresses": {"web-9": "127.0.0.1:1"}}
    given = {"name": ME, "listen": "127.0.0.1:0", "peers": peers_config}
    shared_config = msgspec.convert(given, Config, dec_hook=tables.read)
    bench = Bench(tmp_path)
    bench.loop.configure(shared_config)
    front = bench.loop._parts.network
    front.apply(shared_config, (ME,))
    peers = front._peers
    assert peers is not None
    shared = coming(resources=(ME, "web-9"))
    try:
        bench.see(shared)
        bench.run_until(lambda: peers.unacknowledged("E1"))
        # Nothing is to be recovered: it is over in one turn.
        again = Bench(tmp_path)
        again.loop.configure(shared_config)
        again.loop._parts.network = front
        again.see()
        again.run_until(lambda: again.memory.sagas and not again.memory.live)
        assert peers.unacknowledged("E1") == {}
    finally:
        front.close()


def test_what_nobody_prepares_for_is_neither_approved_nor_passed_over_in_silence(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loop.configure(Config(name=ME))
    bench.see(coming())
    bench.run_until(lambda: "saga.waits" in bench.written.getvalue())
    (saga,) = bench.memory.live
    assert saga.approving_at is None
    lines = [json.loads(line) for line in bench.written.getvalue().splitlines()]
    (waits,) = [line for line in lines if line["action"] == "saga.waits"]
    assert waits["why"] == saga.why
    assert saga.why.startswith("not approved, because no handler prepares for it")


def test_the_log_says_which_stage_begins_and_how_long_all_took(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.loop.configure(config(drain="true", mount="true"))
    bench.see(coming())
    bench.run_until(lambda: bench.memory.sagas["E1"].state is State.PREPARED)
    begun = [(line["handler"], line["phase"], line["stage"]) for line in logged(bench, "step.begun")]
    assert begun == [("drain", "prepare", 0), ("mount", "prepare", 1)]
    assert all(line["seconds"] > 0 for line in logged(bench, "step.done"))
    moved = {line["state"]: line["seconds"] for line in logged(bench, "saga.moved")}
    assert moved["prepared"] >= sum(line["seconds"] for line in logged(bench, "step.done"))


def test_an_approval_that_was_refused_before_a_cancellation_leads_to_undo(tmp_path: Path) -> None:
    note, done = recorder("phase")

    with scripted(lambda asked, ended: answer("400 Bad Request", b'{"error":"no such event"}')) as endpoint:
        bench = Bench(tmp_path, note, endpoint=endpoint.url)
        bench.see(coming())
        bench.run_until(lambda: logged(bench, "approval.failed"))
        again = Bench(tmp_path, note, endpoint=endpoint.url)
        again.see()
        again.run_until(lambda: again.memory.sagas and not again.memory.live)
    assert done == ["prepare", "undo"]
    assert again.memory.sagas["E1"].why == "cancelled before its start, and undone"


def test_a_refusal_after_an_approval_that_was_not_answered_leaves_the_doubt(tmp_path: Path) -> None:
    def answered(_asked: Asked, _ended: threading.Event) -> bytes | None:
        return answer("400 Bad Request", b"{}") if len(endpoint.asked) > 1 else None

    with scripted(answered) as endpoint:
        bench = Bench(tmp_path, endpoint=endpoint.url)
        bench.see(coming())
        bench.run_until(lambda: "400" in str(logged(bench, "approval.failed")))
    assert bench.memory.sagas["E1"].approving_at is not None


# Only observing


def never(work: Work) -> Outcome:
    raise AssertionError(f"{work.phase} was run")


def test_one_that_observes_says_what_would_have_been_done_and_leaves_no_trace(tmp_path: Path) -> None:
    bench = Bench(tmp_path, never, observe=True).see(coming())
    bench.run_until(lambda: "would have approved" in bench.memory.sagas["E1"].why)
    again = Bench(tmp_path, never, observe=True)
    steps = iter(((coming(),), (started(coming()),), ()))

    def over() -> bool:
        if again.memory.sagas.get("E1") is None or "would have approved" in again.memory.sagas["E1"].why:
            again.see(*next(steps, ()))
        elif again.memory.sagas["E1"].state is State.STARTED:
            again.see()
        return not again.memory.live and bool(again.memory.sagas)

    again.run_until(over)
    observed = [(line["event"], line["phase"], line["output"]) for line in logged(again, "step.observed")]
    assert observed == [
        ("A handler would have run", "prepare", "would drain"),
        ("A handler would have run", "recover", "would drain"),
    ]
    saga = again.memory.sagas["E1"]
    assert saga.why.startswith("only observed: would have approved at ")
    assert saga.why.endswith("; would have been recovered from")
    assert {step.progress for step in saga.steps} == {Progress.OBSERVED}
    assert (saga.approving_at, logged(again, "approval.failed"), logged(again, "step.done")) == (None, [], [])
    assert 'steps_total{handler="drain"' not in again.loop._metrics.render()
    assert list(tmp_path.iterdir()) == []


def test_who_observed_an_event_prepares_for_it_when_told_to_act(tmp_path: Path) -> None:
    observing = Bench(tmp_path, never, observe=True).see(coming())
    observing.run_until(lambda: "would have approved" in observing.memory.sagas["E1"].why)
    done: list[tuple[str, int]] = []

    def note(work: Work) -> Outcome:
        done.append((work.phase, work.attempt))
        return Outcome(ok=True)

    real = Bench(tmp_path, note).see(coming())
    real.run_until(lambda: real.memory.sagas["E1"].approving_at)
    assert done == [("prepare", 1)]


def test_what_was_really_prepared_is_recovered_from_after_somebody_only_observed_its_end(tmp_path: Path) -> None:
    note, done = recorder("phase")

    first = Bench(tmp_path, note).see(coming())
    first.run_until(lambda: first.memory.sagas["E1"].approving_at)
    kept = (tmp_path / "journal.db").read_bytes()
    observing = Bench(tmp_path, never, observe=True).see()
    observing.run_until(lambda: observing.memory.sagas and not observing.memory.live)
    assert [line["phase"] for line in logged(observing, "step.observed")] == ["recover"]
    assert [saga.id for saga in observing.memory.pending if saga.out] == ["E1"], "it is still drained"
    assert (tmp_path / "journal.db").read_bytes() == kept
    second = Bench(tmp_path, note).see()
    second.run_until(lambda: second.memory.sagas and not second.memory.live)
    assert done == ["prepare", "recover"]


def test_one_that_observes_tells_nobody_that_it_is_ready(tmp_path: Path) -> None:
    for observe in (False, True):
        bench = Bench(tmp_path / str(observe), observe=observe)
        bench.see(coming(resources=(ME, "web-9")))
        bench.run_until(lambda bench=bench: bench.memory.sagas["E1"].state is State.PREPARED)  # type: ignore[misc]
        ((_, ready_at),) = bench.loop._parts.network._announced.values()
        assert (ready_at is None) == observe


def test_a_handler_that_could_not_run_is_said_by_one_that_observes(tmp_path: Path) -> None:
    class Broken(Doing):
        def rehearse(self) -> Outcome:
            return Outcome(ok=False, message="no such program")

    bench = Bench(tmp_path, observe=True)
    bench.loop._handlers._made["drain"] = Broken(never)
    bench.see(coming())
    bench.run_until(lambda: logged(bench, "step.observed"))
    (line,) = logged(bench, "step.observed")
    assert (line["event"], line["level"], line["output"]) == ("A handler could not run", "warning", "no such program")


def test_the_journal_has_the_process_group_before_a_program_does_anything(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "state", boot="this")
    copy = {
        "type": "command",
        "name": "drain",
        "prepare": ["cp", "-r", str(tmp_path / "state"), str(tmp_path / "copy")],
    }
    bench.loop.configure(msgspec.convert({"name": ME, "handler": [copy]}, Config, dec_hook=tables.read))
    bench.see(coming())
    bench.run_until(lambda: bench.memory.sagas["E1"].state is State.PREPARED)
    with contextlib.closing(Journal(tmp_path / "copy")) as then:
        (saga,) = then.sagas()
    (step,) = saga.steps
    assert step.progress is Progress.RUNNING
    assert step.group is not None
    assert step.group.boot == "this"
    assert bench.memory.sagas["E1"].steps[0].group is None


def test_a_program_that_an_agent_left_behind_is_ended_before_its_phase_runs_again(tmp_path: Path) -> None:
    """Also when it is another phase that is to run next."""
    first = Bench(tmp_path, boot="this").prepared(coming())
    done: list[tuple[str, int | None]] = []

    def note(work: Work) -> Outcome:
        done.append((work.phase, left.poll()))
        return Outcome(ok=True)

    with subprocess.Popen(["sleep", "60"], start_new_session=True) as left:
        started = process.started(left.pid)
        assert started is not None
        saga = first.memory.sagas["E1"]
        (step,) = saga.steps
        running = ProcessGroup(number=left.pid, started=started, boot="this")
        with contextlib.closing(Journal(tmp_path)) as journal:
            journal.write(replace(saga, steps=(replace(step, progress=Progress.RUNNING, group=running),)), {})
        again = Bench(tmp_path, note, boot="this")
        again.see()
        again.run_until(lambda: again.memory.sagas and not again.memory.live)
    assert done == [("undo", -signal.SIGTERM)]
    (line,) = logged(again, "step.interrupted")
    assert line["output"] == "ended, because an earlier agent left it running"


def test_a_program_that_cannot_be_ended_now_holds_up_no_other_event(tmp_path: Path) -> None:
    class Unable(Workers):
        def end(self, job: Job, act: Callable[[], bool]) -> None:
            raise RuntimeError("can't start new thread")

    first = Bench(tmp_path, boot="this").prepared(coming())
    saga = first.memory.sagas["E1"]
    nobody = ProcessGroup(number=2**22, started=1, boot="this")
    with contextlib.closing(Journal(tmp_path)) as journal:
        journal.write(replace(saga, steps=(replace(saga.steps[0], progress=Progress.RUNNING, group=nobody),)), {})
    again = Bench(tmp_path, boot="this")
    again.loop._parts.workers = Unable(again.inbox.put, context())
    again.see(coming(), coming(id="E2", type="Freeze"))
    again.run_until(lambda: "E2" in again.memory.sagas and again.memory.sagas["E2"].why)
    assert again.memory.sagas["E2"].why == "drain runs for another event"


@pytest.mark.parametrize("boot", ["this", ""], ids=["boot id known", "boot id not known"])
def test_one_that_observes_ends_no_program_that_an_agent_left_behind(tmp_path: Path, boot: str) -> None:
    first = Bench(tmp_path, boot=boot).prepared(coming())
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as left:
        started_at = process.started(left.pid)
        assert started_at is not None
        saga = first.memory.sagas["E1"]
        running = ProcessGroup(number=left.pid, started=started_at, boot=boot)
        with contextlib.closing(Journal(tmp_path)) as journal:
            journal.write(replace(saga, steps=(replace(saga.steps[0], progress=Progress.RUNNING, group=running),)), {})
        observing = Bench(tmp_path, never, observe=True, boot=boot)
        observing.see()
        observing.run_until(lambda: observing.memory.sagas and not observing.memory.live)
        assert left.poll() is None
        left.kill()


def test_an_event_that_one_document_lacks_is_not_over(tmp_path: Path) -> None:
    note, done = recorder("phase")

    Bench(tmp_path, note).prepared(coming())
    again = Bench(tmp_path, note).see(coming(), polls=1)
    again.see(polls=1)
    again.see(coming(), polls=1)
    again.see(polls=1)
    again.run(after_turn=lambda: again.inbox.put(Quit()))
    assert (again.memory.sagas["E1"].state, done) == (State.PREPARED, ["prepare"])
    again.loop._quitting = False
    again.see(polls=1)
    again.run_until(lambda: not again.memory.live)
    assert len(done) == 2


def test_nothing_is_begun_for_an_event_that_the_first_document_after_a_restart_lacks(tmp_path: Path) -> None:
    bench = Bench(tmp_path, lambda _: Outcome(ok=False)).see(coming())
    bench.run_until(lambda: logged(bench, "step.failed"))
    again = Bench(tmp_path, never).see(polls=1)
    again.run(after_turn=lambda: again.inbox.put(Quit()))
    assert logged(again, "step.begun") == []


def test_a_reboot_before_the_start_is_noticed_by_the_boot_id(tmp_path: Path) -> None:
    begun: list[tuple[str, int]] = []

    def note(work: Work) -> Outcome:
        begun.append((work.phase, work.attempt))
        return Outcome(ok=True)

    file = tmp_path / "boot_id"
    for boot in ("first", "first", "second"):
        file.write_text(f"{boot}\n")
        bench = Bench(tmp_path / "state", note, boot=boot_id(file))
        bench.see(coming())
        bench.run_until(lambda memory=bench.memory: memory.sagas["E1"].ready_at)  # type: ignore[misc]
    assert begun == [("prepare", 1), ("prepare", 2)]
    assert len(logged(bench, "saga.rebooted")) == 1
    assert boot_id(tmp_path / "none") == ""


def test_a_poll_that_says_nothing_new_wakes_no_saga(tmp_path: Path) -> None:
    bench = Bench(tmp_path).prepared(coming())
    now = time.monotonic()
    news = News(
        document=bench.loop._events.document, changed=False, error=None, date=None, asked_at=now, answered_at=now
    )
    bench.loop._stirred = False
    bench.loop._take(Polled(news))
    assert not bench.loop._stirred
    bench.loop._take(Polled(replace(news, document=Document(incarnation=2), changed=True)))
    assert bench.loop._stirred


def test_a_turn_that_took_long_is_not_made_again_at_once(tmp_path: Path) -> None:
    """Unless something happens."""
    bench = Bench(tmp_path).see(coming())
    turns: list[float] = []

    def work() -> None:
        turns.append(time.monotonic())
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        if len(turns) > 20 or rested():
            bench.inbox.put(Quit())

    def rested() -> bool:
        return len(turns) > 1 and turns[-1] - turns[-2] > 1

    bench.run(after_turn=work)
    assert rested()
