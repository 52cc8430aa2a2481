"""The sagas in memory and in the journal, and what happens when the disk fails."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from forenotice.agent import journal as journals
from forenotice.agent.context import Context
from forenotice.agent.journal import KEPT, MOST_PEERS, Copy, Journal, JournalError
from forenotice.agent.rules import transitions
from forenotice.agent.rules.saga import Saga
from forenotice.core import errors

RECENT = 10
UNSEEN_SECONDS = 600.0
"""For which peers' readiness for an event that this VM has not seen is kept."""


class Sagas:
    """Belongs to the loop's thread.

    What goes forward, preparing and approving, is done only when it has been written. What goes back is done in any
    case, and written when the disk allows it again.
    """

    def __init__(self, directory: Path, context: Context, lock: Callable[[], None] = lambda: None) -> None:
        """`lock` makes sure that the directory is ours; JournalError when that is not possible now."""
        self._directory = directory
        self._context = context
        self._log = context.log
        self._lock = lock
        self._journal: Journal | None = None
        self._removed: list[Journal] = []
        """Not closed: SQLite would remove the log of the file that has taken its place."""
        self._known = False
        self._found: list[Saga] = []
        self._is_new = False
        self._failing = False
        self._unwritten: set[str] = set()
        self.sagas: dict[str, Saga] = {}
        self.peers: dict[str, dict[str, datetime]] = {}
        self._received_at: dict[str, float] = {}

    @property
    def open(self) -> bool:
        return self._journal is not None

    @property
    def writable(self) -> bool:
        return self.open and not self._failing

    @property
    def unread(self) -> bool:
        """There is a journal, or may be one, that was not read yet."""
        return not self._known and journals.may_exist(self._directory)

    @property
    def live(self) -> list[Saga]:
        return [saga for saga in self.sagas.values() if saga.live]

    @property
    def pending(self) -> list[Saga]:
        """Those for which something may really have been done that is not taken back yet."""
        return self._found if self._context.observe else self.live

    @property
    def recent(self) -> list[Saga]:
        return [saga for saga in self.sagas.values() if not saga.live][-RECENT:]

    def try_to_open(self) -> None:
        """Nothing happens while the journal cannot be read; while it cannot be written, only what goes back is done."""
        known = self._known
        try:
            self._lock()
            self._journal = self._opened()
        except (errors.ConflictError, errors.RefusedError) as error:
            # It is another agent's, or other users could have written it.
            self._failed(error)
        except JournalError as error:
            self._failed(error)
            if not known:
                with (
                    contextlib.suppress(JournalError, errors.RefusedError),
                    contextlib.closing(Journal(self._directory, writable=False)) as read,
                ):
                    self._load(read)
        else:
            self._worked()
        if self._known and not known:
            for saga in self.live:
                self._context.metrics.count("resumed_total")
                self._log.info("An event is resumed", action="saga.resumed", event_id=saga.id, state=saga.state)

    def _opened(self) -> Journal:
        journal = (Copy if self._context.observe else Journal)(self._directory)
        if journal.put_aside is not None:
            message = "The journal could not be read; the file is kept"
            if journal.dropped:
                message = "Some of the journal could not be read; a copy is kept"
            fields = {"kept": str(journal.put_aside), "lost_events": journal.dropped or None}
            self._log.error(message, action="journal.put_aside", **fields)
        try:
            self._load(journal)
        except JournalError:
            journal.close()
            raise
        return journal

    def _load(self, journal: Journal) -> None:
        """What is in memory counts for more than what was written, and is written anew."""
        is_new = journal.is_new()
        # An agent that only observes ends no program of an earlier agent.
        boot = None if self._context.observe else self._context.boot
        written = {saga.id: transitions.resumed(saga, boot) for saga in journal.sagas()}
        peers = journal.peers()
        if not self._known:
            self._is_new = is_new
            self._found = [saga for saga in written.values() if saga.live]
        elif is_new and not self._is_new:
            journal.mark_old(None)
        self._unwritten.update(name for name, saga in self.sagas.items() if saga != written.get(name))
        self.sagas = {**written, **self.sagas}
        self.peers = {**peers, **self.peers}
        self._known = True

    def is_new(self) -> bool:
        return self.open and self._is_new

    def mark_old(self, first: Saga | None) -> bool:
        if not self._try(lambda journal: journal.mark_old(first)):
            return False
        self._is_new = False
        if first:
            self.sagas[first.id] = first
        return True

    def begin(self, saga: Saga) -> bool:
        """A new saga, also of an event that was over before; whether it was written."""
        if not self._try(lambda journal: journal.write(saga, anew=True)):
            return False
        if self.sagas.pop(saga.id, None):
            self.peers.pop(saga.id, None)
        self.sagas[saga.id] = saga
        return True

    def keep(self, saga: Saga, *, forward: bool = False) -> bool:
        """Whether what comes next may be done."""
        if forward:
            self._check_file()
            if not self.open:
                return False
        known = self.sagas[saga.id]
        if saga == known:
            return True
        if _lasting(saga) != _lasting(known) or saga.id in self._unwritten:
            written = self._try(lambda journal: journal.write(saga))
            if not written and forward:
                return False
            (self._unwritten.discard if written else self._unwritten.add)(saga.id)
        self.sagas[saga.id] = saga
        if not saga.live:
            self.peers.pop(saga.id, None)
            for done in [known for known in self.sagas.values() if not known.live][:-KEPT]:
                del self.sagas[done.id]
        return True

    def peer_ready(self, event: str, name: str, ready_at: datetime | None) -> None:
        names = self.peers.setdefault(event, {})
        self._received_at[event] = self._context.runtime.monotonic()
        if ready_at is None:
            names.pop(name, None)
        elif names.get(name) == ready_at or len(names) >= MOST_PEERS:
            return
        else:
            names[name] = ready_at
        self._try(lambda journal: journal.peer_ready(event, name, ready_at))

    def forget_unseen(self) -> None:
        """Events that only peers know: they may be about to be seen here, but are not kept for ever."""
        now, live = self._context.runtime.monotonic(), {saga.id for saga in self.live}
        received_at = {event: self._received_at.get(event, now) for event in self.peers}
        unseen = sorted(received_at.keys() - live, key=received_at.__getitem__, reverse=True)
        for number, event in enumerate(unseen):
            if not self.peers[event] or number >= KEPT or now - received_at[event] >= UNSEEN_SECONDS:
                del self.peers[event], received_at[event]
                self._try(partial(Journal.forget_peers, event=event))
        self._received_at = received_at

    def write_unwritten(self) -> None:
        self._check_file()
        for saga in [saga for saga in self.sagas.values() if saga.id in self._unwritten]:
            if not self._try(partial(Journal.write, saga=saga)):
                return
            self._unwritten.discard(saga.id)

    def _check_file(self) -> None:
        """If the state directory was removed, everything in memory goes into a new journal."""
        if self._journal is None or self._journal.is_there():
            return
        self._log.error("The journal was removed and is made anew", action="journal.removed")
        self._removed.append(self._journal)
        self._journal = None
        self.try_to_open()
        self.write_unwritten()

    def close(self) -> None:
        if self._journal:
            self._journal.close()

    def _try(self, write: Callable[[Journal], None]) -> bool:
        if self._journal is None:
            return False
        try:
            write(self._journal)
        except JournalError as error:
            self._failed(error)
            return False
        self._worked()
        return True

    def _worked(self) -> None:
        self._failing = False
        self._log.over("The state directory can be used again", action="journal.failed")

    def _failed(self, error: errors.ForenoticeError) -> None:
        self._failing = True
        self._context.metrics.count("journal_errors_total")
        self._log.trouble("The state directory cannot be used", action="journal.failed", reason=error.message)


def _lasting(saga: Saga) -> Saga:
    """What must survive: neither the sentence that says what it waits for nor the clock's difference."""
    return replace(saga, why="", event=msgspec.structs.replace(saga.event, ahead=0.0))
