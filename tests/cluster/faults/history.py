"""What guests behind edges have seen and been told, kept for the judge."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Document:
    """As an edge has shown it to a guest."""

    tag: str
    incarnation: int
    body: bytes
    events: frozenset[str]

    @property
    def epoch(self) -> int:
        return epoch_of(self.tag)


def epoch_of(tag: str) -> int:
    _, _, epoch = tag.partition(".")
    return int(epoch or "0", 16)


@dataclass(slots=True)
class Seen:
    """One document, as long as a guest saw no other; times are seconds since 1970."""

    vm: str
    edge: str
    document: Document
    times: list[tuple[float, float]]
    """When it asked, and when it was answered."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A 200 to an approval."""

    at: float
    vm: str
    edge: str
    event: str


@dataclass(frozen=True, slots=True)
class Restore:
    """The database was replaced by a backup."""

    kept: float
    """What was acknowledged until then had taken effect before the backup."""
    at: float
    epoch: int
    """The last that guests had seen by then: theirs must be later afterwards."""


@dataclass
class History:
    """Only ever appended to; what a guest has seen, by that guest's thread alone."""

    seen: dict[str, list[Seen]] = field(default_factory=dict)
    """By VM, in order."""
    sent: set[str] = field(default_factory=set)
    """Events whose approval was ever sent."""
    acknowledged: list[Acknowledged] = field(default_factory=list)
    restores: list[Restore] = field(default_factory=list)

    def add(self, vm: str, edge: str, document: Document, sent: float, received: float) -> None:
        all_seen = self.seen.setdefault(vm, [])
        if all_seen and (all_seen[-1].edge, all_seen[-1].document) == (edge, document):
            all_seen[-1].times.append((sent, received))
        else:
            all_seen.append(Seen(vm, edge, document, [(sent, received)]))

    @property
    def epoch(self) -> int:
        """The last that guests have seen."""
        return max((all_seen[-1].document.epoch for all_seen in list(self.seen.values())), default=0)

    def copy(self) -> "History":
        """As it is now; it knows of approvals that are sent later, because a journal may be read later."""
        seen = {
            vm: [Seen(each.vm, each.edge, each.document, list(each.times)) for each in list(all_seen)]
            for vm, all_seen in list(self.seen.items())
        }
        return History(seen, self.sent, list(self.acknowledged), list(self.restores))

    def at(self, edge: str) -> Sequence[Seen]:
        return [each for all_seen in self.seen.values() for each in all_seen if each.edge == edge]
