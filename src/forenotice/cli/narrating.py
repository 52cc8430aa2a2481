"""Entries of the journal as a person reads them: when, what, to whom, by whom, from where, why."""

from collections.abc import Mapping

from forenotice.cli import times
from forenotice.cli.api import View
from forenotice.cli.output import cell
from forenotice.core.operations import by_reason

COLUMNS = ("at", "action", "about", "details", "by", "from", "why")


def row(entry: View) -> tuple[object, ...]:
    data = entry["data"]
    return (
        times.utc(times.read(entry["at"])),
        entry["action"],
        _about(entry),
        _details(data),
        entry["by"] or data.get("approved_by"),
        entry["origin"],
        entry["reason"] or data.get("reason"),
    )


def _about(entry: View) -> str:
    named = {kind: entry[kind] for kind in ("vm", "host", "event", "operation", "rollout") if entry[kind]}
    about = [f"{kind} {name}" for kind, name in named.items()]
    if entry["scope"] and "vm" not in named:
        about.insert(0, entry["scope"].replace(":", " ", 1))
    return ", ".join(about)


def _details(data: View) -> str:
    """What the other columns do not say."""
    told = {name: value for name, value in data.items() if name not in ("reason", "approved_by")}
    said: list[str] = []
    match told:
        case {"type": str() as what, "resources": list() as names} | {"kind": str() as what, "vms": list() as names}:
            said.append(f"{what} of {', '.join(names) or 'no VM'}")
            told = {name: value for name, value in told.items() if value is not what and value is not names}
    for name, value in told.items():
        match name, value:
            case (("not_before" | "announce_at" | "to" | "before"), str()):
                said.append(f"{name.replace('_', ' ')} {_moment(value)}")
            case (("results" | "failures"), dict()):
                said += outcomes(value)
            case "because", list():
                said.append(f"because of {', '.join(map(str, value))}")
            case "late", bool():
                said += ["after NotBefore"] if value else []
            case _ if shown := cell(value).plain:
                said.append(f"{name}: {shown}")
    return ", ".join(said)


def outcomes(results: Mapping[str, str]) -> list[str]:
    """What became of VMs; of those that share a reason, together."""
    return [f"{', '.join(vms)}: {why}" for why, vms in by_reason(results).items()]


def _moment(text: str) -> str:
    try:
        return times.utc(times.read(text))
    except ValueError:
        return text
