"""What a handler is judged by: one table, one row each. docs/conformance.md is this table, and a test compares."""

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Clause:
    id: str
    short: str
    """At the head of its column."""
    says: str


RUNS = Clause("process.runs", "runs", "Its process runs to the end")
ANSWERED = Clause("polling.answered", "asks", "Its polls are answered: address, header and api-version are right")
GOES_ON = Clause("polling.goes-on", "goes on", "It still polls when all is over")
IN_TIME = Clause("noticing.in-time", "notices", "It sees an event about itself in time")
PREPARES = Clause("preparing.prepares", "prepares", "It prepares for an event about itself")
OWN = Clause("approving.own", "own", "It approves no event that is only about others")
KNOWN = Clause("approving.known", "known", "It approves only what was announced")
APPROVES = Clause("approving.approves", "approves", "It approves what is its own to approve")
PREPARED = Clause("approving.prepared", "prepared", "It approves only after its preparation")
NOT_FAILED = Clause("approving.not-failed", "not failed", "It does not approve after a preparation that failed")
ONCE = Clause("recovering.once", "recovers", "It recovers once, when the event is over")

ALL = (RUNS, ANSWERED, GOES_ON, IN_TIME, PREPARES, OWN, KNOWN, APPROVES, PREPARED, NOT_FAILED, ONCE)
BY_ID = MappingProxyType({clause.id: clause for clause in ALL})
