"""A service that is killed, and started again until everything has ended."""

import http.client
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from tests.machines.labs import ENDED, Happened, Lab, until


class Killer:
    """Kills the service at the moment at which something happens to one of these VMs for the first time."""

    def __init__(self, lab: Lab, vms: Collection[str] = (), wanted: Iterable[str] = ()) -> None:
        self.lab, self.wanted = lab, set(wanted)
        self._vms = vms
        lab.listen(self._look)

    def _look(self, happened: Happened) -> None:
        if happened.vm in self._vms and happened.what in self.wanted and (server := self.lab.server.process):
            self.wanted.discard(happened.what)
            server.kill()

    def kill(self) -> None:
        """At any moment, also while it starts."""
        if self.lab.server.process is not None:
            self.lab.server.kill()
        self.lab.server.spawn()

    def see_through(self, operations: Iterable[str]) -> list[Any]:
        """Start the service again whenever it is not there, until all have ended; gives what became of them."""
        ended: dict[str, Any] = dict.fromkeys(operations)

        def are_over() -> bool:
            server = self.lab.server
            if server.process is None or server.process.poll() is not None:
                self.kill()
            with suppress(OSError, http.client.HTTPException):
                for operation in [each for each, found in ended.items() if found is None]:
                    said = server.control("GET", f"/v1/operations/{operation}")
                    if said.status == 200 and said.json["status"] in ENDED:
                        ended[operation] = said.json
            return None not in ended.values()

        until(are_over, lambda: f"these end: {ended}; {self.lab.happened[-30:]}")
        return list(ended.values())
