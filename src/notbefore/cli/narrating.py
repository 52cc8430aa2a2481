"""Entries of the journal as a person reads them: when, what, to whom, by whom, from where, why."""

from collections.abc import Iterable

from notbefore.cli import times
from notbefore.cli.api import View
from notbefore.cli.output import cell

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
    told = dict(data)
    said: list[str] = []
    for column in ("reason", "approved_by"):
        told.pop(column, None)
    if "type" in told and "resources" in told:
        said.append(f"{told.pop('type')} of {_names(told.pop('resources'))}")
    if "kind" in told and "vms" in told:
        said.append(f"{told.pop('kind')} of {_names(told.pop('vms'))}")
    if moment := told.pop("not_before", None):
        said.append(f"not before {_utc(moment)}")
    if told.pop("late", False):
        said.append("after NotBefore")
    for outcomes in ("results", "failures"):
        said += [f"{name}: {outcome}" for name, outcome in told.pop(outcomes, {}).items()]
    if done := told.pop("done", None):
        said.append(f"done: {_names(done)}")
    if obstacles := told.pop("because", None):
        said.append(f"because of {_names(obstacles)}")
    if source := told.pop("source", None):
        said.append(f"from host {source}")
    for name in ("to", "before"):
        if moment := told.pop(name, None):
            said.append(f"{name} {_utc(moment)}")
    return ", ".join([*said, *filter(None, [cell(told).plain])])


def _utc(moment: str) -> str:
    return times.utc(times.read(moment))


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "no VM"
