"""The sagas in memory and in the journal, and what happens when the disk fails."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec

from notbefore.agent.journal import KEPT, Journal, JournalError
from notbefore.agent.log import Log
from notbefore.agent.metrics import Metrics
from notbefore.agent.rules import advancing
from notbefore.agent.rules.saga import Saga

DONE_SHOWN = 10


class Memory:
    """Belongs to the loop's thread.

    What goes forward, preparing and approving, is done only when it has been written down. What goes back is done in
    any case, and written when the disk allows it again.
    """

    def __init__(self, directory: Path, log: Log, metrics: Metrics) -> None:
        self._directory = directory
        self._log = log
        self._metrics = metrics
        self._journal: Journal | None = None
        self._is_new = False
        self._failing = False
        self._unwritten: set[str] = set()
        self.sagas: dict[str, Saga] = {}
        self.peers: dict[str, dict[str, datetime]] = {}
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
    def live(self) -> list[Saga]:
        return [saga for saga in self.sagas.values() if saga.live]

    @property
    def recent(self) -> list[Saga]:
        return [saga for saga in self.sagas.values() if not saga.live][-DONE_SHOWN:]

    def try_to_open(self) -> None:
        """Read what an earlier run has left; nothing happens while that cannot be read."""
        try:
            self._journal = self._opened()
        except JournalError as error:
            self._failed(error)
            return
        self._worked()
        for saga in self.live:
            self._metrics.resumed()
            self._log.info("An event is resumed", action="saga.resumed", event_id=saga.id, state=saga.state)

    def _opened(self) -> Journal:
        journal = Journal(self._directory)
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
            self._is_new = journal.is_new()
            self.sagas = {saga.id: advancing.resumed(saga) for saga in journal.sagas()}
            self.configs = {saga.id: dict(journal.configs(saga.id)) for saga in self.live}
            self.peers = {event: dict(names) for event, names in journal.peers().items()}
        except JournalError:
            journal.close()
            raise
        return journal

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
        known = self.sagas[saga.id]
        if saga == known:
            return True
        if _lasting(saga) != _lasting(known) or saga.id in self._unwritten:
            written = self._try(lambda journal: journal.write(saga, configs))
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

    def remind(self, saga: str, handler: str, text: str) -> bool:
        """Whether a handler's memo is durable."""
        known = self.sagas[saga]
        return self.keep(replace(known, memos={**known.memos, handler: text}), {}, forward=True)

    def heard(self, event: str, name: str, ready_at: datetime | None) -> None:
        """None: it is not ready, or no longer."""
        names = self.peers.setdefault(event, {})
        if ready_at is None:
            names.pop(name, None)
        elif names.get(name) == ready_at:
            return
        else:
            names[name] = ready_at
        self._try(lambda journal: journal.heard(event, name, ready_at))

    def write_what_is_left(self) -> None:
        """Of what went on while the disk could not be written."""
        for saga in [self.sagas[name] for name in self._unwritten if name in self.sagas]:
            if not self._try(lambda journal, saga=saga: journal.write(saga, {})):  # type: ignore[misc]
                return
            self._unwritten.discard(saga.id)

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

    def _failed(self, error: JournalError) -> None:
        self._failing = True
        self._metrics.journal_failed()
        self._log.trouble("The state directory cannot be used", action="journal.failed", reason=error.message)


def _lasting(saga: Saga) -> Saga:
    """What must survive: not the sentence that says what it waits for, nor how far our clock is off."""
    return replace(saga, why="", event=msgspec.structs.replace(saga.event, ahead=0.0))
