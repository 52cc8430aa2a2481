"""How often a guest asks, how long it waits, and how it slows down when something is wrong."""

from dataclasses import dataclass

from forenotice.client.errors import EndpointError
from forenotice.core import backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds, all of them."""

    interval: float = 1.0
    """From one poll to the next."""
    wait: int = 10
    """How long the server may hold a poll; whole ones (RFC 7240). Any longer, a connection that died unnoticed would
    hide a Preempt."""
    at_once: float = 0.9
    """A held poll that is answered earlier than this, with nothing new, was not held."""
    probe: float = 300.0
    """Until a server that did not hold polls is asked to once more."""
    first_timeout: float = 130.0
    """Until there was a document: the real service may take two minutes over its first answer."""
    timeout: float = 10.0
    """Afterwards, beside the time for which a poll may be held; doubles with every timeout."""
    connect_timeout: float = 5.0
    first_pause: float = 1.0
    """After a failure; doubles with each that follows."""
    longest_pause: float = 10.0
    """Preempt gives 30 seconds in all."""
    longest_retry_after: float = 120.0
    behind: float = 30.0
    """For which nothing but older documents is no news. A server behind a balancer has heard the latest much sooner;
    one whose database was restored unnoticed never will."""

    def after(self, failures: int, error: EndpointError) -> float:
        pause = backoff.pause(failures, self.first_pause, self.longest_pause)
        return max(pause, min(error.retry_after, self.longest_retry_after))

    def patience(self, timeouts: int) -> float:
        """For an answer, after so many in a row that did not come in time."""
        return backoff.pause(timeouts + 1, self.timeout, self.first_timeout)


USUAL = Pace()
