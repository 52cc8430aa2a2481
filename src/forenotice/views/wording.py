"""Entries of the journal in words: one sentence for each action, for the portal and the command line."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from forenotice.core import explanations, fleet, journal, operations
from forenotice.core.announcements import BY_POLICY, BY_SILENCE
from forenotice.core.rollout_progress import PAUSED_BY
from forenotice.views import history

NOUNS: Mapping[str, str] = {
    "event": "Events",
    "operation": "Operations",
    "driver": "The driver",
    "rollout": "Rollouts",
    "vm": "VMs",
    "host": "Hosts",
    "drift": "Drift",
    "edge": "Edges",
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

WORDS: Mapping[str, tuple[str, str]] = {
    "event.scheduled": ("Announced", "{type} of {vms} was announced, not before {not_before}.{approved}"),
    "event.approved": ("Approved", "{event} was approved {by}{late}."),
    "event.silence_withdrawn": (
        "Approval by silence withdrawn",
        "A guest of {scope} has polled: silence no longer counts as approval of the event.",
    ),
    "event.postponed": ("Postponed", "NotBefore was moved to {to}."),
    "event.resource_dropped": ("A VM has left it", "{vm} has left its host and is no longer part of the event."),
    "event.started": ("Started", "{type} of {vms} started."),
    "event.completed": ("Completed", "{type} of {vms} completed."),
    "event.failed": ("Failed", "{type} of {vms} failed: {failures}."),
    "event.canceled": ("Cancelled", "{event} was cancelled{left}."),
    "operation.planned": (
        "Planned",
        "An operation was planned: {kind} of {vms} on {host}, not before {not_before}; "
        "guests are told at {announce_at}.",
    ),
    "operation.scheduled": ("Scheduled", "An operation{rollout} was scheduled: {kind} of {vms} on {host}."),
    "operation.held": ("Held up", "The operation could not start yet: it waits for {because}."),
    "operation.waiting": ("Waiting", "The operation could not start yet: it waits for {because}."),
    "operation.started": ("Started", "The operation started on {host}{targets}."),
    "operation.placed": ("Placed", "Hosts were found for VMs that move{targets}."),
    "operation.completed": ("Completed", "The operation on {host} completed."),
    "operation.failed": ("Failed", "The operation on {host} failed: {failures}."),
    "operation.canceled": ("Cancelled", "The operation on {host} was cancelled."),
    "driver.answered": ("Reported its result", "The driver reported its result."),
    "driver.finished": ("Finished", "The driver has finished with {vms}{paused}."),
    "driver.failed": ("Failed", "The driver failed for {failures}, try {attempt}{done}."),
    "driver.waiting": ("Waiting", "The driver waits: {waits}."),
    "rollout.started": ("Begun", "A rollout began: {kind} of {hosts}, in {waves}."),
    "rollout.wave_began": ("Wave begun", "Wave {wave} of the rollout began."),
    "rollout.gate_green": ("Gate green", "The gate before wave {wave} was green{status}."),
    "rollout.gate_red": ("Gate red", "The gate before wave {wave} was red{status}."),
    "rollout.host_skipped": ("Host skipped", "The rollout skipped {host}{why}."),
    "rollout.paused": ("Paused", "The rollout was paused{why}."),
    "rollout.resumed": ("Resumed", "The rollout was resumed."),
    "rollout.canceling": (
        "Being cancelled",
        "The rollout is being cancelled: operations that have started go on to their end.",
    ),
    "rollout.canceled": ("Cancelled", "The rollout was cancelled."),
    "rollout.completed": ("Completed", "The rollout completed: all its hosts are done."),
    "vm.added": ("Added", "{vm} was added on {host}."),
    "vm.changed": ("Changed", "{vm} was changed{fields}."),
    "vm.left": ("Left a scope", "{vm} has left {scope}."),
    "vm.moved": ("Moved", "{vm} has moved{source} to {host}."),
    "vm.missing": ("Missing", "{vm} is missing: {host} no longer has it."),
    "vm.found": ("Found again", "{vm} is there again on {host}."),
    "vm.removed": ("Removed", "{vm} was removed; it was on {host}."),
    "drift.noticed": ("Noticed", "Host {host} differs from the fleet in{named}{why}."),
    "drift.settled": ("Settled", "Host {host} no longer differs from the fleet in{named}."),
    "edge.registered": ("Registered", "Host {host} has an edge{version}: it answers the guests there."),
    "edge.lost": ("Lost", "The edge of host {host} is lost: the service last heard it at {since}."),
    "edge.returned": ("Returned", "The service hears the edge of host {host} again, which was lost at {since}."),
    "edge.forgotten": ("Forgotten", "The edge of host {host} is forgotten; the service no longer waits for it."),
    "host.added": ("Added", "Host {host} was added."),
    "host.cordoned": ("Cordoned", "Host {host} was cordoned: it takes no more VMs."),
    "host.uncordoned": ("Uncordoned", "Host {host} was uncordoned: it takes VMs again."),
    "host.changed": ("Changed", "Host {host} was changed{fields}."),
    "host.removed": ("Removed", "Host {host} was removed."),
    "group.added": ("Added", "Group {name} was added: {kind}."),
    "group.removed": ("Removed", "Group {name} was removed."),
    "scope.policy_changed": ("Policy changed", "The policy of {scope} was changed{policy}."),
    "scope.listening": ("Listening", "A guest of {scope} has polled: the scope is listening from now on."),
    "database.restored": ("Restored", "The database was restored from a backup."),
    "command.unchanged": ("Nothing changed", "A command changed nothing, because it was so already: {asked}."),
    "subscription.added": ("Added", "The subscription{named} was added."),
    "subscription.changed": ("Changed", "The subscription{named} was changed{fields}."),
    "subscription.parked": ("Parked", "The subscription{named} was parked{why}."),
    "subscription.resumed": ("Resumed", "The subscription{named} was resumed."),
    "subscription.replayed": ("Replayed", "The subscription{named} is sent again what came after position {after}."),
    "subscription.tested": ("Tested", "The subscription{named} was tested{tested}."),
    "subscription.removed": ("Removed", "The subscription{named} was removed."),
    "clock.accepted": ("Accepted", "The clock was accepted; the journal was ahead, at {journal}."),
    "clock.jumped": ("Jumped", "The clock jumped ahead by {seconds} seconds."),
    "token.created": ("Created", "The token{named} was created, with the role {role}."),
    "token.rotated": ("Rotated", "The token{named} has a new secret."),
    "token.revoked": ("Revoked", "The token{named} was revoked."),
    "token.signed_in": ("Signed in", "The token{named} signed in to the portal."),
    "token.signed_out": ("Signed out", "The token{named} signed out of the portal."),
    "history.prune_started": ("Pruning begun", "The removal of history from before {before} began."),
    "history.pruned": ("Pruned", "History from before {before} was removed: {entries} entries."),
}
"""Of each action its title, as the filter calls it, and its sentence."""

ASKED: Mapping[str, str] = {
    "event.approve": "an approval",
    "host.change": "a change of a host",
    "group.change": "a change of a group",
    "policy.change": "a change of a policy",
    "vm.change": "a change of a VM",
    "fleet.apply": "a fleet file",
}
POLICY: Mapping[str, str] = {
    "listening": "listening {}",
    "auto_approve": "approves restarts and redeploys by itself",
    "auto_approve_restart": "approves restarts by itself",
    "auto_approve_redeploy": "approves redeploys by itself",
    "terminate_notice_minutes": "{:g} minutes' notice of a deletion",
    "max_user_operations": "at most {} operations of users at once",
    "max_unavailable": "at most {} of its VMs down at once",
    "min_available": "at least {} of its VMs left",
    "windows": "windows {}",
    "shutdown_timeout_seconds": "{} seconds to shut down",
}
Entry = history.Entry | journal.Entry
TIMES = ("not_before", "announce_at", "to", "before", "journal", "since")


def sentence(entry: Entry) -> str:
    """Times and ids stand in it as in the service's own sentences."""
    _, form = WORDS.get(entry.action, ("", f"{entry.action}."))  # A newer service may know more actions.
    return form.format_map(_parts(entry))


