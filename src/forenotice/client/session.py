"""All that a guest says and hears, for both clients alike: flows, which somebody else carries out."""

import os
from collections.abc import Sequence

from forenotice.client import finding, polling
from forenotice.client.changes import Change
from forenotice.client.endpoint import Endpoint
from forenotice.client.events import NOTHING, Document, Event
from forenotice.client.flow import Flow, Stream
from forenotice.client.naming import Naming, relevant
from forenotice.client.pace import Pace
from forenotice.client.polling import News
from forenotice.client.watching import Watch


class Session:
    def __init__(self, endpoint: str | None, name: str | None, pace: Pace, leases: Sequence[str]) -> None:
        self.patient = True
        self.endpoint = Endpoint(finding.given(endpoint, os.environ), lambda: finding.candidates(leases), pace)
        self.naming = Naming(self.endpoint, name, os.environ)
        self._pace = pace

    def me(self) -> Flow[str]:
        return (yield from self.naming.find()).text

    def document(self) -> Flow[Document]:
        known = (yield from self.endpoint.poll()).known
        return known.document if known else NOTHING

    def events(self, mine: bool) -> Flow[tuple[Event, ...]]:
        document = yield from self.document()
        return (yield from relevant(document, self.naming if mine else None))

    def approve(self, *events: Event | str) -> Flow[None]:
        return self.endpoint.approve([event if isinstance(event, str) else event.id for event in events])

    def follow(self) -> Stream[News]:
        return polling.follow(self.endpoint, self._pace, lambda: self.patient, _as_it_is)

    def watch(self, mine: bool) -> Stream[Change]:
        watch = Watch(self.naming if mine else None)
        return polling.follow(self.endpoint, self._pace, lambda: self.patient, watch.tell)


def _as_it_is(news: News) -> Stream[News]:
    yield news
