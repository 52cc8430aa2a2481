"""What the endpoint lists, and whether it is certain what it does not."""

from collections.abc import Collection, Mapping

from forenotice.client import News
from forenotice.client.events import Document, Event

NOBODY: Mapping[str, Event] = {}


class Listing:
    """Belongs to the loop's thread.

    What one document lacks, such as that of a server that has just been started, may be back in the next: an event is
    gone when two polls in a row did not show it.
    """

    def __init__(self) -> None:
        self.document: Document | None = None
        self.asked_at: float | None = None
        """When the endpoint was asked for it, or whether it still holds, by the monotonic clock."""
        self._events = NOBODY
        self._before: Collection[str] | None = None
        """What the poll before showed; None: nothing that this one would confirm."""

    def heard(self, news: News) -> bool:
        """Whether it says anything new."""
        if news.error is None:
            self.asked_at = news.asked_at
        if not news.shown or news.document is None:
            return False
        last, self.document = self.document, news.document
        was_certain, before = self._before, self._events
        # Whoever counts from the beginning again has begun again, and may not know everything yet.
        anew = last is None or news.document.incarnation < last.incarnation
        self._before = None if anew else before.keys()
        if news.document is not last:
            self._events = {event.id.upper(): event for event in reversed(news.document.events)}
        return self._events is not before or self._before != was_certain

    def find(self, event_id: str) -> Event | None:
        return self._events.get(event_id)

    def knows(self, event_id: str) -> bool:
        """Whether it is certain that it is listed, or that it is not."""
        return event_id in self._events or (self._before is not None and event_id not in self._before)
