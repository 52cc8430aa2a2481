"""`file`: a flag that is there from the start of preparing until recovered, with the facts in it."""

import contextlib
import os

from forenotice.agent import handlers
from forenotice.agent.handlers import Outcome, Work, facts, tables
from forenotice.agent.rules.policy import Phase
from forenotice.programs import process

MODE = 0o644
"""Whoever looks for the flag need not be who runs the agent."""


class File:
    def __init__(self, config: tables.File) -> None:
        self._path = config.path

    def run(self, work: Work) -> Outcome:
        back = work.phase in (Phase.RECOVER, Phase.UNDO)
        ours = handlers.read_memo(work.memo)
        if not back:
            # Somebody else's flag is neither ours to write nor to remove.
            ours = [self._path] if ours or not self._is_there() else []
            work.remember(handlers.write_memo(ours))
        if ours is not None and not ours:
            return Outcome(ok=True, said=facts.plain(f"{self._path} was there before, and is left as it is"))
        try:
            said = self._remove() if back else self._write(facts.encoded(work))
        except OSError as error:
            return Outcome(ok=False, said=facts.plain(f"{self._path}: {process.of_error(error)}"))
        return Outcome(ok=True, said=facts.plain(said))

    def rehearse(self) -> Outcome:
        directory = os.path.dirname(self._path)
        if not os.path.isdir(directory):
            obstacle = f"there is no directory {directory} to write in: make it"
        elif os.path.isdir(self._path):
            obstacle = f"{self._path} is a directory: give the path of a file"
        elif not os.access(directory, os.W_OK | os.X_OK):
            obstacle = f"this user cannot write in {directory}"
        else:
            return Outcome(ok=True, said=facts.plain(f"would write {self._path}, and remove it afterwards"))
        return Outcome(ok=False, said=facts.plain(obstacle))

    def _is_there(self) -> bool:
        """A directory is none that anybody set."""
        return os.path.lexists(self._path) and not os.path.isdir(self._path)

    def _write(self, content: bytes) -> str:
        """All at once: whoever looks sees the whole of it, or nothing."""
        directory, name = os.path.split(self._path)
        new = os.path.join(directory, f".{name}.{os.urandom(8).hex()}")
        try:
            # "x" neither follows a link nor takes a file that is there.
            with open(new, "xb") as file:
                # Never by its name: whoever owns the directory may have put a link to another file there.
                if os.chmod in os.supports_fd:
                    os.chmod(file.fileno(), MODE)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                os.remove(new)
            raise
        return f"{self._path} is written"

    def _remove(self) -> str:
        try:
            os.remove(self._path)
        except FileNotFoundError:
            return f"{self._path} was not there"
        return f"{self._path} is removed"
