"""The program as a whole: help, usage, exit codes, terminals, and what it does not import."""

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
from tests.cli.conftest import Run
from tests.cli.stranger import answer, stranger

from forenotice import __version__
from forenotice.cli import main as main_module
from forenotice.cli.main import COMMANDS as TABLE
from forenotice.settings import table

COMMANDS = """
serve
vm add|set|list|show|remove|policy|restart|redeploy|evict|delete
host add|set|list|show|remove|cordon|uncordon|update|reboot|migrate|degrade|fail
group add|set|list|show|remove|policy
event list|show|explain|approve|cancel
operation list|show|explain|cancel
rollout plan|start|wait|list|show|hosts|explain|pause|resume|cancel
watch
history prune
subscription add|set|list|show|remove|resume|replay|test
fleet discover|apply|diff|export|drift
network rules
token create|list|rotate|revoke
backup
restore
migrate
clock accept
guest events|approve|doctor
agent run|check|status
edge run|list|show|forget|enrol|revoke|rotate
cluster init|check|demo
emulate
emulator state|play|event|events|explain|wait|approve|cancel
emulator advance|step|pause|resume|fault|faults|requests|endpoint|reset
lab up|status|console|down
record
replay
conformance
"""


def named() -> Iterator[tuple[str, ...]]:
    context = click.Context(main_module.program)
    for name in TABLE:
        loaded = main_module.program.get_command(context, name)
        yield from ((name, verb) for verb in loaded.commands) if isinstance(loaded, click.Group) else ((name,),)


def wanted() -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for line in COMMANDS.split("\n"):
        noun, _, verbs = line.partition(" ")
        if noun:
            found |= {(noun, verb) for verb in verbs.split("|")} if verbs else {(noun,)}
    return found


def test_the_commands_are_those_of_the_design() -> None:
    assert set(named()) == wanted()


def test_only_the_command_that_is_run_is_loaded() -> None:
    code = """
import sys
from forenotice.cli.main import main
assert main(["vm", "-h"]) == 0
others = ("forenotice.agent", "forenotice.client", "forenotice.emulator", "forenotice.views.")
others += ("http.client", "rich", "ssl")
print([name for name in sys.modules if name.startswith(others)])
"""
    ran = python("-c", code)
    assert ran.stdout.splitlines()[-1:] == ["[]"], ran.stderr


def test_no_summary_is_cut(run: Run) -> None:
    for noun in [(), *sorted({path[:1] for path in wanted() if len(path) > 1})]:
        summaries = run(*noun, "-h").out.partition("Commands:")[2]
        assert summaries
        assert not re.search(r"\.\.\.|…", summaries)


FOREGROUND = {("serve",), ("agent", "run"), ("edge", "run"), ("cluster", "demo")}
"""They run until they are told to end; the demo writes cluster.json."""


def test_every_command_has_help_and_json(run: Run) -> None:
    for path in sorted(wanted()):
        ran = run(*path, "--help")
        assert ran.out.startswith(f"Usage: forenotice {' '.join(path)}")
        assert ("--json" in ran.out) is (path not in FOREGROUND), path


def test_serve_has_a_flag_for_every_setting(run: Run) -> None:
    shown = re.sub(r"\s+", " ", run("serve", "-h").out)
    for row in table.SERVE:
        assert f" {row.flag} {row.metavar}".rstrip() in shown
        assert row.variable in shown
        assert row.help in shown
        if row.default is not None and not row.is_switch:
            assert f"default {row.default}" in shown


