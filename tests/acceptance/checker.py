"""Reads a journal from its beginning and says in words which promises were broken.

It knows the fleet document as it was applied, and the protocol; it shares no code with what it judges.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from zoneinfo import ZoneInfo

NOTICE = {
    "restart": timedelta(minutes=15),
    "redeploy": timedelta(minutes=10),
    "eviction": timedelta(seconds=30),
    "deletion": timedelta(minutes=5),
    "host-update": timedelta(minutes=15),
    "host-reboot": timedelta(minutes=15),
    "live-migration": timedelta(minutes=15),
    "degraded-hardware": timedelta(minutes=10),
    "hardware-failure": timedelta(0),
}
PLANNED = {"host-update", "host-reboot", "live-migration", "degraded-hardware"}
SHOWN = timedelta(seconds=2)
"""How long Started is shown at least, whatever the speed."""
FOLLOWS = {
    "Started": {"Scheduled"},
    "Completed": {"Started"},
    "Failed": {"Started"},
    "Canceled": {"Scheduled"},
}
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
Entry = Mapping[str, Any]


@dataclass
class Operation:
    kind: str
    host: str
    vms: set[str]
    rollout: str | None
    status: str = "Scheduled"
    started_at: datetime | None = None

    @property
    def live(self) -> bool:
        return self.status in ("Scheduled", "Started")


@dataclass
class Event:
    operation: str
    scope: str
    resources: set[str]
    update_domain: int
    not_before: datetime
    approved: bool
    status: str = "Scheduled"

    @property
    def live(self) -> bool:
        return self.status in ("Scheduled", "Started")


@dataclass
class Rollout:
    hosts: str
    batch: int
    windows: list[str]
    paused: bool = False
    over: bool = False
    seen_to: set[str] = field(default_factory=set)
    """Hosts that are done, have failed, or were passed over for a reason."""
    done: set[str] = field(default_factory=set)


class Checker:
    def __init__(self, fleet: Mapping[str, Any], speed: float) -> None:
        self.violations: list[str] = []
        self._speed = speed
        self._hosts = set(fleet["hosts"])
        self._on = {name: vm["host"] for name, vm in fleet["vms"].items()}
        self._domain = {name: vm.get("update_domain", 0) for name, vm in fleet["vms"].items()}
        self._scope = {
            name: f"group:{vm['group']}" if vm.get("group") else f"vm:{name}" for name, vm in fleet["vms"].items()
        }
        self._policies = {f"group:{name}": group.get("policy") or {} for name, group in fleet["groups"].items()}
        self._policies |= {f"vm:{name}": vm["policy"] for name, vm in fleet["vms"].items() if vm.get("policy")}
        self._operations: dict[str, Operation] = {}
        self._planned: set[str] = set()
        """Operations that guests are not told of yet."""
        self._events: dict[str, Event] = {}
        self._rollouts: dict[str, Rollout] = {}
        self._seq, self._at = 0, datetime.min.replace(tzinfo=UTC)
        self._place = ""

    def read(self, entry: Entry) -> None:
        at = datetime.fromisoformat(entry["at"])
        self._place = f"entry {entry['seq']} ({entry['action']})"
        if entry["seq"] <= self._seq or at < self._at:
            self._complain("comes before the one before it")
        self._seq, self._at = entry["seq"], at
        noun, _, verb = entry["action"].partition(".")
        reader = getattr(self, f"_{noun}_{verb}", None)
        if reader is not None:
            reader(entry)

    def _complain(self, what: str) -> None:
        self.violations.append(f"{self._place}: {what}")

    # The fleet

    def _host_added(self, entry: Entry) -> None:
        self._hosts.add(entry["host"])

    def _host_removed(self, entry: Entry) -> None:
        self._hosts.discard(entry["host"])

    def _vm_added(self, entry: Entry) -> None:
        if entry["vm"] not in self._scope:
            self._complain(f"{entry['vm']} is not in the fleet document: what befalls it cannot be judged")

    def _vm_changed(self, entry: Entry) -> None:
        self._complain(f"{entry['vm']} is no longer as the fleet document has it: it cannot be judged")

    def _vm_removed(self, entry: Entry) -> None:
        for known in (self._on, self._domain, self._scope):
            known.pop(entry["vm"], None)

    def _vm_moved(self, entry: Entry) -> None:
        name, target = entry["vm"], entry["host"]
        if self._on[name] != entry["data"]["source"]:
            self._complain(f"{name} moved from {entry['data']['source']} but was on {self._on[name]}")
        self._on[name] = target
        for other, host in self._on.items():
            same_scope = host == target and self._scope[other] == self._scope[name]
            if same_scope and self._domain[other] != self._domain[name]:
                self._complain(f"{name} and {other}, of two update domains of {self._scope[name]}, share {target}")

    def _scope_policy_changed(self, entry: Entry) -> None:
        self._policies[entry["scope"]] = entry["data"]["policy"]

    # Rollouts

    def _rollout_started(self, entry: Entry) -> None:
        data = entry["data"]
        self._rollouts[entry["rollout"]] = Rollout(data["hosts"], data["batch"], data["windows"])

    def _rollout_paused(self, entry: Entry) -> None:
        self._rollouts[entry["rollout"]].paused = True

    def _rollout_resumed(self, entry: Entry) -> None:
        self._rollouts[entry["rollout"]].paused = False

    def _rollout_canceling(self, entry: Entry) -> None:
        self._rollouts[entry["rollout"]].over = True

    def _rollout_host_skipped(self, entry: Entry) -> None:
        self._rollouts[entry["rollout"]].seen_to.add(entry["host"])

    def _rollout_completed(self, entry: Entry) -> None:
        rollout = self._rollouts[entry["rollout"]]
        if live := [each.host for each in self._operations_of(entry["rollout"])]:
            self._complain(f"the rollout is completed while {', '.join(sorted(live))} are under way")
        wanted = {host for host in self._hosts if _is_chosen(host, rollout.hosts)}
        if left := wanted - rollout.seen_to:
            self._complain(f"the rollout is completed and {', '.join(sorted(left))} were left out")
        rollout.over = True

    def _operations_of(self, rollout: str) -> list[Operation]:
        return [each for each in self._operations.values() if each.rollout == rollout and each.live]

    # Operations

    def _operation_planned(self, entry: Entry) -> None:
        if entry["operation"] in self._operations:
            self._complain(f"the operation {entry['operation']} is announced already")
        self._planned.add(entry["operation"])

    def _operation_scheduled(self, entry: Entry) -> None:
        if entry["operation"] in self._operations:
            self._complain(f"the operation id {entry['operation']} was used before")
        self._planned.discard(entry["operation"])
        data = entry["data"]
        made = Operation(data["kind"], entry["host"], set(data["vms"]), entry["rollout"])
        self._operations[entry["operation"]] = made
        for name in sorted(made.vms):
            if self._on.get(name) != made.host:
                self._complain(f"{name} is on {self._on.get(name)}, not on {made.host}")
        if made.rollout is not None:
            self._announced_by_rollout(made, made.rollout)

    def _announced_by_rollout(self, made: Operation, rollout_id: str) -> None:
        rollout = self._rollouts[rollout_id]
        if rollout.paused or rollout.over:
            self._complain(f"{made.host} is announced by a rollout that is {'over' if rollout.over else 'paused'}")
        if not _is_chosen(made.host, rollout.hosts):
            self._complain(f"{made.host} is not one of {rollout.hosts}")
        live = self._operations_of(rollout_id)
        if len(live) > rollout.batch:
            self._complain(f"{len(live)} hosts of the rollout are under way, of which it takes {rollout.batch} at once")
        if made.host in rollout.done or any(other is not made and other.host == made.host for other in live):
            self._complain(f"{made.host} is announced a second time by its rollout")

    def _operation_started(self, entry: Entry) -> None:
        operation = self._operations[entry["operation"]]
        self._follow(operation, "Started", entry["operation"])
        operation.started_at = self._at
        for other in self._operations.values():
            if other is not operation and other.status == "Started" and (both := other.vms & operation.vms):
                self._complain(f"{', '.join(sorted(both))} are acted on by another operation of {other.host}")
        events = [each for each in self._events.values() if each.operation == entry["operation"] and each.live]
        if operation.kind != "hardware-failure":
            for event in events:
                if not event.approved and self._at < event.not_before:
                    self._complain(f"it starts at {self._at} without approval by {event.scope}, before NotBefore")
        rollout = self._rollouts.get(operation.rollout or "")
        if rollout is not None and rollout.paused:
            self._complain(f"{operation.host} starts though its rollout is paused")
        self._require_windows(operation, events, self._at)

    def _require_windows(self, operation: Operation, events: Iterable[Event], at: datetime) -> None:
        if operation.kind not in PLANNED:
            return
        rollout = self._rollouts.get(operation.rollout or "")
        asked = {event.scope: self._policies.get(event.scope, {}).get("windows") for event in events}
        for who, windows in {**asked, "the rollout": rollout.windows if rollout else None}.items():
            if windows and not any(_is_open(window, at) for window in windows):
                self._complain(f"{at} is outside the windows of {who}: {', '.join(windows)}")

    def _operation_completed(self, entry: Entry) -> None:
        self._end_operation(entry, "Completed")

    def _operation_failed(self, entry: Entry) -> None:
        self._end_operation(entry, "Failed")

    def _operation_canceled(self, entry: Entry) -> None:
        if entry["operation"] in self._planned:
            self._planned.remove(entry["operation"])
        else:
            self._end_operation(entry, "Canceled")

    def _end_operation(self, entry: Entry, status: str) -> None:
        operation = self._operations[entry["operation"]]
        self._follow(operation, status, entry["operation"])
        if status == "Completed" and operation.started_at and self._at - operation.started_at < SHOWN:
            self._complain(f"Started was shown for {self._at - operation.started_at} only")
        if rollout := self._rollouts.get(operation.rollout or ""):
            rollout.seen_to.add(operation.host)
            if status == "Completed":
                rollout.done.add(operation.host)

    def _follow(self, what: Operation | Event, status: str, name: str) -> None:
        if what.status not in FOLLOWS[status]:
            self._complain(f"{name} was {what.status} and is {status}")
        what.status = status

    # Events

    def _event_scheduled(self, entry: Entry) -> None:
        if entry["event"] in self._events:
            self._complain(f"the EventId {entry['event']} was used before")
        data, scope = entry["data"], entry["scope"]
        operation = self._operations[entry["operation"]]
        resources = set(data["resources"])
        domains = {self._domain[name] for name in resources}
        if {self._scope[name] for name in resources} != {scope} or len(domains) != 1 or not resources <= operation.vms:
            self._complain(f"{', '.join(sorted(resources))} are not of one update domain of {scope} on one host")
        made = Event(
            operation=entry["operation"],
            scope=scope,
            resources=resources,
            update_domain=min(domains),
            not_before=datetime.fromisoformat(data["not_before"]),
            approved=data["approved_by"] is not None,
        )
        notice = NOTICE[operation.kind] / self._speed
        if made.not_before - self._at < notice:
            self._complain(f"the notice is {made.not_before - self._at}, and {notice} is the least")
        self._require_windows(operation, [made], made.not_before)
        if operation.rollout is not None:
            for other in self._planned_in(scope, "Scheduled", "Started"):
                if other.update_domain != made.update_domain:
                    self._complain(
                        f"update domain {made.update_domain} of {scope} is announced by a rollout while "
                        f"{other.update_domain} is {other.status}"
                    )
        self._events[entry["event"]] = made

    def _planned_in(self, scope: str, *statuses: str) -> Iterable[Event]:
        for event in self._events.values():
            kind = self._operations[event.operation].kind
            # Degraded hardware is announced days ahead.
            far = kind == "degraded-hardware" and event.status == "Scheduled"
            if event.scope == scope and event.status in statuses and kind in PLANNED and not far:
                yield event

    def _event_approved(self, entry: Entry) -> None:
        self._events[entry["event"]].approved = True

    def _event_silence_withdrawn(self, entry: Entry) -> None:
        self._events[entry["event"]].approved = False

    def _event_postponed(self, entry: Entry) -> None:
        event, later = self._events[entry["event"]], datetime.fromisoformat(entry["data"]["to"])
        if later < event.not_before:
            self._complain(f"NotBefore of {entry['event']} came nearer")
        event.not_before = later

    def _event_resource_dropped(self, entry: Entry) -> None:
        self._events[entry["event"]].resources.discard(entry["vm"])
        self._operations[entry["operation"]].vms.discard(entry["vm"])

    def _event_started(self, entry: Entry) -> None:
        event, operation = self._events[entry["event"]], self._operations[entry["operation"]]
        self._follow(event, "Started", entry["event"])
        if operation.status != "Started":
            self._complain(f"its operation is {operation.status}")
        if operation.kind in PLANNED:
            self._require_one_domain(event)
            self._require_budget(event.scope)

    def _require_one_domain(self, event: Event) -> None:
        for other in self._planned_in(event.scope, "Started"):
            if other.update_domain != event.update_domain:
                self._complain(
                    f"update domains {other.update_domain} and {event.update_domain} of {event.scope} are down together"
                )

    def _require_budget(self, scope: str) -> None:
        started = [each for each in self._events.values() if each.scope == scope and each.status == "Started"]
        out = {name for each in started for name in each.resources}
        policy, members = self._policies.get(scope, {}), sum(each == scope for each in self._scope.values())
        most, least = policy.get("max_unavailable"), policy.get("min_available")
        if most is not None:
            percent = isinstance(most, str) and most.endswith("%")
            allowed = members * int(most[:-1]) // 100 if percent else int(most)
            if len(out) > allowed:
                self._complain(f"{len(out)} of {members} VMs of {scope} are down, and max_unavailable is {most}")
        if least is not None and members - len(out) < least:
            self._complain(f"{members - len(out)} of {members} VMs of {scope} are left, and min_available is {least}")

    def _event_completed(self, entry: Entry) -> None:
        self._follow(self._events[entry["event"]], "Completed", entry["event"])

    def _event_failed(self, entry: Entry) -> None:
        self._follow(self._events[entry["event"]], "Failed", entry["event"])

    def _event_canceled(self, entry: Entry) -> None:
        event = self._events[entry["event"]]
        self._follow(event, "Canceled", entry["event"])
        # The VM that it named has left the host: the operation goes on without it.
        self._operations[entry["operation"]].vms -= event.resources


def check(journal: Iterable[Entry], fleet: Mapping[str, Any], *, speed: float = 1.0) -> list[str]:
    """Every violation, in words; nothing: all was as promised."""
    checker = Checker(fleet, speed)
    for entry in journal:
        checker.read(entry)
    return checker.violations


def _is_chosen(host: str, selector: str) -> bool:
    parts = [part.strip() for part in selector.split(",") if part.strip()]
    wanted = [part for part in parts if not part.startswith("!")] or ["*"]
    unwanted = [part[1:] for part in parts if part.startswith("!")]
    return any(fnmatchcase(host, part) for part in wanted) and not any(fnmatchcase(host, part) for part in unwanted)


def _is_open(window: str, at: datetime) -> bool:
    """By the clock on a wall of that place."""
    days, hours, zone = window.split()
    wall = at.astimezone(ZoneInfo(zone))
    opens, closes = (int(text[:2]) * 60 + int(text[3:]) for text in hours.split("-"))
    if closes <= opens:
        closes += 24 * 60
    return any(
        opens <= wall.hour * 60 + wall.minute + days_ago * 24 * 60 < closes
        and _is_day((wall.weekday() - days_ago) % 7, days)
        for days_ago in (0, 1)
    )


def _is_day(day: int, days: str) -> bool:
    if days == "daily":
        return True
    for part in days.split(","):
        first, _, last = part.partition("-")
        start, end = DAYS.index(first), DAYS.index(last or first)
        if (day - start) % 7 <= (end - start) % 7:
            return True
    return False


if __name__ == "__main__":
    # python -m tests.acceptance.checker FLEET.json JOURNAL.jsonl SPEED
    with open(sys.argv[1]) as document, open(sys.argv[2]) as lines:
        found = check(map(json.loads, lines), json.load(document), speed=float(sys.argv[3]))
    print("\n".join(found) or "all was as promised")
    sys.exit(bool(found))
