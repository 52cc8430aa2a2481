"""The rings hold: imports point inward, and one module reads the clock."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"

SHELLS = frozenset(
    {"agent", "centre", "cli", "conformance", "control", "edge", "emulator", "lab", "metadata", "portal"}
)

# Rooms that may use nothing but what is named here: other rooms, and third parties.
SEALED = {
    "core": (frozenset({"core"}), frozenset[str]()),
    "wire": (frozenset({"wire", "core"}), frozenset({"msgspec"})),
    "clock": (frozenset({"clock"}), frozenset[str]()),
    "failures": (frozenset({"failures"}), frozenset[str]()),
    "limits": (frozenset({"limits"}), frozenset[str]()),
    "publication": (frozenset({"core"}), frozenset({"msgspec"})),
    "validation": (frozenset({"validation"}), frozenset({"msgspec"})),
    "views": (frozenset({"views", "core", "validation"}), frozenset({"msgspec"})),
    "programs": (frozenset({"programs", "core", "runtime"}), frozenset({"msgspec"})),
    "secret_files": (frozenset({"core"}), frozenset[str]()),
    "toml": (frozenset({"core", "secret_files"}), frozenset[str]()),
    "client": (frozenset({"client", "wire", "core", "clock", "failures"}), frozenset({"h11", "msgspec"})),
    "agent": (
        frozenset({"agent", "client", "clock", "core", "failures", "limits", "programs", "runtime"})
        | {"secret_files", "settings", "toml", "validation", "wire"},
        frozenset({"apprise", "h11", "kubernetes", "msgspec"}),
    ),
}
# Rooms that may use anything but these.
FORBIDDEN = {
    "store": SHELLS | {"service", "drivers", "delivery"},
    "drivers": SHELLS | {"service", "store", "delivery"},
    "service": SHELLS | {"delivery"},
    "delivery": SHELLS,
    "metadata": (SHELLS - {"metadata"}) | {"service", "store", "drivers", "delivery"},
    "control": SHELLS - {"control", "portal"},
    "portal": SHELLS - {"control", "portal"},
    # The emulator has no database: the stage is in memory, the rules are core's.
    "emulator": (SHELLS - {"emulator", "metadata", "control", "portal"}) | {"store", "drivers", "delivery"},
    "conformance": (SHELLS - {"conformance", "emulator", "agent"}) | {"store", "service", "drivers", "delivery"},
    # The service and its edges run in processes of their own: these two meet in NATS only.
    "centre": SHELLS - {"centre"},
    "edge": (SHELLS - {"edge", "metadata"}) | {"store", "service", "drivers", "delivery"},
    "cluster": SHELLS | {"store", "service", "drivers", "delivery"},
    # The lab starts the service as a process of its own.
    "lab": (SHELLS - {"lab"}) | {"store", "service", "delivery"},
    # What rooms of a process share.
    **dict.fromkeys(
        ("control_socket", "data_directory", "descriptors", "garbage_collection", "logs", "runtime"),
        SHELLS | {"service", "store", "drivers", "delivery"},
    ),
    **dict.fromkeys(
        ("network", "settings", "signatures", "ssrf"), SHELLS | {"service", "store", "drivers", "delivery"}
    ),
    # These put the rest together.
    **dict.fromkeys(("__init__", "__main__", "cli", "demo", "serving"), frozenset[str]()),
}
# Time, ids and threads are passed to these rooms, so that a service can run in one deterministic loop.
DETERMINISTIC = frozenset({"agent", "centre", "edge", "service", "delivery", "drivers", "emulator"})
PASSED_IN = frozenset(
    {"os.urandom", "threading.Thread", "threading.Timer", "time.monotonic", "time.perf_counter", "uuid.uuid4"}
)

# What the agent decides is pure: it sees events, and nothing else of the world.
RULES = "forenotice/agent/rules/"
SEEN_BY_RULES = ("forenotice.agent.rules", "forenotice.client.events", "forenotice.core.backoff")
WORLDLY = frozenset({"io", "os", "pathlib", "queue", "random", "socket", "sqlite3", "subprocess", "threading", "time"})

# What runs inside a guest keeps to what every system has, but for the modules that are named for it.
POSIX_ROOMS = frozenset({"agent", "client"})
POSIX_PLACE = "agent/posix.py"
POSIX_MODULES = frozenset({"fcntl", "grp", "posix", "pwd", "resource", "syslog", "termios"})
POSIX_NAMES = frozenset(
    {
        *(
            f"os.{name}"
            for name in ("fork", "geteuid", "getpgid", "getuid", "kill", "killpg", "setsid", "waitid", "waitpid")
        ),
        *(f"signal.{name}" for name in ("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "pthread_sigmask")),
        "socket.AF_UNIX",
    }
)

CLOCK_READERS = frozenset(
    {
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "datetime.date.today",
        "time.time",
        "time.time_ns",
    }
)
# Modules (relative to the package) that may block in `time.sleep`; everything else waits on an event or a condition.
SLEEPERS = frozenset[str]()

NAMELESS = frozenset({"utils", "util", "helpers", "misc"})


@dataclass(frozen=True, slots=True)
class Module:
    path: Path  # relative to the sources, `forenotice/core/fleet.py`
    text: str

    @property
    def package(self) -> tuple[str, ...]:
        return self.path.parts[:-1]

    @property
    def place(self) -> str:
        return self.path.relative_to("forenotice").as_posix()

    @property
    def room(self) -> str:
        return self.path.relative_to("forenotice").with_suffix("").parts[0]

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        return _nodes(self.text, self.path.as_posix())


@cache
def _nodes(text: str, name: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(text, name)))


def read(sources: Path) -> list[Module]:
    return [Module(path.relative_to(sources), path.read_text()) for path in sorted(sources.glob("forenotice/**/*.py"))]


def imported(module: Module) -> Iterator[tuple[int, str, str]]:
    """Line, full name, and the local name it is bound to, of everything that is imported anywhere in the module."""
    for node in module.nodes:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name, alias.asname or ""
            case ast.ImportFrom(names=names, level=level):
                anchor = module.package[: len(module.package) + 1 - level] if level else ()
                origin = ".".join([*anchor, *([node.module] if node.module else [])])
                for alias in names:
                    yield node.lineno, f"{origin}.{alias.name}", alias.asname or alias.name


def broken_rings(module: Module) -> Iterator[str]:
    for line, name, _ in imported(module):
        top, _, rest = name.partition(".")
        if top == "forenotice":
            room = rest.partition(".")[0]
            allowed = SEALED[module.room][0] if module.room in SEALED else None
            outward = room not in allowed if allowed is not None else room in FORBIDDEN.get(module.room, ())
            # The package itself has only `__version__`.
            if outward and room not in {"", "__version__"}:
                yield f"{line}: {module.room} may not import {name}"
        elif module.room in SEALED and top not in sys.stdlib_module_names | SEALED[module.room][1]:
            yield f"{line}: {module.room} may not import the third party {name}"


def used(module: Module) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is reached through an import."""
    bound = {local: name for _, name, local in imported(module) if local}

    def full(node: ast.expr) -> str | None:
        match node:
            case ast.Name(id=name):
                return bound.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                owner = full(value)
                return f"{owner}.{attr}" if owner else None
        return None

    for node in module.nodes:
        if isinstance(node, ast.Name | ast.Attribute) and (name := full(node)):
            yield node.lineno, name


