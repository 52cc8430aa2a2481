"""How often a guest polls, how long it waits, and how it slows down after failures."""

from dataclasses import dataclass

from forenotice.client.errors import EndpointError
from forenotice.core import backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds, all of them."""

    interval: float = 1.0
    """From one poll to the next."""
    wait: int = 10
    """How long a long poll may last; whole seconds (RFC 7240). Any longer, a connection that died unnoticed would hide
    a Preempt."""
    at_once: float = 0.9
    """A server that responds to a long poll earlier than this, with nothing new, does not support it."""
    probe: float = 300.0
    """Until long polling, or the newest api-version, is tried again at a server without support for it."""
    first_timeout: float = 130.0
    """Until there was a document: the real service may take two minutes for its first response."""
    timeout: float = 10.0
    """Afterwards, in addition to `wait`; doubles with every timeout."""
    connect_timeout: float = 5.0
    first_pause: float = 1.0
    """After a failure; doubles with each that follows."""
    longest_pause: float = 10.0
    """Preempt gives 30 seconds in all."""
    longest_retry_after: float = 120.0
    behind: float = 30.0
    """For which older documents are ignored. A server behind a load balancer catches up much sooner; one whose database
    was restored unnoticed never does."""

    def after(self, failures: int, error: EndpointError) -> float:
        pause = backoff.pause(failures, self.first_pause, self.longest_pause)
        return max(pause, min(error.retry_after, self.longest_retry_after))

    def patience(self, timeouts: int) -> float:
        """The timeout of a response, after so many timeouts in a row."""
        return backoff.pause(timeouts + 1, self.timeout, self.first_timeout)


USUAL = Pace()
