"""What callers with limited scopes may see: their own part, and nothing that names others."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from forenotice.core.draft import Draft, World
from forenotice.core.explanations import PHRASES, Explanation
from forenotice.core.fleet import Drift, DriftKind
from forenotice.core.journal import Entry
from forenotice.core.operations import Event, Operation
from forenotice.core.roles import TENANT
from forenotice.core.selectors import Selector

FAILED = "the platform could not do it"
"""In place of a driver's reason, which may hold anything, or of why maintenance made way for another scope."""

VISIBLE_FACTS = frozenset(
    {
        "approved_by",
        "asked",
        "fields",
        "kind",
        "late",
        "not_before",
        "policy",
        "resources",
        "results",
        "source",
        "to",
        "type",
    }
)
"""What an entry's data may tell; anything that is added later is not told before it is named here."""

OTHERS = dict.fromkeys(("approval", "earlier-deletion"), "an approval that is not yours") | dict.fromkeys(
    ("host-busy", "rollout"), "the platform"
)
"""How blockers of other scopes are phrased, where the general phrase does not fit."""


def drift(found: Iterable[Drift], seen: Selector | None) -> list[Drift]:
    """That a VM is missing concerns everybody who sees it; other reasons may name others."""
    return [each for each in found if seen is None or each.kind is DriftKind.MISSING]


def limited(world: World, seen: Selector | None) -> World:
    """The same world without what is not seen: what is missing there is as if it did not exist."""
    if seen is None:
        return world
    named = {*world.scopes, *(vm.scope for vm in world.vms.values()), *(each.scope for each in world.events.values())}
    own = {key for key in named if key in seen}
    events = {
        key: event(each)
        for key, each in world.events.items()
        if each.scope in own and not (each.scope in world.former and world.former[each.scope].hides(each.created_at))
    }
    told: dict[str, list[Event]] = {}
    for each in events.values():
        told.setdefault(each.operation, []).append(each)
    return World(
        vms={name: vm for name, vm in world.vms.items() if vm.scope in own},
        scopes={key: scope for key, scope in world.scopes.items() if key in own},
        operations={key: _part(world.operations[key], mine) for key, mine in told.items() if key in world.operations},
        events=events,
    )


def visible(draft: Draft, seen: Selector | None, part: World | None = None) -> Draft:
    """The draft, or a part of it, without what is not seen."""
    if seen is None:
        return draft
    world = limited(part or draft.world, seen)
    return Draft(world, now=draft.now, timing=draft.timing, new_id=draft.new_id, edges=draft.edges)


def event(event: Event) -> Event:
    return replace(event, approved_by=author(event.approved_by)) if event.approved_by else event


def _part(operation: Operation, events: list[Event]) -> Operation:
    mine = {name for event in events for name in event.resources}
    return replace(
        operation,
        vms=tuple(name for name in operation.vms if name in mine),
        done=tuple(name for name in operation.done if name in mine),
        targets={name: host for name, host in operation.targets.items() if name in mine},
        failures={name: FAILED for name in operation.failures if name in mine},
        waiting={},
        by=author(operation.by),
        reason=operation.reason if operation.by.startswith(TENANT) else "",
        rollout=None,
    )


def entry(entry: Entry, seen: Selector | None) -> Entry:
    if seen is None:
        return entry
    own = entry.by.startswith(TENANT)
    return replace(
        entry,
        by=author(entry.by),
        origin=entry.origin if own else "",
        reason=entry.reason if own else "",
        rollout=None,
        data={key: _visible_value(key, value) for key, value in entry.data.items() if key in VISIBLE_FACTS},
    )


def may_ask_for(seen: Selector | None, *, by: str | None = None, rollout: str | None = None) -> bool:
    """What is not shown cannot be guessed by filtering for it either."""
    return seen is None or (author(by or "") == (by or "") and rollout is None)


def explanation(draft: Draft, found: Explanation, seen: Selector | None) -> Explanation:
    """The same blockers; only the caller's own scopes are named, and others are not counted."""
    if seen is None or not found.waiting_for:
        return found
    said: dict[str, None] = {}
    told: dict[object, Mapping[str, object]] = {}
    for number, facts in enumerate(sorted(found.waiting_for, key=lambda each: "until" in each)):
        own = _is_own(draft, facts, seen)
        kept = {key: facts[key] for key in ("kind", "until", "since") if key in facts}
        if own:
            kept |= {key: facts[key] for key in ("scope", "event", "operation", "vm", "resources") if key in facts}
        name = str(facts.get("scope", "")).partition(":")[2]
        kind = str(facts["kind"])
        general, mine = PHRASES.get(kind, ("the platform",) * 2)
        phrase = mine.format(vm=facts.get("vm", ""), name=name) if own else OTHERS.get(kind, general)
        if isinstance(until := facts.get("until"), datetime):
            phrase += f" until {until:%Y-%m-%d %H:%M:%S} UTC"
        said[phrase] = None
        told[number if own else phrase] = kept
    sentences = tuple(f"It waits for {phrase}." for phrase in said)
    return replace(found, sentences=sentences, waiting_for=tuple(told.values()))


def _is_own(draft: Draft, facts: Mapping[str, object], seen: Selector) -> bool:
    scopes = [facts["scope"]] if "scope" in facts else []
    if (event := draft.world.events.get(str(facts.get("event")))) is not None:
        scopes.append(event.scope)
    if "vm" in facts:
        vm = draft.world.vms.get(str(facts["vm"]))
        scopes.append(None if vm is None else vm.scope)
    return bool(scopes) and all(scope in seen for scope in scopes)


def _visible_value(key: str, value: object) -> object:
    match key, value:
        case "approved_by", str():
            return author(value)
        case "results", Mapping():
            return {name: "done" if result == "done" else FAILED for name, result in value.items()}
    return value


def author(by: str) -> str:
    """Guests and tenants by name, everybody else by what they are."""
    return by if by.startswith((TENANT, "vm:")) else by.partition(":")[0]
