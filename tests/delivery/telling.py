"""A service in whose journal things happen as a test wants it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

from tests.delivery.receiving import DEADLINE, Receiver

from forenotice.core.roles import EVERYTHING
from forenotice.core.timing import Timing
from forenotice.delivery import subscriptions
from forenotice.delivery.worker import Pauses, Worker
from forenotice.publication import NullPublisher
from forenotice.runtime import Runtime
from forenotice.service.calls import SYSTEM
from forenotice.service.service import Service, UnitOfWork
from forenotice.ssrf import EVERYWHERE, Network, OutgoingClient
from forenotice.store.database import Store
from forenotice.views.subscriptions import NewSubscription

SHORT = Pauses(first=timedelta(milliseconds=2), longest=timedelta(milliseconds=20))


class Teller:
    def __init__(self, store: Store, *, private: Sequence[Network] = EVERYWHERE) -> None:
        self.service = Service(
            store=store,
            runtime=Runtime(),
            timing=Timing(),
            publisher=NullPublisher(),
            outgoing=OutgoingClient(private=private),
        )

    def happen(self, *named: tuple[str, dict[str, Any]]) -> None:
        def work(unit: UnitOfWork) -> None:
            draft = unit.draft(unit.transaction.worlds.load())
            for action, about in named:
                draft.note(action, **about)
            unit.keep(draft)

        self.service.transact(work)

    def approve(self, *events: str) -> None:
        self.happen(*(("event.approved", {"event": event, "scope": "group:web"}) for event in events))

    def subscribe(self, receiver: Receiver, name: str = "pager", **more: Any) -> Any:
        made = subscriptions.create(self.service, SYSTEM, NewSubscription(name=name, url=receiver.url, **more))
        receiver.secret = str(made.secret)
        return made

    def shown(self, name: str = "pager") -> Any:
        return subscriptions.show(self.service, name, EVERYTHING)

    def pending(self, name: str = "pager") -> list[Any]:
        items: list[Any] = subscriptions.deliveries(self.service, name).items
        return items

    def until(self, **wanted: object) -> Any:
        """The subscription, once it is so."""
        follower = self.service.follow_growth()
        deadline = monotonic() + DEADLINE
        while any(getattr((found := self.shown()), name) != value for name, value in wanted.items()):
            assert monotonic() < deadline, found
            follower.wait(0.005)
        return found

    def positions(self, action: str = "", **about: str) -> list[int]:
        """Of the entries that are so; an action may be the beginning of one."""
        with self.service.store.read() as reader:
            entries = reader.journal.page(limit=2000)
        return [
            position
            for position, entry in entries
            if entry.action.startswith(action) and all(getattr(entry, name) == value for name, value in about.items())
        ]

    @contextmanager
    def delivering(
        self, pauses: Pauses = SHORT, *, private: Sequence[Network] = EVERYWHERE, seconds: float = 2
    ) -> Iterator[Worker]:
        worker = Worker(self.service, OutgoingClient(private=private, seconds=seconds), pauses=pauses)
        worker.start()
        try:
            yield worker
        finally:
            worker.stop()