def test_help_offers_what_there_is_to_choose(run: Run) -> None:
    def offered(*path: str) -> str:
        return re.sub(r"\s+", " ", run(*path, "-h").out)

    for path in wanted():
        assert ("--notice" in offered(*path)) is (
            path in {("vm", "restart"), ("vm", "redeploy"), ("vm", "evict"), ("emulator", "event")}
            or (path[0] == "rollout" and path[1] in ("plan", "start"))
            or (path[0] == "host" and path[1] in ("update", "reboot", "migrate", "degrade"))
        ), path
        if path[0] in ("vm", "host") and "--wait" in offered(*path):
            assert ("--yes" in offered(*path)) is (path[1] in ("delete", "evict", "fail")), path
    assert "7 days if left out" in offered("host", "degrade")
    assert "the minimum if left out" in offered("host", "update")
    assert offered("vm", "restart").startswith("Usage: forenotice vm restart [OPTIONS] VM... ")
    assert offered("fleet", "export").startswith("Usage: forenotice fleet export [OPTIONS] [FILE] ")
    for path in (("backup",), ("token", "list")):
        assert "The demo's, which is kept in DATA/demo." in offered(*path)


def test_the_version_and_a_noun_alone(run: Run) -> None:
    assert run("--version").out == f"forenotice {__version__}\n"
    for arguments in ((), ("vm",), ("guest",)):
        ran = run(*arguments)
        assert (ran.code, "Commands:" in ran.err) == (2, True)


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORENOTICE_")}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_the_program_itself() -> None:
    where = {"FORENOTICE_SPEED": "ignored here", "FORENOTICE_TOKEN": "t", "FORENOTICE_CONTROL": "127.0.0.1:9"}
    ran = python("-m", "forenotice", "vm", "list", **where)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("forenotice: cannot reach the control plane at http://127.0.0.1:9")
    assert python("-m", "forenotice", "serve", FORENOTICE_SPEED="fast").returncode == 2


def test_inside_a_guest_no_server_package_is_imported() -> None:
    code = """
import sys
from forenotice.cli.main import main
assert main(["guest", "events"]) == 0
heavy = {"pydantic", "sqlalchemy", "uvloop", "uvicorn", "starlette", "structlog", "httptools", "psycopg",
         "prometheus_client", "alembic", "forenotice.service", "forenotice.store", "forenotice.control"}
print(sorted(heavy & set(sys.modules)))
"""
    with stranger(answer("200 OK", b'{"DocumentIncarnation":1,"Events":[]}')) as server:
        ran = python("-c", code, FORENOTICE_ENDPOINT=server.url)
    assert ran.stdout.splitlines() == ["Nothing is announced (incarnation 1).", "[]"], ran.stderr


def test_a_reader_that_leaves_early_causes_no_traceback(cli: Run) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "forenotice", "history", "--json"]
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (1, b"")


def on_a_terminal(typed: bytes, *arguments: str, **variables: str) -> tuple[int, str]:
    """The program on a terminal of its own, with something typed into it: the exit code, and what was drawn."""
    ours, theirs = pty.openpty()
    os.write(ours, typed)
    process = subprocess.Popen(
        [sys.executable, "-m", "forenotice", *arguments],
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"} | variables,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    drawn: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(ours, 65536):
                drawn.append(chunk)
        except OSError:
            return  # The other end is closed: that is how a terminal ends.

    reader = threading.Thread(target=read)
    reader.start()
    code = process.wait(60)
    reader.join(60)
    os.close(ours)
    return code, b"".join(drawn).decode()


def test_what_cannot_be_undone_is_confirmed_on_a_terminal(cli: Run) -> None:
    cli("host", "add", "doomed")
    code, text = on_a_terminal(b"n\n", "host", "remove", "doomed")
    assert (code, "Remove host doomed? [y/N]" in text, "nothing was done" in text) == (1, True, True)
    assert cli("host", "show", "doomed").code == 0
    assert on_a_terminal(b"yes\n", "host", "remove", "doomed")[0] == 0
    assert cli("host", "show", "doomed").code == 1
    cli("host", "add", "doomed")
    assert on_a_terminal(b"", "host", "remove", "doomed", "--yes")[0] == 0


def test_tables_have_colour_on_a_terminal_only(cli: Run, tmp_path: Path) -> None:
    cli("host", "add", "blue", "--cordoned")
    _, coloured = on_a_terminal(b"", "host", "list")
    assert "\x1b[33mcordoned" in coloured
    _, plain = on_a_terminal(b"", "host", "list", NO_COLOR="1")
    assert "\x1b[33m" not in plain
    assert "\x1b" not in cli("host", "list").out
