"""What happened, in a sentence for each kind of entry that the journal has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forenotice.core import fleet, rollout_progress
from forenotice.portal import renderer, words

Entry = Mapping[str, Any]
"""As the service shows it."""
Sentence = Callable[[Entry], str]

NOUNS: Mapping[str, str] = {
    "event": "Events",
    "operation": "Operations",
    "driver": "The driver",
    "rollout": "Rollouts",
    "vm": "VMs",
    "host": "Hosts",
    "group": "Groups",
    "scope": "Policies and listening",
    "command": "Commands without effect",
    "subscription": "Subscriptions",
    "token": "Tokens",
    "history": "The history itself",
    "database": "The database",
    "clock": "The clock",
}
"""How kinds of entries are called together, in the order in which people look for them."""


@dataclass(frozen=True, slots=True)
class Words:
    title: str
    """As the filter calls it."""
    sentence: Sentence


def sentence(entry: Entry) -> str:
    """Times and ids stand in it as in the service's own sentences."""
    return WORDS[entry["action"]].sentence(entry)


def kinds() -> dict[str, dict[str, str]]:
    """Titles by action, by noun; for a choice."""
    found: dict[str, dict[str, str]] = {noun: {} for noun in NOUNS}
    for action, known in WORDS.items():
        found[action.partition(".")[0]][action] = known.title
    return found


def _data(entry: Entry, name: str, otherwise: str = "") -> str:
    value = entry["data"].get(name)
    return otherwise if value is None or value == "" else str(value)


def _time(entry: Entry, name: str) -> str:
    value = entry["data"].get(name)
    return renderer.utc(value) if value else "a moment that is not told"


def _failures(entry: Entry, name: str) -> str:
    return words.failed(entry["data"].get(name) or {})


def _host(entry: Entry) -> str:
    return entry["host"] or "its host"


def _vm(entry: Entry) -> str:
    return f"VM {entry['vm']}" if entry["vm"] else "A VM"


def _named(entry: Entry) -> str:
    return f"{entry['action'].partition('.')[0]} {_data(entry, 'name')}".strip()


def _changed_fields(entry: Entry) -> str:
    fields = [str(field).replace("_", " ") for field in entry["data"].get("fields") or ()]
    return f": {fleet.names(fields)}" if fields else ""


def _plain(text: str) -> Sentence:
    return lambda _: text


def _of(text: str) -> Sentence:
    """With what the entry names."""

    def say(entry: Entry) -> str:
        return text.format(
            host=_host(entry),
            vm=_vm(entry),
            scope=words.scope_of(entry["scope"]),
            group=(entry["scope"] or "").partition(":")[2],
            named=_named(entry),
            kind=words.kind_of(entry["data"].get("kind")),
        )

    return say


def _unchanged(entry: Entry) -> str:
    asked = _data(entry, "asked")
    return f"A command changed nothing, because it was so already: it asked for {words.ASKED.get(asked, 'the same')}."


def _driver_failed(entry: Entry) -> str:
    done = entry["data"].get("done")
    also = f"; it has finished with {words.several(done)}" if done else ""
    return f"The driver failed for {_failures(entry, 'failures')}, try {_data(entry, 'attempt', '1')}{also}."


def _driver_finished(entry: Entry) -> str:
    return f"The driver has finished with {words.several(entry['data'].get('done') or ())}."


def _approved(entry: Entry) -> str:
    late = ", after NotBefore" if entry["data"].get("late") else ""
    return f"The event was approved {words.approved_by(entry['data'].get('approved_by'))}{late}."


def _event_scheduled(entry: Entry) -> str:
    names = words.several(entry["data"].get("resources") or ())
    by = entry["data"].get("approved_by")
    approved = f" It was approved at once {words.approved_by(by)}." if by else ""
    what = _data(entry, "type", "Maintenance")
    return f"{what} of {names} was announced, not before {_time(entry, 'not_before')}.{approved}"


def _event_canceled(entry: Entry) -> str:
    why = f", because {entry['vm']} has left its host" if entry["vm"] else ""
    return f"The event was cancelled{why}."


def _failed(noun: str) -> Sentence:
    return lambda entry: f"The {noun} has ended without success: {_failures(entry, 'results')}."


def _operation_scheduled(entry: Entry) -> str:
    kind = words.kind_of(entry["data"].get("kind"))
    why = f" of rollout {entry['rollout']}" if entry["rollout"] else ""
    return (
        f"An operation{why} was scheduled: {kind} of {words.several(entry['data'].get('vms') or ())} on {_host(entry)}."
    )


