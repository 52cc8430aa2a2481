"""What all other events mean for the handlers of one: an index, so that hundreds of events cost little."""

from collections import defaultdict
from collections.abc import Iterable

from forenotice.agent.rules.handling import Phase
from forenotice.agent.rules.saga import Progress, Saga

_Index = defaultdict[str, dict[str, Saga]]
"""Sagas by handler and id."""


class Others:
    def __init__(self, known: Iterable[Saga]) -> None:
        self._running, self._preparing, self._holding, self._left = (_Index(dict) for _ in range(4))
        for saga in known:
            self._add(saga)

    def update(self, saga: Saga) -> None:
        """It is no longer as it was."""
        for index in (self._running, self._preparing, self._holding, self._left):
            for handler in [handler for handler, sagas in index.items() if sagas.pop(saga.id, None) and not sagas]:
                del index[handler]
        self._add(saga)

    def _add(self, saga: Saga) -> None:
        for step in saga.steps:
            if step.phase is Phase.RECOVER and step.progress is Progress.PASSED_ON:
                self._left[step.handler][saga.id] = saga
            if saga.live and step.progress is Progress.RUNNING:
                self._running[step.handler][saga.id] = saga
                if step.phase is Phase.PREPARE:
                    self._preparing[step.handler][saga.id] = saga
            if step.phase is Phase.PREPARE and saga.live and not saga.state.returning:
                self._holding[step.handler][saga.id] = saga

    def busy(self, saga: Saga) -> frozenset[str]:
        """Handlers that are at work for another event."""
        return _elsewhere(self._running, saga)

    def held(self, saga: Saga) -> frozenset[str]:
        """Handlers whose preparation another event still needs."""
        return _elsewhere(self._holding, saga)

    def less_urgent(self, saga: Saga) -> frozenset[str]:
        """Handlers that prepare for an event which comes later than this one."""
        deadline = saga.event.deadline
        if deadline is None:
            return frozenset()
        return frozenset(
            handler
            for handler, sagas in self._preparing.items()
            if any(other.id != saga.id and (other.event.deadline or deadline) > deadline for other in sagas.values())
        )

    def owed(self, saga: Saga) -> frozenset[str]:
        """Handlers that must recover from another event, which really happened and left that to this one."""
        return frozenset(
            handler
            for handler, sagas in self._left.items()
            if any(other.id != saga.id and other.left_since(saga, handler) for other in sagas.values())
        )


def _elsewhere(index: _Index, saga: Saga) -> frozenset[str]:
    return frozenset(handler for handler, sagas in index.items() if len(sagas) > (saga.id in sagas))
