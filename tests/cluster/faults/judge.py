"""Holds what guests behind edges have seen against the journal, and says in words which promises were broken."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tests.acceptance.checker import check
from tests.cluster.faults.history import Acknowledged, Document, History, Seen

Entry = Mapping[str, Any]
IN_FLIGHT = 20.0
"""Seconds that an approval may be under way: a process that took it and died keeps it from others for ten."""
LEAVES = {"event.started", "event.canceled", "event.completed", "event.failed"}
ENDS = LEAVES - {"event.started"}


def violations(
    history: History, journal: Sequence[Entry], fleet: Mapping[str, Any], *, speed: float, patience: float
) -> list[str]:
    """`patience`: seconds that an operation waits for an edge that has not shown its event."""
    return [
        *falls(history),
        *differences(history),
        *reappearances(history),
        *unfounded_epochs(history),
        *approvals(history, journal),
        *unshown_starts(history, journal, patience),
        *check(journal, fleet, speed=speed),
    ]


# What guests see


def falls(history: History) -> Iterator[str]:
    """Per guest, wherever it asks; and per edge, whoever asks."""
    for vm, all_seen in history.seen.items():
        for before, after in itertools.pairwise(all_seen):
            yield from _fall(f"{vm} at {before.edge} and then at {after.edge}", before.document, after.document)
    for (edge, _), all_seen in _by_edge_and_scope(history).items():
        answers = [(sent, received, each.document) for each in all_seen for sent, received in each.times]
        done = sorted(answers, key=lambda answer: answer[1])
        newest, position = None, 0
        for sent, _, document in sorted(answers, key=lambda answer: answer[0]):
            while position < len(done) and done[position][1] <= sent:
                known = done[position][2]
                newest = known if newest is None or _order(newest) < _order(known) else newest
                position += 1
            if newest is not None:
                yield from _fall(f"guests at {edge}", newest, document)


def _fall(who: str, before: Document, after: Document) -> Iterator[str]:
    if after.epoch < before.epoch:
        yield f"{who}: the epoch went back from {before.tag} to {after.tag}"
    if after.incarnation < before.incarnation:
        yield f"{who}: the incarnation of {after.tag} fell from {before.incarnation} to {after.incarnation}"


def differences(history: History) -> Iterator[str]:
    """Equal incarnations of a scope mean equal bytes, at every edge."""
    known: dict[tuple[str, int], Seen] = {}
    for each in _all(history):
        document = each.document
        other = known.setdefault((document.tag, document.incarnation), each)
        if other.document.body != document.body:
            yield (
                f"incarnation {document.incarnation} of {document.tag} is {other.document.body!r} to {other.vm} at "
                f"{other.edge} and {document.body!r} to {each.vm} at {each.edge}"
            )


def reappearances(history: History) -> Iterator[str]:
    """Of events that were gone: per guest, wherever it asks; and per edge, whoever asks."""
    for vm, all_seen in history.seen.items():
        yield from _reappear(vm, all_seen, history)
    for (edge, _), all_seen in _by_edge_and_scope(history).items():
        yield from _reappear(f"guests at {edge}", all_seen, history)


def _reappear(who: str, all_seen: Sequence[Seen], history: History) -> Iterator[str]:
    by_tag: dict[str, list[Seen]] = defaultdict(list)
    for each in all_seen:
        # A backup brings back what ended after it was made, in an epoch of its own.
        by_tag[each.document.tag if history.restores else ""].append(each)
    for documents in by_tag.values():
        for event in {event for each in documents for event in each.document.events}:
            shown = [times for each in documents if event in each.document.events for times in each.times]
            absent = [times for each in documents if event not in each.document.events for times in each.times]
            first = min(received for _, received in shown)
            gone = min((received for sent, received in absent if sent >= first), default=None)
            if gone is not None and (again := [sent for sent, _ in shown if sent >= gone]):
                yield f"{who}: event {event} was gone at {_text(gone)} and was there again at {_text(min(again))}"


def unfounded_epochs(history: History) -> Iterator[str]:
    """Epochs begin because a backup was restored; each `serve` that notices it may begin one."""
    begun: dict[int, float] = {}
    for each in _all(history):
        epoch, (_, received) = each.document.epoch, each.times[0]
        begun[epoch] = min(received, begun.get(epoch, received))
    for epoch in sorted(begun)[1:]:
        if not any(restore.kept <= begun[epoch] <= restore.at + IN_FLIGHT for restore in history.restores):
            yield f"epoch {epoch} began at {_text(begun[epoch])}, and no backup was restored"


# What guests were told of their approvals


def approvals(history: History, journal: Sequence[Entry]) -> Iterator[str]:
    """Every 200 has its effect once, unless there was nothing left to approve."""
    approved = Counter(entry["event"] for entry in journal if entry["action"] == "event.approved")
    yield from (f"event {event} was approved {count} times" for event, count in approved.items() if count > 1)
    yield from (f"nobody has sent the approval of {event}" for event in approved.keys() - history.sent)
    for each in outstanding(history, journal):
        yield f"the approval of {each.event} by {each.vm} at {each.edge}, 200 at {_text(each.at)}, was lost"


def outstanding(history: History, journal: Iterable[Entry]) -> list[Acknowledged]:
    """What was acknowledged and has had no effect yet."""
    known: set[str] = set()
    approved: set[str] = set()
    left: dict[str, float] = {}
    for entry in journal:
        event, action = entry["event"], entry["action"]
        if action == "event.scheduled":
            known.add(event)
        if action == "event.approved" or (action == "event.scheduled" and entry["data"]["approved_by"] is not None):
            approved.add(event)
        elif action == "event.silence_withdrawn":
            approved.discard(event)
        elif action in LEAVES:
            left.setdefault(event, _seconds(entry))
    return [
        each
        for each in history.acknowledged
        if each.event not in approved
        and left.get(each.event, float("inf")) > each.at + IN_FLIGHT
        and not any(
            restore.kept < each.at < restore.at + (0 if each.event in known else IN_FLIGHT)
            for restore in history.restores
        )
    ]


# What happened to them


def unshown_starts(history: History, journal: Sequence[Entry], patience: float) -> Iterator[str]:
    """Operations that started by expiry although the edge of their host had not shown the event by then."""
    ended = {entry["event"]: _seconds(entry) for entry in journal if entry["action"] in ENDS}
    events: dict[str, dict[str, Entry]] = defaultdict(dict)
    approved: set[str] = set()
    for entry in journal:
        event, operation = entry["event"], entry["operation"]
        match entry["action"]:
            case "event.scheduled":
                events[operation][event] = entry
                if entry["data"]["approved_by"] is not None:
                    approved.add(event)
            case "event.approved":
                approved.add(event)
            case "event.silence_withdrawn":
                approved.discard(event)
            case "operation.started":
                at = _seconds(entry)
                waiting = {each: found for each, found in events[operation].items() if each not in approved}
                due = [datetime.fromisoformat(found["data"]["not_before"]) for found in waiting.values()]
                if not due or at >= max(due).timestamp() + patience:
                    continue
                for event, found in waiting.items():
                    lacking = _lacking(history, entry["host"], event, found, at, ended.get(event, float("inf")))
                    if lacking is not None:
                        yield (
                            f"operation {operation} started at {_text(at)} without the approval of {event}, which the "
                            f"edge of {entry['host']} did not show even at {_text(lacking)}"
                        )


def _lacking(history: History, edge: str, event: str, scheduled: Entry, since: float, until: float) -> float | None:
    """When the edge did not show a live event that it had never shown before."""
    all_seen = [each for each in history.at(edge) if each.vm in scheduled["data"]["resources"]]
    shown = [received for each in all_seen if event in each.document.events for _, received in each.times]
    lacking = [
        received
        for each in all_seen
        if event not in each.document.events
        for sent, received in each.times
        if sent >= since and received < until
    ]
    return min(lacking) if lacking and min(shown, default=float("inf")) > min(lacking) else None


def _all(history: History) -> Iterator[Seen]:
    for all_seen in history.seen.values():
        yield from all_seen


def _by_edge_and_scope(history: History) -> Mapping[tuple[str, str], list[Seen]]:
    found: dict[tuple[str, str], list[Seen]] = defaultdict(list)
    for each in _all(history):
        found[each.edge, each.document.tag.partition(".")[0]].append(each)
    return found


def _order(document: Document) -> tuple[int, int]:
    return document.epoch, document.incarnation


def _seconds(entry: Entry) -> float:
    return datetime.fromisoformat(entry["at"]).timestamp()


def _text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S.%f}"