def kinds() -> dict[str, dict[str, str]]:
    """Titles by action, by noun; for a choice."""
    found: dict[str, dict[str, str]] = {noun: {} for noun in NOUNS}
    for action, (title, _) in WORDS.items():
        found[action.partition(".")[0]][action] = title
    return found


def _parts(entry: Entry) -> dict[str, str]:
    """Everything that a sentence may have in it; what an entry does not tell is left out or told in general."""
    data: Mapping[str, Any] = entry.data
    named = data.get("resources") or data.get("vms") or data.get("done") or (data.get("results") or {}).keys()
    because = dict.fromkeys(explanations.PHRASES.get(str(kind), (str(kind),))[0] for kind in data.get("because") or ())
    fields = [str(field).replace("_", " ") for field in data.get("fields") or ()]
    targets = [f"{vm} to {host}" for vm, host in (data.get("targets") or {}).items()]
    why = str(data.get("why") or "")
    by, done, asked = data.get("approved_by"), data.get("done"), data.get("asked")
    tested = f", without success: {data.get('error') or 'the receiver did not take it'}"
    return {
        **{name: _moment(data.get(name)) for name in TIMES},
        "host": entry.host or "its host",
        "vm": f"VM {entry.vm}" if entry.vm else "A VM",
        "scope": scope_of(entry.scope),
        "name": (entry.scope or "").partition(":")[2],
        "named": f" {data['name']}" if data.get("name") else "",
        "rollout": f" of rollout {entry.rollout}" if entry.rollout else "",
        "kind": kind_of(data.get("kind")),
        "type": str(data.get("type") or "Maintenance"),
        "event": f"{data['type']} of {several(named)}" if named and data.get("type") else "The event",
        "vms": several(named) if named else scope_of(entry.scope),
        "failures": failed(data.get("failures") or data.get("results") or {}),
        "waits": explanations.reasons_to_wait(data.get("waiting") or {}),
        "done": f"; it has finished with {several(done)}" if done else "",
        "paused": _paused(data.get("calls") or ()),
        "attempt": str(data.get("attempt") or 1),
        "by": approved_by(by),
        "approved": f" It was approved at once {approved_by(by)}." if by else "",
        "late": ", after NotBefore" if data.get("late") else "",
        "left": f", because {entry.vm} has left its host" if entry.vm else "",
        "because": fleet.names(because or ["something"]),
        "targets": f": {fleet.several(targets)}" if targets else "",
        "hosts": _counted(data.get("stops", 0), "host"),
        "waves": _counted(data.get("waves", 0), "wave"),
        "wave": str(data.get("wave") or 1),
        "status": f": {data['status']}" if data.get("status") else "",
        "why": f": {why}" if why and not why.startswith(PAUSED_BY) else "",
        "fields": f": {fleet.names(fields)}" if fields else "",
        "policy": _policy(data.get("policy") or {}),
        "source": f" from {data['source']}" if data.get("source") else "",
        "asked": f"it asked for {ASKED.get(str(asked), 'the same')}",
        "tested": ": its receiver took the message" if data.get("taken") else tested,
        "after": str(data.get("after") or 0),
        "seconds": str(data.get("seconds") or "some"),
        "version": f" of version {data['version']}" if data.get("version") else "",
        "role": str(data.get("role") or "unknown"),
        "entries": str(data.get("entries", 0)),
    }