def misused_time(module: Module) -> Iterator[str]:
    for line, name in used(module):
        if name in CLOCK_READERS and module.room != "clock":
            yield f"{line}: only forenotice.clock reads the system's clock, this uses {name}"
        if name in PASSED_IN and module.room in DETERMINISTIC:
            yield f"{line}: {module.room} takes this from the Runtime, not from {name}"
        if name == "time.sleep" and module.place not in SLEEPERS:
            yield f"{line}: wait for an event with a timeout rather than with time.sleep"


def impure_rules(module: Module) -> Iterator[str]:
    if not module.path.as_posix().startswith(RULES):
        return
    for line, name, _ in imported(module):
        top = name.partition(".")[0]
        if top in WORLDLY or (top == "forenotice" and not name.startswith(SEEN_BY_RULES)):
            yield f"{line}: the agent's rules may not import {name}"


def misplaced_posix(module: Module) -> Iterator[str]:
    if module.room not in POSIX_ROOMS or module.place.startswith(POSIX_PLACE):
        return
    for line, name, _ in imported(module):
        if name.partition(".")[0] in POSIX_MODULES:
            yield f"{line}: only {POSIX_PLACE} may use {name}"
    for line, name in used(module):
        if name in POSIX_NAMES:
            yield f"{line}: only {POSIX_PLACE} may use {name}"


def unshapely(module: Module) -> Iterator[str]:
    lines = module.text.splitlines()
    if NAMELESS & set(module.path.with_suffix("").parts):
        yield "1: name the noun this is about"
    for number, line in enumerate(lines, 1):
        if "pragma: no cover" in line or "pragma: no branch" in line:
            yield f"{number}: test this rather than excluding it from coverage"


def findings(sources: Path) -> list[str]:
    checks = (broken_rings, impure_rules, misplaced_posix, misused_time, unshapely)
    return [f"src/{module.path}:{said}" for module in read(sources) for check in checks for said in check(module)]


def test_the_sources_keep_to_the_architecture() -> None:
    assert {module.room for module in read(SOURCES)} == SEALED.keys() | FORBIDDEN.keys(), "each room has an entry above"
    assert findings(SOURCES) == []


