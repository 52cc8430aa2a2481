"""From news to changes. What goes wrong is logged, and nothing is taken for gone because of it."""

from forenotice.client.changes import Change, Ledger
from forenotice.client.errors import EndpointError
from forenotice.client.events import Document
from forenotice.client.flow import Stream
from forenotice.client.naming import Naming, relevant
from forenotice.client.polling import News
from forenotice.client.trouble import Trouble


class Watch:
    def __init__(self, naming: Naming | None) -> None:
        """With a naming, what is not about this VM is left out."""
        self._naming = naming
        self._ledger = Ledger()
        self._trouble = Trouble()
        self._seen: Document | None = None

    def tell(self, news: News) -> Stream[Change]:
        if news.error is not None:
            self._trouble.met(news.error)
            return
        if news.document is not None and news.document is not self._seen:
            try:
                events = yield from relevant(news.document, self._naming)
            except EndpointError as error:
                # The next news brings the same document, and another try.
                self._trouble.met(error)
                return
            if self._naming is None or self._naming.known is not None or len(events) == len(news.document.events):
                self._seen = news.document
            # Otherwise the name is a guess that leaves something out: with the next news the endpoint is asked again.
            yield from self._ledger.compare(events)
        self._trouble.over()