def _operation_planned(entry: Entry) -> str:
    kind, vms = words.kind_of(entry["data"].get("kind")), words.several(entry["data"].get("vms") or ())
    return (
        f"An operation was planned: {kind} of {vms} on {_host(entry)}, not before {_time(entry, 'not_before')}; "
        f"guests are told at {_time(entry, 'announce_at')}."
    )


def _operation_started(entry: Entry) -> str:
    targets: Mapping[str, str] = entry["data"].get("targets") or {}
    to = words.several(f"{vm} to {host}" for vm, host in targets.items()) if targets else ""
    return f"The operation started on {_host(entry)}{f': {to}' if to else ''}."


def _waits(entry: Entry) -> str:
    because = [words.BLOCKERS.get(str(kind), str(kind)) for kind in entry["data"].get("because") or ()]
    return f"The operation could not start yet: it waits for {fleet.names(dict.fromkeys(because) or ['something'])}."


def _rollout_started(entry: Entry) -> str:
    stops = entry["data"].get("stops", 0)
    hosts = "1 host" if stops == 1 else f"{stops} hosts"
    waves = entry["data"].get("waves", 0)
    kind = words.kind_of(entry["data"].get("kind"))
    return f"A rollout began: {kind} of {hosts}, in {'1 wave' if waves == 1 else f'{waves} waves'}."


def _rollout_paused(entry: Entry) -> str:
    """Who did it, and their reason, stand beside it."""
    why = _data(entry, "why")
    return f"The rollout was paused{f': {why}' if why and not why.startswith(rollout_progress.PAUSED_BY) else ''}."


def _gate(color: str) -> Sentence:
    def say(entry: Entry) -> str:
        said = _data(entry, "status")
        return f"The gate before wave {_data(entry, 'wave')} was {color}{f': {said}' if said else ''}."

    return say


def _policy_changed(entry: Entry) -> str:
    policy: Mapping[str, Any] = entry["data"].get("policy") or {}
    said = [
        form.format("; ".join(policy[name]) if isinstance(policy[name], list) else policy[name])
        for name, form in words.POLICY.items()
        if policy.get(name) not in (None, False, [])
    ]
    now = f": {', '.join(said)}" if said else ""
    return f"The policy of {words.scope_of(entry['scope'])} was changed{now}."


def _with(text: str, name: str) -> Sentence:
    """With one fact after it, where it is known."""

    def say(entry: Entry) -> str:
        fact = _data(entry, name)
        return f"{_of(text)(entry)}{f': {fact}' if fact else ''}."

    return say


def _tested(entry: Entry) -> str:
    if entry["data"].get("taken"):
        return f"The {_named(entry)} was tested: its receiver took the message."
    return f"The {_named(entry)} was tested, without success: {_data(entry, 'error', 'the receiver did not take it')}."


def _pruned(entry: Entry) -> str:
    count = entry["data"].get("entries", 0)
    return f"History from before {_time(entry, 'before')} was removed: {count} entries."


def _vm_moved(entry: Entry) -> str:
    source = _data(entry, "source")
    return f"{_vm(entry)} has moved{f' from {source}' if source else ''} to {_host(entry)}."


