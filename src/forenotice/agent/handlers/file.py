"""`file`: a flag that exists from the start of preparing until recovered, with the facts in it."""

import contextlib
import os

from forenotice.agent.handlers import Outcome, Work, facts, read_memo, tables, write_memo
from forenotice.agent.rules.policy import Phase
from forenotice.programs.process import plain, reason
from forenotice.runtime import Runtime

MODE = 0o644
"""The reader of the flag need not be the agent's user."""


class File:
    def __init__(self, config: tables.File, runtime: Runtime) -> None:
        self._path = config.path
        self._new_id = runtime.new_id

    def run(self, work: Work) -> Outcome:
        back = work.phase in (Phase.RECOVER, Phase.UNDO)
        ours = read_memo(work.memo)
        if not back:
            # A flag that somebody else set is neither written nor removed.
            ours = [self._path] if ours or not self._exists() else []
            work.remember(write_memo(ours))
        if ours is not None and not ours:
            return Outcome(ok=True, message=plain(f"{self._path} existed before, and is left as it is"))
        try:
            message = self._remove() if back else self._write(facts.encoded(work))
        except OSError as error:
            return Outcome(ok=False, message=plain(f"{self._path}: {reason(error)}"))
        return Outcome(ok=True, message=plain(message))

    def rehearse(self) -> Outcome:
        directory = os.path.dirname(self._path)
        if not os.path.isdir(directory):
            problem = f"there is no directory {directory} to write in: make it"
        elif os.path.isdir(self._path):
            problem = f"{self._path} is a directory: give the path of a file"
        elif not os.access(directory, os.W_OK | os.X_OK):
            problem = f"this user cannot write in {directory}"
        else:
            return Outcome(ok=True, message=plain(f"would write {self._path}, and remove it afterwards"))
        return Outcome(ok=False, message=plain(problem))

    def _exists(self) -> bool:
        return os.path.lexists(self._path) and not os.path.isdir(self._path)

    def _write(self, content: bytes) -> str:
        """Atomically: a reader sees all of it, or nothing."""
        directory, name = os.path.split(self._path)
        new = os.path.join(directory, f".{name}.{self._new_id()}")
        try:
            # "x" neither follows a link nor opens an existing file.
            with open(new, "xb") as file:
                # By descriptor: the owner of the directory may have put a link at that name.
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
            return f"{self._path} did not exist"
        return f"{self._path} is removed"
