"""What a guest needs to run our agent: the Python that runs us and the modules that the agent imports.

Each file has the path in the guest that it has here, so that everything finds each other as it does here.
"""

import importlib.machinery
import importlib.util
import marshal
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from forenotice.lab import image, packages
from forenotice.lab.image import Entry, ImageError

LISTS = """
import json, sys
import argparse, encodings.ascii, encodings.idna, encodings.latin_1, encodings.utf_8_sig, logging, runpy, shutil
import forenotice.__main__, forenotice.agent.daemon, forenotice.programs.launcher
files = [module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)]
json.dump({"path": sys.path, "files": sorted({*files})}, sys.stdout)
"""
"""The first line of modules are those that are imported only once they are needed."""
LIBRARY = re.compile(r"(/\S+) \(0x")
"""A line of ldd names one after the arrow, or the loader alone."""
DIRECTORY = "etc/forenotice"
RUN = """\
#!/bin/sh
export PYTHONPATH={path} PYTHONDONTWRITEBYTECODE=1
exec {python} -m forenotice agent run --log-format json "$@"
"""
HANDLER = """\
#!/bin/sh
read -r boot_id </proc/sys/kernel/random/boot_id
printf '{"vm":"%s","boot_id":"%s","uptime":%s,"%s":"%s","type":"%s","paused":%s}\\n' "$(hostname)" "$boot_id" \\
    "$(cut -d' ' -f1 /proc/uptime)" "$1" "$FORENOTICE_EVENT_ID" "$FORENOTICE_EVENT_TYPE" \\
    "${FORENOTICE_PAUSE_SECONDS:-null}" >/dev/console
"""
CONFIG = """\
state = "/data/agent"

[[handler]]
name = "guest"
type = "command"
prepare = ["sh", "-c", "/etc/forenotice/handler prepares; sleep {prepare:g}"]
recover = ["/etc/forenotice/handler", "recovered"]
"""


class _Listed(msgspec.Struct, frozen=True):
    path: list[str]
    files: list[str]


def write(path: Path, plain: Path, prepare: float) -> None:
    """Write an initramfs that has the agent besides what is in the plain one; `prepare` is in seconds.

    The kernel unpacks archives one after the other. That of Python is not compressed: a guest that is emulated
    takes longer to decompress it than to read it.
    """
    path.write_bytes(image.archive(_with_directories(_entries(prepare))) + plain.read_bytes())


def _entries(prepare: float) -> Iterator[Entry]:
    listed = _listed()
    python = os.path.realpath(sys.executable)
    run = RUN.format(path=":".join(filter(None, listed.path)), python=python)
    yield _file(f"{DIRECTORY}/run", run.encode(), 0o755)
    yield _file(f"{DIRECTORY}/handler", HANDLER.encode(), 0o755)
    yield _file(f"{DIRECTORY}/agent.toml", CONFIG.format(prepare=prepare).encode())
    sources = [file for file in listed.files if file.endswith(".py")]
    programs = [python, *(file for file in listed.files if ".so" in file)]
    for file in sorted({*programs, *_libraries(programs)}):
        yield _file(file, image.loaded(Path(file).read_bytes()), 0o755)
    for file in sources:
        yield _file(file, Path(file).read_bytes())
        yield _file(importlib.util.cache_from_source(file), _compiled(file))


def _listed() -> _Listed:
    done = subprocess.run([sys.executable, "-I", "-c", LISTS], check=True, capture_output=True)  # noqa: S603
    return msgspec.json.decode(done.stdout, type=_Listed)


def _libraries(programs: Iterable[str]) -> set[str]:
    """All that these are linked with."""
    done = subprocess.run(  # noqa: S603
        [packages.find("ldd") or "ldd", *programs], check=False, capture_output=True, text=True
    )
    if done.returncode or not (found := set(LIBRARY.findall(done.stdout))):
        raise ImageError(f"the libraries of {sys.executable} cannot be listed: ldd says {done.stderr.strip()!r}")
    return found


def _compiled(file: str) -> bytes:
    """As a file that is never compared with its source: in an archive, times are lost."""
    code = importlib.machinery.SourceFileLoader("module", file).get_code("module")
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)


def _file(path: str, content: bytes, mode: int = 0o644) -> Entry:
    return Entry(path.lstrip("/"), stat.S_IFREG | mode, content)


def _with_directories(entries: Iterable[Entry]) -> Iterator[Entry]:
    made = set[str]()
    for entry in entries:
        for parent in reversed(Path(entry.name).parents[:-1]):
            if str(parent) not in made:
                made.add(str(parent))
                yield Entry(str(parent), stat.S_IFDIR | 0o755)
        yield entry
