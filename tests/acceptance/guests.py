"""A real server with VMs for many tests: each test takes some that nobody has had before."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.running import HOST, NEWEST, Server, ask, serving, until

TARGET = f"/metadata/scheduledevents?api-version={NEWEST}"
SPEED = 200
"""A restart's quarter of an hour is 4.5 seconds, and what takes any time takes the two of Started."""
AMPLE = 600.0
"""Minutes of notice that no test ever sees pass: three of ours."""
SOON = 20.0
"""Minutes of notice that tests wait for."""
HEARD = {"listening": "always"}

# As many as all tests together take, and some more.
ALONE = [f"solo-{number}" for number in range(100)]
PAIRS = [[f"pair{number}_0", f"pair{number}_1"] for number in range(4)]
TRIOS = [[f"trio{number}_0", f"trio{number}_1", f"trio{number}_2"] for number in range(6)]
TWINS = [[f"twin{number}-a", f"twin{number}-b"] for number in range(2)]
NAMES = [*ALONE, *(name for names in (*PAIRS, *TRIOS, *TWINS) for name in names)]


def fleet() -> dict[str, Any]:
    """Solo VMs have a host for themselves, twins share one, the two of a pair share a group, and trios both."""
    vms: dict[str, Any] = {name: {"host": f"host-{name}", "policy": HEARD} for name in ALONE}
    for names in TWINS:
        vms |= {name: {"host": f"host-{names[0]}", "policy": HEARD} for name in names}
    for names in PAIRS:
        for number, name in enumerate(names):
            domains = {"update_domain": number, "fault_domain": number}
            vms[name] = {"host": f"host-{name}", "group": _group(name), **domains}
    for names in TRIOS:
        vms |= {name: {"host": f"host-{_group(name)}", "group": _group(name)} for name in names}
    group = {"kind": "placement-group", "policy": HEARD}
    return {
        "hosts": {vm["host"]: {} for vm in vms.values()},
        "groups": {_group(names[0]): group for names in (*PAIRS, *TRIOS)},
        "vms": vms,
    }


def _group(name: str) -> str:
    return name.partition("_")[0]


@dataclass(frozen=True)
class Vm:
    """One of them, from both sides."""

    server: Server
    name: str
    host: str
    place: str

    @property
    def endpoint(self) -> str:
        """Where it, and nobody else, asks."""
        return f"http://{self.place}"

    # Operators

    def restart(self, minutes: float = AMPLE) -> str:
        """The id of the event."""
        return self._event("restart", self.name, minutes)

    def restart_soon(self) -> str:
        """In six seconds, approved or not."""
        return self.restart(SOON)

    def maintain_host(self, kind: str = "host-reboot", minutes: float = AMPLE) -> str:
        return self._event(kind, self.host, minutes)

    def fail_host(self) -> str:
        """Without any notice."""
        return self._event("hardware-failure", self.host, None)

    def cancel(self, event_id: str) -> None:
        self.server.post(f"/v1/events/{event_id}/cancel")

    def event(self, event_id: str) -> Any:
        return self.server.get(f"/v1/events/{event_id}")

    def until_over(self, event_id: str) -> None:
        until(lambda: self.event(event_id)["status"] not in ("Scheduled", "Started"))

    # Itself, without its agent

    @property
    def listed(self) -> dict[str, str]:
        """The status of each event."""
        document = ask(self.place, "GET", TARGET, headers={"Metadata": "true"}).json
        return {event["EventId"]: event["EventStatus"] for event in document["Events"]}

    def approve(self, *event_ids: str) -> None:
        body = json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()
        assert ask(self.place, "POST", TARGET, body, {"Metadata": "true"}).status == 200

    def _event(self, kind: str, name: str, minutes: float | None) -> str:
        made = self.server.schedule(kind, name, **({} if minutes is None else {"notice_minutes": minutes}))
        found = next(event["id"] for event in made["events"] if self.name in event["resources"])
        assert isinstance(found, str)
        return found


class Fleet:
    def __init__(self, server: Server) -> None:
        self.server = server
        hosts = {name: vm["host"] for name, vm in fleet()["vms"].items()}
        self._vms = {name: Vm(server, name, hosts[name], place) for name, place in server.listeners.items()}
        self._alone, self._twins, self._pairs, self._trios = iter(ALONE), iter(TWINS), iter(PAIRS), iter(TRIOS)

    def alone(self) -> Vm:
        (vm,) = self._take(next(self._alone, ""))
        return vm

    def twins(self) -> list[Vm]:
        """Two that share a host, and nothing else."""
        return self._take(*next(self._twins, [""]))

    def pair(self) -> list[Vm]:
        """Two that share a document, and nothing else."""
        return self._take(*next(self._pairs, [""]))

    def trio(self) -> list[Vm]:
        """Three that host maintenance names together."""
        return self._take(*next(self._trios, [""]))

    def _take(self, *names: str) -> list[Vm]:
        assert all(names), "all VMs are taken: add some"
        return [self._vms[name] for name in names]


@contextmanager
def a_fleet(home: Path, speed: float = SPEED) -> Iterator[Fleet]:
    listeners = [word for name in NAMES for word in ("--metadata", f"{HOST}:0={name}")]
    with serving(home, "--speed", str(speed), "--guest-rate", "off", "--token-rate", "off", *listeners) as server:
        server.post("/v1/fleet", fleet())
        yield Fleet(server)
        assert server.defects == []
