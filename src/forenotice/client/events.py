"""What an endpoint announces: a document and its events, as typed values."""

from datetime import datetime, timedelta

import msgspec

from forenotice.client import moments
from forenotice.clock import MachineClock


class Event(msgspec.Struct, frozen=True, kw_only=True):
    id: str = msgspec.field(name="EventId")
    status: str = msgspec.field(name="EventStatus")
    type: str = msgspec.field(name="EventType")
    resource_type: str = msgspec.field(name="ResourceType", default="VirtualMachine")
    resources: tuple[str, ...] = msgspec.field(name="Resources", default=())
    not_before_text: str = msgspec.field(name="NotBefore", default="")
    description: str | None = msgspec.field(name="Description", default=None)
    """This and what follows: None where the endpoint's version does not tell it."""
    source: str | None = msgspec.field(name="EventSource", default=None)
    duration_seconds: int | None = msgspec.field(name="DurationInSeconds", default=None)
    """-1: the endpoint does not know."""
    ahead: float = msgspec.field(name="ClockAhead", default=0.0)
    """Seconds by which the endpoint's clock is ahead of this machine's; no endpoint sends it."""

    @property
    def started(self) -> bool:
        return self.status == "Started"

    @property
    def deadline(self) -> datetime | None:
        """NotBefore, by the endpoint's clock; None once it has started, or when it cannot be read."""
        return None if self.started else moments.read(self.not_before_text)

    @property
    def seconds_left(self) -> float:
        """Until the deadline, however wrong this machine's clock is; none where there is no deadline."""
        deadline = self.deadline
        if deadline is None:
            return 0.0
        return max(0.0, (deadline - MachineClock().now() - timedelta(seconds=self.ahead)).total_seconds())

    def as_listed(self) -> dict[str, object]:
        """In the words of the protocol, with the keys that the endpoint's version has."""
        sent: dict[str, object] = msgspec.to_builtins(self)
        return {key: value for key, value in sent.items() if key != "ClockAhead" and value is not None}

    def names(self, me: str) -> bool:
        """Whether it is about this VM. Names are compared as Azure does, and 2017-03-01 put `_` before them."""
        return any(same_name(name, me) for name in self.resources)


def same_name(one: str, other: str) -> bool:
    return one.removeprefix("_").lower() == other.removeprefix("_").lower()


class Document(msgspec.Struct, frozen=True, kw_only=True):
    incarnation: int = msgspec.field(name="DocumentIncarnation")
    events: tuple[Event, ...] = msgspec.field(name="Events", default=())


NOTHING = Document(incarnation=0)
