"""How things are called in sentences: scopes, kinds, blockers, who approved, several names."""

from collections.abc import Iterable, Mapping

from forenotice.core import fleet, operations
from forenotice.core.announcements import BY_POLICY, BY_SILENCE

BLOCKERS: Mapping[str, str] = {
    "approval": "an approval",
    "notice": "its full notice",
    "start-up": "guests to see it after the service started",
    "clock": "its full notice, because the clock jumped ahead",
    "update-domain": "another update domain",
    "vm-busy": "another operation on a VM",
    "earlier-deletion": "an earlier deletion",
    "target-host": "a host that can take a VM",
    "budget": "a group's budget",
    "window": "a maintenance window",
    "announcement": "guests to be told before a maintenance window",
    "host-busy": "other maintenance of the host",
    "rollout": "its paused rollout",
}
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
    "max_unavailable": "at most {} of its VMs out at once",
    "min_available": "at least {} of its VMs left",
    "windows": "windows {}",
}


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
    """By whom, as the end of a sentence."""
    match by:
        case None | "":
            return "by nobody yet"
        case str() if by == BY_SILENCE:
            return "by silence, because nobody listens there"
        case str() if by == BY_POLICY:
            return "by its policy"
    role, colon, name = by.partition(":")
    if role == "vm":
        return f"by its guest {name}"
    return f"by {role} {name} in its guests' place" if colon else f"by {_article(by)}"


def _article(by: str) -> str:
    """Others are told by their role alone to those who see some scopes alone; guests are VMs, with their name."""
    return f"an {by} in its guests' place" if by == "operator" else f"its guest {by}"
