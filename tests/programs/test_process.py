"""Child processes: how they end, what they leave behind, and what is ended with them."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import until
from tests.agent.handlers.work import work
from tests.agent.parts import RUNTIME

from forenotice.agent.handlers import Outcome, Work
from forenotice.programs import launcher, process

QUICK = 0.3


def sh(text: str, *arguments: str, given: Work | None = None, stdin: bytes = b"", grace: float = QUICK) -> Outcome:
    return ran(["/bin/sh", "-c", text, "sh", *arguments], given=given, stdin=stdin, grace=grace)


def ran(argv: Sequence[str], *, given: Work | None = None, grace: float = QUICK, **more: Any) -> Outcome:
    given = given or work()
    try:
        ended = process.execute(
            process.Program(argv=argv, **more), RUNTIME, seconds=given.seconds_left, stop=given.stop, grace=grace
        )
    except process.ProgramError as error:
        return Outcome(ok=False, message=error.message)
    return Outcome(ok=ended.ok, message=ended.message)


def executed(*argv: str, seconds: float = 60, kept: int = process.KEPT, **more: Any) -> process.Ended:
    program = process.Program(argv=argv, kept=kept)
    return process.execute(program, RUNTIME, seconds=seconds, stop=threading.Event(), **more)


STUBBORN = ("/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")


def stopped_with(mark: Path) -> Work:
    """Work that the agent wants stopped once there is a file."""
    given = work(seconds_left=60.0)

    def stop() -> None:
        until(mark.exists)
        given.stop.set()

    threading.Thread(target=stop, daemon=True).start()
    return given


def untimed(outcome: Outcome) -> tuple[bool, str]:
    return outcome.ok, re.sub(r" after \d+ s,", ",", outcome.message)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def pid_in(file: Path) -> int:
    return int(until(lambda: file.exists() and file.read_text().strip()))


def test_it_inherits_all_but_the_way_to_the_service_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"):
        monkeypatch.setenv(name, "the agent's")
    monkeypatch.setenv("KEPT", "kept")
    told = ran(
        ["/bin/sh", "-c", 'cat; echo "$MORE $KEPT"; env | grep -c -e NOTIFY -e WATCHDOG; pwd'],
        environment={"MORE": "more"},
        directory="/usr",
        stdin=b'{"a":1}\n',
    )
    assert told == Outcome(ok=True, message='{"a":1} / more kept / 0 / /usr')


@pytest.mark.parametrize(
    ("text", "ok", "message"),
    [
        ("echo one; echo two >&2", True, "one / two"),
        # Without anything to read it finds the end at once.
        ("cat && echo done", True, "done"),
        ("echo no such disk >&2; exit 3", False, "exit code 3: no such disk"),
        ("exit 3", False, "exit code 3"),
        ("kill -9 $$", False, "ended by signal 9"),
        ("printf '\\033[31mred\\033[0m \\007bell\\n\\n  \\nlast'; exit 1", False, "exit code 1: red  bell / last"),
        ("printf '\\377\\376 \\000 x'", True, "\ufffd\ufffd   x"),
    ],
)
def test_how_it_ended_and_its_last_words(text: str, ok: bool, message: str) -> None:
    assert sh(text) == Outcome(ok=ok, message=message)


def test_a_program_need_not_read_its_input() -> None:
    assert sh("exec <&-; echo fine", stdin=b"x" * 1_000_000) == Outcome(ok=True, message="fine")


def test_a_chatty_program_is_read_all_along_and_only_its_end_is_kept() -> None:
    outcome = sh("i=0; while [ $i -lt 20000 ]; do echo 'a line of thirty-two characters'; i=$((i+1)); done; echo end")
    assert outcome.ok
    assert outcome.message.startswith("... ")
    assert outcome.message.endswith(" / end")
    assert 1500 < len(outcome.message) < 4000


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/nowhere/at-all", "there is no program /nowhere/at-all"),
        ("no-such-program-anywhere", "there is no program no-such-program-anywhere"),
        ("/etc/passwd", "/etc/passwd cannot be run: permission denied"),
        ("/usr", "/usr cannot be run: permission denied"),
        ("nul\0", "nul  cannot be run: embedded null byte"),
    ],
)
def test_what_cannot_be_started_is_told_plainly(program: str, said: str) -> None:
    assert ran([program]) == Outcome(ok=False, message=said)


def test_a_file_without_an_interpreter_and_a_missing_directory(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo no first line with an interpreter\n")
    script.chmod(0o755)
    assert ran([str(script)]).message == f"{script} cannot be run: exec format error"
    outcome = ran(["/bin/true"], directory="/nowhere")
    assert outcome.message == "the directory /nowhere cannot be used: no such file or directory"


@pytest.mark.parametrize(("seconds", "why"), [(60.0, "as the agent asked"), (0.1, "when its time was up"), (-5.0, "")])
def test_it_is_stopped_when_its_time_is_up_or_the_agent_asks(seconds: float, why: str) -> None:
    given = work(seconds_left=seconds)
    if seconds > 1:
        threading.Timer(0.1, given.stop.set).start()
    begun = time.monotonic()
    outcome = sh("sleep 60", given=given)
    assert time.monotonic() - begun < 30
    assert untimed(outcome) == (False, f"stopped, {why or 'when its time was up'}")


def test_it_is_asked_to_end_and_its_last_words_are_heard(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    outcome = sh(
        "sleep 60 & trap 'echo tidied up; exit 0' TERM; echo begun; : > \"$1\"; wait",
        str(begun),
        given=stopped_with(begun),
        grace=10,
    )
    assert untimed(outcome) == (False, "stopped, as the agent asked: begun / tidied up")


def test_one_that_will_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    outcome = sh(
        "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > $0; while :; do sleep 0.05; done' \"$1\"; echo never",
        str(pid),
        given=stopped_with(pid),
    )
    assert untimed(outcome) == (False, "stopped, as the agent asked, and killed 0.3 s later")
    until(lambda: not alive(pid_in(pid)))


def test_what_a_stopped_program_started_has_its_time_to_end_too(tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    # The sleep comes first: one that was born under the trap could miss the signal until it is a program of its own.
    worker = 'sleep 60 & trap \'sleep 0.1; echo tidied > "$1"; exit\' TERM; : > "$0"; wait'
    outcome = sh(
        'sh -c "$1" "$2" "$3" >/dev/null 2>&1 & wait',
        worker,
        str(begun),
        str(done),
        given=stopped_with(begun),
        grace=10,
    )
    assert untimed(outcome) == (False, "stopped, as the agent asked")
    assert done.read_text() == "tidied\n"


def test_what_a_failed_program_left_behind_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert sh('sleep 600 & echo $! > "$1"; exit 1', str(pid)) == Outcome(ok=False, message="exit code 1")
    until(lambda: not alive(pid_in(pid)))


def test_what_a_program_left_in_the_background_holds_nothing_up_and_goes_on(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    begun = time.monotonic()
    assert sh('(while :; do echo on; sleep 0.05; done) & echo $! > "$1"', str(pid)).ok
    assert time.monotonic() - begun < 30
    left = pid_in(pid)
    assert alive(left)
    os.kill(left, 9)


def test_where_there_are_no_groups_the_child_alone_is_ended() -> None:
    ended = executed("/bin/sleep", "60", seconds=0.1, family=process.Alone)
    assert (ended.code, bool(ended.stopped)) == (-15, True)
    ended = executed(*STUBBORN, seconds=0.2, grace=QUICK, family=process.Alone)
    assert ended.code == -9
    assert ended.message.endswith("when its time was up, and killed 0.3 s later")


def test_one_that_cannot_be_killed_holds_nothing_up() -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Undying(process.Alone):
        def __init__(self, child: subprocess.Popen[bytes]) -> None:
            super().__init__(child)
            started.append(child)

        def terminate(self) -> None: ...
        def kill(self) -> None: ...

    ended = executed("/bin/sleep", "60", seconds=0.1, grace=0.1, family=Undying)
    assert (ended.ok, ended.code) == (False, None)
    assert ended.message.endswith("when its time was up, and killed 0.1 s later, and is still there")
    started[0].kill()
    started[0].wait(60)


def test_a_stubborn_child_is_not_polled_all_the_time() -> None:
    """Each look reads about every process of the machine."""
    looks = 0

    class Seen(process.Alone):
        @property
        def alive(self) -> bool:
            nonlocal looks
            looks += 1
            return super().alive

    executed(*STUBBORN, seconds=0.1, grace=0.5, family=Seen)
    assert 5 < looks < 20


def test_more_output_is_kept_on_request() -> None:
    ended = executed("/usr/bin/seq", "3000", kept=100_000)
    assert ended.printed == "".join(f"{number}\n" for number in range(1, 3001))
    assert ended.message == " / ".join(str(number) for number in range(1, 3001))


def test_a_program_may_be_given_only_some_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEPT", "SECRET", "NOTIFY_SOCKET"):
        monkeypatch.setenv(name, "here")
    outcome = ran(["/usr/bin/env"], inherited=["KEPT", "NOTIFY_SOCKET", "UNSET"], environment={"OWN": "too"})
    assert outcome == Outcome(ok=True, message="KEPT=here / OWN=too")


# What is told before it begins, and ended by another


def test_a_program_does_nothing_before_its_number_is_kept(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    kept: list[int] = []

    def born(pid: int) -> None:
        until(lambda: b"launcher.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
        assert not mark.exists()
        assert os.getpgid(pid) == pid
        kept.append(pid)

    program = process.Program(argv=["sh", "-c", f'cat > "{mark}"; echo $$'], stdin=b"its input")
    ended = process.execute(program, RUNTIME, seconds=60, stop=threading.Event(), on_start=born)
    assert (ended.ok, ended.output) == (True, str(kept[0]))
    assert mark.read_text() == "its input"


def test_a_program_whose_number_cannot_be_kept_is_not_run(tmp_path: Path) -> None:
    numbers: list[int] = []

    def born(pid: int) -> None:
        numbers.append(pid)
        raise OSError("the journal cannot be written")

    program = process.Program(argv=["touch", str(tmp_path / "mark")], stdin=b"x")
    with pytest.raises(process.ProgramError, match=r"touch was not run: the journal cannot be written"):
        process.execute(program, RUNTIME, seconds=60, stop=threading.Event(), on_start=born)
    assert not alive(numbers[0])
    assert not list(tmp_path.iterdir())


LOOK = 'tr "\\0" "\\n" < /proc/$$/environ | sort; grep SigIgn /proc/$$/status; ls /proc/$$/fd; echo "$@"'


@pytest.mark.parametrize("locale", [{}, {"LC_CTYPE": "C"}, {"LC_ALL": "C"}])
def test_a_program_finds_everything_as_if_it_had_begun_at_once(locale: dict[str, str]) -> None:
    program = process.Program(
        argv=["sh", "-c", LOOK, "sh", "", "a b", "\udcff"],
        environment={"with.dot": "1", "EMPTY": "", **locale},
        inherited=("PATH",),
        kept=10_000,
    )
    plain, gated = (
        process.execute(program, RUNTIME, seconds=60, stop=threading.Event(), on_start=born)
        for born in (None, lambda _: None)
    )
    assert plain.ok
    assert gated.printed == plain.printed


def test_a_program_that_cannot_be_run_is_told_apart(tmp_path: Path) -> None:
    def said(name: str) -> str:
        program = process.Program(argv=[name], directory=str(tmp_path))
        try:
            ended = process.execute(program, RUNTIME, seconds=60, stop=threading.Event(), on_start=lambda _: None)
        except process.ProgramError as error:
            return error.message
        return ended.message

    (tmp_path / "plain").write_text("#!/bin/sh\n")
    (tmp_path / "odd").write_text("#!/nowhere/at/all\n")
    (tmp_path / "odd").chmod(0o755)
    assert said("/nowhere/at/all") == "there is no program /nowhere/at/all"
    assert said("./plain") == f"{tmp_path}/./plain is not executable: chmod +x it"
    assert said("./odd") == "exit code 1: ./odd cannot be run: No such file or directory"


def test_nothing_begins_when_the_agent_has_ended() -> None:
    wait, go = os.pipe()
    os.close(go)
    with pytest.raises(SystemExit, match="the agent has ended"):
        launcher.main(str(wait), "", "true")


MARKS = {"FORENOTICE_HANDLER": "drain", "FORENOTICE_ATTEMPT": "1"}


@contextmanager
def left_behind(text: str, pids: Path, count: int) -> Iterator[tuple[int, int]]:
    """The number of its group, and when that started."""
    leader = subprocess.Popen(["sh", "-c", text, "sh", str(pids)], env={**os.environ, **MARKS}, start_new_session=True)
    started = process.started(leader.pid)
    assert started is not None
    reaper = threading.Thread(target=leader.wait)
    reaper.start()
    try:
        until(lambda: pids.exists() and len(pids.read_text().split()) == count)
        yield leader.pid, started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        reaper.join()


FAMILY = """
(trap '' TERM; while :; do sleep 0.1; done) & echo $! >> "$1"
sleep 60 & echo $! >> "$1"
echo $$ >> "$1"
"""


@pytest.mark.parametrize("last", ["wait", "exit"])
def test_all_that_was_left_behind_is_ended_with_or_without_its_leader(tmp_path: Path, last: str) -> None:
    with left_behind(FAMILY + last, tmp_path / "pids", 3) as (number, started):
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        if last == "exit":
            until(lambda: process.started(number) is None)
        assert process.end_group(number, started, MARKS, RUNTIME, grace=QUICK)
        assert not any(map(alive, pids))
        assert process.end_group(number, started, MARKS, RUNTIME, grace=QUICK)


@pytest.mark.parametrize(
    ("last", "later", "marks"), [("wait", 1, MARKS), ("exit", 0, {**MARKS, "FORENOTICE_ATTEMPT": "2"})]
)
def test_a_number_that_belongs_to_another_group_is_left_alone(
    tmp_path: Path, last: str, later: int, marks: dict[str, str]
) -> None:
    with left_behind(FAMILY + last, tmp_path / "pids", 3) as (number, started):
        child = int((tmp_path / "pids").read_text().split()[0])
        if last == "exit":
            until(lambda: process.started(number) is None)
        assert process.end_group(number, started + later, marks, RUNTIME, grace=QUICK)
        assert alive(child)


@pytest.mark.parametrize(
    ("text", "beginning", "end"),
    [
        ("no such domain on host-7", "no such …", "… on host-7"),
        ("no such one", "no such one", "no such one"),
        ("!" * 20, "!" * 10 + " …", "… " + "!" * 10),
    ],
)
def test_what_is_too_long_is_cut_between_words(text: str, beginning: str, end: str) -> None:
    assert (process.first_words(text, 12), process.last_words(text, 12)) == (beginning, end)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "/secret"), "no such file or directory"),
        (OSError("its reply has no end"), "its reply has no end"),
        (TimeoutError(), "timeouterror"),
        (OSError(5, "A\x1b[2J\n" + "x" * 1000), "a [2j " + "x" * 94),
    ],
)
def test_a_reason_is_short_and_plain(error: Exception, said: str) -> None:
    assert process.reason(error) == said
