"""The sagas in memory and in the journal, and what happens when the disk fails."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from forenotice.agent import journal as journals
from forenotice.agent.journal import HEARD, KEPT, Copy, Journal, JournalError
from forenotice.agent.log import Log
from forenotice.agent.metrics import Metrics
from forenotice.agent.rules import transitions
from forenotice.agent.rules.saga import Saga
from forenotice.core import errors

DONE_SHOWN = 10
STRANGE = 600.0
"""Seconds for which it is remembered what peers tell of an event that this VM does not know."""


class Sagas:
    """Belongs to the loop's thread.

    What goes forward, preparing and approving, is done only when it has been written down. What goes back is done in
    any case, and written when the disk allows it again.
    """

    def __init__(
        self,
        directory: Path,
        log: Log,
        metrics: Metrics,
        lock: Callable[[], None] = lambda: None,
        *,
        observe: bool = False,
        boot: str = "",
    ) -> None:
        """`lock` makes sure that the directory is ours; JournalError when that is not possible just now.

        With `observe` the journal is read, and what happens is kept in memory only.
        """
        self._observe = observe
        self._found: list[Saga] = []
        """Those that an earlier run has left."""
        self._directory = directory
        self._boot = boot
        self._lock = lock
        self._log = log
        self._metrics = metrics
        self._journal: Journal | None = None
        self._removed: list[Journal] = []
        """Not closed: SQLite would remove the log of the one that has taken its place."""
        self._known = False
        """Whether what an earlier run has left was read."""
        self._is_new = False
        self._failing = False
        self._unwritten: set[str] = set()
        self.sagas: dict[str, Saga] = {}
        self.peers: dict[str, dict[str, datetime]] = {}
        self._heard_at: dict[str, float] = {}
        """When peers last told of an event."""
        self.configs: dict[str, dict[str, str]] = {}
        """Of the handlers that prepared, by saga and handler."""

    @property
    def open(self) -> bool:
        return self._journal is not None

    @property
    def writable(self) -> bool:
        """As far as is known: whether what was last to be written was."""
        return self.open and not self._failing

    @property
    def unread(self) -> bool:
        """There is a journal, or may be one, and what it says is not known."""
        return not self._known and journals.may_exist(self._directory)

    @property
    def live(self) -> list[Saga]:
        return [saga for saga in self.sagas.values() if saga.live]

    @property
    def pending(self) -> list[Saga]:
        """Those for which something may really have been done that is not taken back yet."""
        return self._found if self._observe else self.live

    @property
    def recent(self) -> list[Saga]:
        return [saga for saga in self.sagas.values() if not saga.live][-DONE_SHOWN:]

    def try_to_open(self) -> None:
        """Read what an earlier run has left; nothing happens while that cannot be read.

        Where it can be read and not written, what goes back is done.
        """
        known = self._known
        try:
            self._journal = self._opened()
        except (errors.ConflictError, errors.RefusedError) as error:
            # It is another agent's, or other users could have written it.
            self._failed(error)
        except JournalError as error:
            self._failed(error)
            self._look()
        else:
            self._worked()
        if self._known and not known:
            for saga in self.live:
                self._metrics.resumed()
                self._log.info("An event is resumed", action="saga.resumed", event_id=saga.id, state=saga.state)

    def _look(self) -> None:
        if not self._known:
            with (
                contextlib.suppress(JournalError, errors.RefusedError),
                contextlib.closing(Journal(self._directory, writable=False)) as read,
            ):
                self._take_in(read)

    def _opened(self) -> Journal:
        self._lock()
        journal = (Copy if self._observe else Journal)(self._directory)
        if journal.put_aside is not None:
            self._log.error(
                "The journal could not be read and is put aside"
                if not journal.dropped
                else "Some of the journal could not be read; a copy is put aside",
                action="journal.put_aside",
                kept=str(journal.put_aside),
                lost_events=journal.dropped or None,
            )
        try:
            self._take_in(journal)
        except JournalError:
            journal.close()
            raise
        return journal

    def _take_in(self, journal: Journal) -> None:
        """What is known already counts for more than what was written, and is written anew."""
        is_new = journal.is_new()
        # Who only observes ends no program of an earlier agent.
        boot = None if self._observe else self._boot
        written = {saga.id: transitions.resumed(saga, boot) for saga in journal.sagas()}
        configs = {name: dict(journal.configs(name)) for name, saga in written.items() if saga.live}
        peers = {event: dict(names) for event, names in journal.peers().items()}
        if not self._known:
            self._is_new = is_new
            self._found = [saga for saga in written.values() if saga.live]
        elif is_new and not self._is_new:
            journal.mark_old(None)
        self._unwritten.update(name for name, saga in self.sagas.items() if saga != written.get(name))
        self.sagas = {**written, **self.sagas}
        self.configs = {saga.id: {**configs.get(saga.id, {}), **self.configs.get(saga.id, {})} for saga in self.live}
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
        if not self._try(lambda journal: journal.write(saga, {}, anew=True)):
            return False
        if self.sagas.pop(saga.id, None):
            self.peers.pop(saga.id, None)
        self.sagas[saga.id] = saga
        self.configs[saga.id] = {}
        return True

    def keep(self, saga: Saga, configs: Mapping[str, str], *, forward: bool) -> bool:
        """Whether what comes next may be done."""
        if forward:
            self._mind_the_file()
            if not self.open:
                return False
        known = self.sagas[saga.id]
        if saga == known:
            return True
        if _lasting(saga) != _lasting(known) or saga.id in self._unwritten:
            whole = {**self.configs.get(saga.id, {}), **configs} if saga.id in self._unwritten else configs
            written = self._try(lambda journal: journal.write(saga, whole))
            if not written and forward:
                return False
            (self._unwritten.discard if written else self._unwritten.add)(saga.id)
        self.sagas[saga.id] = saga
        self.configs.setdefault(saga.id, {}).update(configs)
        if not saga.live:
            self._forget(saga)
        return True

    def _forget(self, saga: Saga) -> None:
        self.configs.pop(saga.id)
        self.peers.pop(saga.id, None)
        over = [known for known in self.sagas.values() if not known.live]
        for known in over[:-KEPT]:
            del self.sagas[known.id]

    def heard(self, event: str, name: str, ready_at: datetime | None) -> None:
        """None: it is not ready, or no longer."""
        names = self.peers.setdefault(event, {})
        self._heard_at[event] = time.monotonic()
        if ready_at is None:
            names.pop(name, None)
        elif names.get(name) == ready_at or len(names) >= HEARD:
            return
        else:
            names[name] = ready_at
        self._try(lambda journal: journal.heard(event, name, ready_at))

    def forget_strangers(self) -> None:
        """Events of which only peers tell: they may be about to be seen here, but are not waited for without end."""
        now, live = time.monotonic(), {saga.id for saga in self.live}
        heard_at = {event: self._heard_at.get(event, now) for event in self.peers}
        strangers = sorted(heard_at.keys() - live, key=heard_at.__getitem__, reverse=True)
        for number, event in enumerate(strangers):
            if not self.peers[event] or number >= KEPT or now - heard_at[event] >= STRANGE:
                del self.peers[event], heard_at[event]
                self._try(partial(Journal.forget_peers, event=event))
        self._heard_at = heard_at

    def write_what_is_left(self) -> None:
        """Of what went on while the disk could not be written."""
        self._mind_the_file()
        for saga in [saga for saga in self.sagas.values() if saga.id in self._unwritten]:
            configs = self.configs.get(saga.id, {})
            if not self._try(partial(Journal.write, saga=saga, configs=configs)):
                return
            self._unwritten.discard(saga.id)

    def _mind_the_file(self) -> None:
        """Whoever removes the state directory takes nothing away: what is known goes into a new journal."""
        if self._journal is None or self._journal.is_there():
            return
        self._log.error("The journal was removed and is made anew", action="journal.removed")
        self._removed.append(self._journal)
        self._journal = None
        self.try_to_open()
        self.write_what_is_left()

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
        self._metrics.journal_failed()
        self._log.trouble("The state directory cannot be used", action="journal.failed", reason=error.message)


def _lasting(saga: Saga) -> Saga:
    """What must survive: not the sentence that says what it waits for, nor how far our clock is off."""
    return replace(saga, why="", event=msgspec.structs.replace(saga.event, ahead=0.0))
