"""The wheel as a VM gets it: made by `make wheel` in a clone, and installed into a fresh environment."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLONED = ("src", "packaging", "pyproject.toml", "README.md", "LICENSE", "Makefile")
INSTALL = ("make wheel", "python3 -m venv /tmp/vm", "/tmp/vm/bin/pip install dist/*.whl")
"""As the quickstart says it."""
ONLY_TO_BUILD = f'#!/bin/sh\n[ "$1 $2 $3" = "-m pip wheel" ] && exec "{sys.executable}" "$@"\nexit 1\n'
"""The clone's Python is that of these tests, which nothing may be installed into."""


@dataclass(frozen=True, slots=True)
class Installed:
    clone: Path
    vm: Path
    """In place of /tmp/vm."""


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Installed:
    """Once for all test processes, because it takes a while."""
    own = tmp_path_factory.getbasetemp()
    place = (own if worker_id == "master" else own.parent) / "wheel"
    with alone(place.with_name("wheel.lock")):
        found = Installed(place / "clone", place / "vm")
        if not (place / "done").exists():
            shutil.rmtree(place, ignore_errors=True)
            clone(found.clone)
            install(found)
            (place / "done").touch()
    return found


@contextmanager
def alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clone(folder: Path) -> None:
    """What the wheel is made of, with an environment that is up to date for make."""
    folder.mkdir(parents=True)
    for name in CLONED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(ROOT / name, folder / name)
    programs = folder / ".venv" / "bin"
    for needed in (folder / "scripts" / "environment", folder / "hashes.txt", programs / "python"):
        needed.parent.mkdir(parents=True, exist_ok=True)
        needed.touch()
    (programs / "python").write_text(ONLY_TO_BUILD)
    (programs / "python").chmod(0o755)
    (folder / ".venv" / ".installed").touch()


def install(place: Installed) -> None:
    # At the versions that everything else is tested with, and without compiling what is hardly used.
    settings = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_NO_COMPILE": "1"}
    for line in INSTALL:
        done = subprocess.run(
            ["bash", "-c", line.replace("/tmp/vm", str(place.vm))],
            cwd=place.clone,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