def _paused(calls: Iterable[Mapping[str, Any]]) -> str:
    """How long VMs stood still, where the driver has measured it."""
    times = [f"{several(call['vms'])} for {call['paused_seconds']:g} s" for call in calls if "paused_seconds" in call]
    return f"; paused: {fleet.several(times)}" if times else ""


def _policy(policy: Mapping[str, Any]) -> str:
    said = [
        form.format("; ".join(value) if isinstance(value, list) else value)
        for name, form in POLICY.items()
        if (value := policy.get(name)) is not None and value is not False and value != []
    ]
    return f": {', '.join(said)}" if said else ""


def _moment(value: str | datetime | None) -> str:
    if not value:
        return "a moment that is not told"
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return explanations.moment_told(moment.astimezone(UTC))


def _counted(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


# Things in sentences


def several(things: Iterable[str]) -> str:
    known = list(things)
    return fleet.several(known) if known else "no VM"


def failed(results: Mapping[str, str]) -> str:
    """`web-0 and web-1 (no route to host)`: those that are not done, and why."""
    failures = {vm: why for vm, why in results.items() if why != "done"}
    return several(f"{several(vms)} ({why})" for why, vms in operations.by_reason(failures).items())


def kind_of(operation: object) -> str:
    return str(operation or "maintenance").replace("-", " ")


def scope_of(key: str | None) -> str:
    noun, _, name = (key or "").partition(":")
    return {"group": f"group {name}", "vm": f"VM {name}"}.get(noun, "its scope")


def approved_by(by: str | None) -> str:
    """By whom, as the end of a sentence. To those who see some scopes alone, others are told by their role alone."""
    if not by:
        return "by an approver that is not shown"
    settled = {
        BY_SILENCE: "by silence, because its scope is not listening",
        BY_POLICY: "by its policy",
        "operator": "by an operator in its guests' place",
    }
    role, colon, name = by.partition(":")
    if by in settled:
        return settled[by]
    return f"by {role} {name} in its guests' place" if colon and role != "vm" else f"by its guest {name or by}"