WORDS: Mapping[str, Words] = {
    "event.scheduled": Words("Announced", _event_scheduled),
    "event.approved": Words("Approved", _approved),
    "event.silence_withdrawn": Words(
        "Approval by silence withdrawn",
        _of("Somebody of {scope} listens now: its silence no longer counts as approval of the event."),
    ),
    "event.postponed": Words("Postponed", lambda entry: f"NotBefore was moved to {_time(entry, 'to')}."),
    "event.resource_dropped": Words(
        "A VM has left it", _of("{vm} has left its host: the event does not concern it any more.")
    ),
    "event.started": Words("Started", _of("The event of {scope} started.")),
    "event.completed": Words("Completed", _of("The event of {scope} is over: what it announced is done.")),
    "event.failed": Words("Failed", _failed("event")),
    "event.canceled": Words("Cancelled", _event_canceled),
    "operation.planned": Words("Planned", _operation_planned),
    "operation.scheduled": Words("Scheduled", _operation_scheduled),
    "operation.held": Words("Held up", _waits),
    "operation.waiting": Words("Waiting", _waits),
    "operation.started": Words("Started", _operation_started),
    "operation.completed": Words("Completed", _of("The operation on {host} is done.")),
    "operation.failed": Words("Failed", _failed("operation")),
    "operation.canceled": Words("Cancelled", _of("The operation on {host} was cancelled.")),
    "driver.answered": Words("Told its result", _plain("The driver told its result.")),
    "driver.finished": Words("Finished", _driver_finished),
    "driver.failed": Words("Failed", _driver_failed),
    "rollout.started": Words("Begun", _rollout_started),
    "rollout.wave_began": Words("Wave begun", lambda entry: f"Wave {_data(entry, 'wave', '1')} of the rollout began."),
    "rollout.gate_green": Words("Gate green", _gate("green")),
    "rollout.gate_red": Words("Gate red", _gate("red")),
    "rollout.host_skipped": Words("Host skipped", _with("The rollout skipped {host}", "why")),
    "rollout.paused": Words("Paused", _rollout_paused),
    "rollout.resumed": Words("Resumed", _plain("The rollout was resumed.")),
    "rollout.canceling": Words(
        "Being cancelled", _plain("The rollout was cancelled: what has started there comes to its end.")
    ),
    "rollout.canceled": Words("Cancelled", _plain("The rollout is over: cancelled.")),
    "rollout.completed": Words("Completed", _plain("The rollout is over: all its hosts are done.")),
    "vm.added": Words("Added", _of("{vm} was added on {host}.")),
    "vm.changed": Words("Changed", lambda entry: f"{_vm(entry)} was changed{_changed_fields(entry)}."),
    "vm.left": Words("Left a scope", _of("{vm} has left {scope}.")),
    "vm.moved": Words("Moved", _vm_moved),
    "vm.removed": Words("Removed", _of("{vm} was removed; it was on {host}.")),
    "host.added": Words("Added", _of("Host {host} was added.")),
    "host.cordoned": Words("Cordoned", _of("Host {host} was cordoned: it takes no more VMs.")),
    "host.uncordoned": Words("Uncordoned", _of("Host {host} was uncordoned: it takes VMs again.")),
    "host.changed": Words("Changed", lambda entry: f"Host {_host(entry)} was changed{_changed_fields(entry)}."),
    "host.removed": Words("Removed", _of("Host {host} was removed.")),
    "group.added": Words("Added", _of("Group {group} was added: {kind}.")),
    "group.removed": Words("Removed", _of("Group {group} was removed.")),
    "scope.policy_changed": Words("Policy changed", _policy_changed),
    "scope.listening": Words("Listening", _of("Somebody of {scope} polls: it listens from now on.")),
    "database.restored": Words("Restored", _of("The database was restored from a backup.")),
    "command.unchanged": Words("Nothing changed", _unchanged),
    "subscription.added": Words("Added", _of("The {named} was added.")),
    "subscription.changed": Words("Changed", lambda entry: f"The {_named(entry)} was changed{_changed_fields(entry)}."),
    "subscription.parked": Words("Parked", _with("The {named} was parked", "why")),
    "subscription.resumed": Words("Resumed", _of("The {named} was resumed.")),
    "subscription.replayed": Words(
        "Replayed",
        lambda entry: f"The {_named(entry)} is told again what came after position {_data(entry, 'after', '0')}.",
    ),
    "subscription.tested": Words("Tested", _tested),
    "subscription.removed": Words("Removed", _of("The {named} was removed.")),
    "clock.accepted": Words(
        "Accepted", lambda entry: f"The clock was accepted; the journal was ahead, at {_time(entry, 'journal')}."
    ),
    "clock.jumped": Words(
        "Jumped", lambda entry: f"The clock jumped ahead by {_data(entry, 'seconds', 'some')} seconds."
    ),
    "token.created": Words(
        "Created", lambda entry: f"The {_named(entry)} was created, with the role {_data(entry, 'role', 'of nobody')}."
    ),
    "token.rotated": Words("Rotated", _of("The {named} has a new secret.")),
    "token.revoked": Words("Revoked", _of("The {named} was revoked.")),
    "token.signed_in": Words("Signed in", _of("Somebody signed in to the portal with the {named}.")),
    "token.signed_out": Words("Signed out", _of("Somebody signed out of the portal, where the {named} was shown.")),
    "history.prune_started": Words(
        "Pruning begun", lambda entry: f"Somebody began to remove history from before {_time(entry, 'before')}."
    ),
    "history.pruned": Words("Pruned", _pruned),
}