PASSED = "takes this from the Runtime, not from"
CLOCK = "only forenotice.clock reads the system's clock, this uses"
BAD = [
    ("core/a.py", "import sqlalchemy\n", "1: core may not import the third party sqlalchemy"),
    ("core/a.py", "from forenotice.wire import dates\n", "1: core may not import forenotice.wire.dates"),
    ("core/a.py", "import os\n\ndef f():\n    from ..store import x\n", "4: core may not import forenotice.store.x"),
    ("core/deep/a.py", "from ...service import x\n", "1: core may not import forenotice.service.x"),
    ("wire/a.py", "import httptools\n", "1: wire may not import the third party httptools"),
    ("store/a.py", "import forenotice.service\n", "1: store may not import forenotice.service"),
    ("drivers/a.py", "from forenotice import store\n", "1: drivers may not import forenotice.store"),
    ("service/a.py", "from forenotice import metadata\n", "1: service may not import forenotice.metadata"),
    ("service/a.py", "from forenotice import delivery\n", "1: service may not import forenotice.delivery"),
    ("drivers/a.py", "import time\nx = time.monotonic()\n", f"2: drivers {PASSED} time.monotonic"),
    ("metadata/a.py", "from forenotice import store\n", "1: metadata may not import forenotice.store"),
    ("emulator/a.py", "from forenotice import store\n", "1: emulator may not import forenotice.store"),
    ("conformance/a.py", "from forenotice import cli\n", "1: conformance may not import forenotice.cli"),
    ("control/a.py", "from forenotice import metadata\n", "1: control may not import forenotice.metadata"),
    ("client/a.py", "import requests\n", "1: client may not import the third party requests"),
    ("agent/a.py", "import click\n", "1: agent may not import the third party click"),
    ("agent/a.py", "import fcntl\n", "1: only agent/posix.py may use fcntl"),
    ("agent/a.py", "import os\nos.killpg(1, 2)\n", "2: only agent/posix.py may use os.killpg"),
    ("client/a.py", "from socket import AF_UNIX\nx = AF_UNIX\n", "2: only agent/posix.py may use socket.AF_UNIX"),
    ("agent/rules/a.py", "import time\n", "1: the agent's rules may not import time"),
    (
        "service/a.py",
        "from datetime import UTC, datetime\nx = datetime.now(UTC)\n",
        f"2: {CLOCK} datetime.datetime.now",
    ),
    ("cli/a.py", "import datetime as dt\nx = dt.datetime.utcnow()\n", f"2: {CLOCK} datetime.datetime.utcnow"),
    ("cli/a.py", "import time\n\ndef f(now=time.time): ...\n", f"3: {CLOCK} time.time"),
    ("cli/a.py", "from time import time as now\nx = now()\n", f"2: {CLOCK} time.time"),
    (
        "cli/a.py",
        "from time import sleep\nsleep(1)\n",
        "2: wait for an event with a timeout rather than with time.sleep",
    ),
    ("cli/a.py", "x = 1  # pragma: no cover\n", "1: test this rather than excluding it from coverage"),
    ("cli/utils.py", "", "1: name the noun this is about"),
]


def plant(sources: Path, place: str, text: str) -> None:
    path = sources / "forenotice" / place
    path.parent.mkdir(parents=True)
    path.write_text(text)


@pytest.mark.parametrize(("place", "text", "finding"), BAD)
def test_the_checker_shows_what_is_broken_and_where(tmp_path: Path, place: str, text: str, finding: str) -> None:
    plant(tmp_path, place, text)
    assert findings(tmp_path) == [f"src/forenotice/{place}:{finding}"]


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (
            "core/a.py",
            "from __future__ import annotations\nimport dataclasses\nfrom . import fleet\nfrom .fleet import Vm\n",
        ),
        ("core/a.py", "from forenotice.core import errors\nfrom datetime import datetime\nx = datetime.min\n"),
        ("wire/a.py", "import msgspec\nfrom forenotice.core import documents\nfrom forenotice.wire import dates\n"),
        ("store/a.py", "import sqlalchemy\nfrom forenotice import clock\nfrom forenotice.core import fleet\n"),
        ("service/a.py", "from forenotice import store\nimport structlog\n"),
        ("metadata/a.py", "import httptools, uvloop\nfrom forenotice import publication, wire\n"),
        ("client/a.py", "import urllib.request\nimport msgspec\nfrom forenotice import __version__\n"),
        ("cli/a.py", "from forenotice import control, metadata, service, store\n"),
        ("agent/posix.py", "import fcntl, os\nos.killpg(1, 2)\n"),
        ("agent/rules/a.py", "import dataclasses\nfrom forenotice.agent.rules import saga\n"),
        ("clock.py", "import time\nfrom datetime import UTC, datetime\nx = datetime.now(UTC), time.time()\n"),
        ("cli/a.py", "import time\nx = time.monotonic()\ny = event.time.sleep\n" + "z = 1\n" * 397),
    ],
)
def test_the_checker_leaves_sound_code_alone(tmp_path: Path, place: str, text: str) -> None:
    plant(tmp_path, place, text)
    assert findings(tmp_path) == []
