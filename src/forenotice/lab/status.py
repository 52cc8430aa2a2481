"""What a lab has at this moment: its service, its hosts, and its guests as they report themselves."""

from contextlib import suppress
from typing import Any

import msgspec

from forenotice.core import errors
from forenotice.lab.lab import Lab

STATES = ("none", "running", "blocked", "paused", "shutting down", "shut off", "crashed", "suspended")
"""libvirt's words, by its numbers."""
UNKNOWN, GONE = "unknown", "gone"


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uri: str
    state: str
    """`up`; `libvirtd is down`, with guests that live on; `down`."""


class VmStatus(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    host: str | None
    """None: it is on none that answers."""
    state: str
    address: str
    uptime: float | None = None
    boot_id: str | None = None
    persistent_boots: int | None = None
    ephemeral_boots: int | None = None
    event: str | None = None
    """The type and the status of the event that it sees; all of these as the guest has reported them last."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    up: bool
    """All of it."""
    directory: str
    service: str
    """The address of its control plane; empty: it is down."""
    token: str
    """The file with the administrator's token, for the portal."""
    accelerator: str
    speed: float
    hosts: list[HostStatus]
    vms: list[VmStatus]


def of(lab: Lab) -> Status:
    asked = {name: _domains(lab, name) for name in lab.plan.hosts}
    return Status(
        up=lab.is_up,
        directory=str(lab.directory),
        service=lab.service.control if lab.service.is_alive else "",
        token=str(lab.service.token),
        accelerator=lab.plan.accelerator,
        speed=lab.plan.speed,
        hosts=[_host(lab, name, asked[name] is not None) for name in lab.plan.hosts],
        vms=[_vm(lab, name, asked) for name in lab.plan.vms],
    )


def _host(lab: Lab, name: str, answers: bool) -> HostStatus:
    host = lab.hosts.get(name)
    state = "up" if answers else "libvirtd is down" if host and host.is_alive else "down"
    return HostStatus(name=name, uri=host.uri if host else "", state=state)


def _vm(lab: Lab, name: str, asked: dict[str, dict[str, int] | None]) -> VmStatus:
    places = [(host, domains[name]) for host, domains in asked.items() if domains and name in domains]
    # While it is moved, it is on two hosts, and runs on one of them.
    host, number = min(places, key=lambda place: place[1] != STATES.index("running"), default=(None, None))
    if number is None:
        state = UNKNOWN if None in asked.values() else GONE
    else:
        state = STATES[number] if number < len(STATES) else UNKNOWN
    guest = lab.guests[name]
    report = guest.latest if state not in (GONE, "shut off") else None
    if report is None:
        return VmStatus(name=name, host=host, state=state, address=guest.address)
    return VmStatus(
        name=name,
        host=host,
        state=state,
        address=guest.address,
        uptime=report.uptime,
        boot_id=report.boot_id,
        persistent_boots=report.persistent_boots,
        ephemeral_boots=report.ephemeral_boots,
        event=f"{report.type} {report.status}" if report.event else None,
    )


def _domains(lab: Lab, host: str) -> dict[str, int] | None:
    """The state of each by name; None: the host does not answer."""
    if host not in lab.hosts or not lab.hosts[host].is_alive:
        return None
    with suppress(errors.ForenoticeError):
        found: dict[str, int] = lab.ask(host, _states)
        return found
    return None


def _states(link: Any) -> dict[str, int]:
    return {domain.name(): domain.state()[0] for domain in link.listAllDomains()}
