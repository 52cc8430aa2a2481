"""A whole cluster of real processes on machines of its own: three NATS, PostgreSQL, two `serve`, three edges."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tests.acceptance.running import Said, environment, run, until
from tests.cluster.faults.machines import VMS, Machine, connect
from tests.cluster.faults.processes import Edge, Nats, Postgres, Process, Serve

from forenotice.cluster.keys import Keys
from forenotice.store.opener import open_store

SPEED = 200
"""A quarter of an hour of notice is 4.5 seconds, and what takes any time takes the two of Started."""
PATIENCE = 90.0
AMPLE = 600.0
"""Minutes of notice: three of ours, so that only approvals start it."""
START_SECONDS = 60.0
HOSTS = ("host-0", "host-1", "host-2")
PROBES = {host: f"probe-{number}" for number, host in enumerate(HOSTS)}
"""VMs whose restarts show that all is well."""
HELD = {host: f"held-{number}" for number, host in enumerate(HOSTS)}
"""VMs whose restarts are approved in the middle of a fault."""
HEARD = {"listening": "always"}

FLEET: dict[str, Any] = {
    "hosts": {host: {} for host in HOSTS},
    "groups": {"alpha": {"kind": "availability-set", "policy": HEARD}},
    "vms": {
        **{
            f"alpha-{n}": {"host": host, "group": "alpha", "update_domain": n, "fault_domain": n}
            for n, host in enumerate(HOSTS)
        },
        # Those with an even number listen because they are heard.
        **{f"solo-{n}": {"host": HOSTS[n % 3], "policy": HEARD if n % 2 else {}} for n in range(6)},
        **{vm: {"host": host, "policy": HEARD} for named in (PROBES, HELD) for host, vm in named.items()},
    },
}
ADDRESSES = {vm: f"{VMS}.{number}" for number, vm in enumerate(FLEET["vms"], 1)}
for _vm, _address in ADDRESSES.items():
    FLEET["vms"][_vm]["addresses"] = [_address]


class Cluster:
    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.env = environment(root)

        def machine(number: int) -> Machine:
            return stack.enter_context(closing(Machine(number)))

        on_nats, on_serve, on_edge = (
            [machine(base + n) for n in range(count)] for base, count in ((10, 3), (20, 2), (30, 3))
        )
        on_postgres = machine(40)
        connect([*on_nats, *on_serve, *on_edge, on_postgres], stack)

        keys = Keys.make(root / "keys", datetime.now(UTC))
        peers = [each.address for each in on_nats]
        self.nats = [Nats(f"nats-{n}", each, root / f"nats-{n}", peers, keys) for n, each in enumerate(on_nats)]
        for node in self.nats:
            stack.enter_context(closing(node.disk))
            self._start(stack, node)
        self.postgres = Postgres("centre", on_postgres, root / "pg")
        self._start(stack, self.postgres)

        reached = f"{' '.join(f'--nats {node.url}' for node in self.nats)} --guest-rate off"
        centre = f"--database {self.postgres.url} --nats-credentials {keys.centre_credentials} --token-rate off"
        pace = f"--speed {SPEED} --edge-patience {PATIENCE:.0f}s"
        self.serves = [
            Serve(f"serve-{n}", each, root / f"serve-{n}", *f"serve {reached} {centre} {pace}".split(), env=self.env)
            for n, each in enumerate(on_serve)
        ]
        self.edges = {}
        for host, each in zip(HOSTS, on_edge, strict=True):
            credentials = root / f"{host}.creds"
            credentials.touch(0o600)
            credentials.write_text(keys.enrol(host, datetime.now(UTC)).credentials)
            words = f"edge run --host {host} --nats-credentials {credentials} {reached}".split()
            self.edges[host] = Edge(host, each, root / host, *words, env=self.env)

        self.postgres.wait_until_ready()
        self.postgres.create()
        open_store(self.postgres.local_url, migrate=True).close()
        made = run(
            "forenotice", "token", "create", "ada", "--offline", "--database", self.postgres.local_url, env=self.env
        )
        for serve in self.serves:
            serve.token = made.stdout.strip()
        self._start(stack, *self.serves)
        self.wait_until_ready(*self.nats, *self.serves)
        said = self.serves[0].command("POST", "/v1/fleet", FLEET, seconds=30)
        assert said.status == 200, said
        # A beat from a host that the fleet does not have yet counts for nothing, and the next one takes its time.
        self._start(stack, *self.edges.values())
        self.wait_until_ready()

    def _start(self, stack: ExitStack, *processes: Process) -> None:
        for process in processes:
            stack.callback(process.kill)
            process.start()

    def wait_until_ready(self, *processes: Process) -> None:
        """These, or all."""
        for process in processes or (*self.nats, self.postgres, *self.serves, *self.edges.values()):
            process.wait_until_ready()

    # Who does what

    def leader(self, stream: str) -> Nats:
        """As soon as two of the servers agree."""

        def agreed() -> list[Nats]:
            said = [node.leader_of(stream) for node in self.nats if node.runs]
            return [node for node in self.nats if said.count(node.name) >= 2]

        (found,) = until(agreed, START_SECONDS, f"{stream} has a leader")
        return found

    @property
    def publisher(self) -> Serve:
        """Of the two `serve`, the one that was the last to begin."""

        def since(serve: Serve) -> str:
            found = [entry["timestamp"] for entry in serve.entries() if entry["action"] == "cluster.publishing"]
            return max(found, default="")

        return max(self.serves, key=since)

    # Operators

    def command(
        self, method: str, path: str, body: object = None, *, first: int = 0, seconds: float = 3
    ) -> Said | None:
        """At either, the one with this number first; None: neither has answered."""
        for number in (first, 1 - first):
            try:
                said = self.serves[number].command(method, path, body, seconds=seconds)
            except (OSError, HTTPException):
                continue
            if said.status != 503:
                return said
        return None

    def get(self, path: str) -> Any:
        def found() -> list[Said]:
            said = self.command("GET", path, seconds=10)
            return [said] if said is not None and said.status == 200 else []

        (said,) = until(found, START_SECONDS, f"GET {path}")
        return said.json

    def history(self, after: int = 0) -> Iterator[dict[str, Any]]:
        position: int | None = after
        while position is not None:
            page = self.get(f"/v1/history?limit=500&after={position}")
            yield from page["items"]
            position = page["next"]


@contextmanager
def cluster(root: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(root, stack)
