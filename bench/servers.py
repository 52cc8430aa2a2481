"""The servers that are measured: ours and nginx, each a process of its own on one core."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.postgres import PostgresServer

from bench import guests, machine

RATE = "1000000"
"""The rate limit is on, but nobody reaches it."""

START_SECONDS = 60.0
STOP_SECONDS = 20.0
UNAVAILABLE = 503
NGINX_CONF = Path(__file__).with_name("nginx.conf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    name: str
    pid: int
    port: int
    control: int
    first_answer_seconds: float
    """From the start of the process."""

    def cpu_seconds(self) -> float:
        return machine.cpu_seconds(self.pid)

    def resident_bytes(self) -> int:
        return machine.resident_bytes(self.pid)


@contextmanager
def forenotice(
    data: Path,
    *flags: str,
    address: str = "127.0.0.1",
    answers: int = 200,
    core: int = machine.SERVER_CORE,
) -> Iterator[Server]:
    """Ours, on the fleet in a data directory; it is there once the guest at `address` is answered so."""
    port, control = free_port(), free_port()
    command = [
        *(sys.executable, "-m", "forenotice", "serve", "--data", str(data)),
        *("--metadata", f"127.0.0.1:{port}", "--control", f"127.0.0.1:{control}"),
        *("--guest-rate", RATE, "--token-rate", "off", "--log-level", "error", *flags),
    ]
    with running("forenotice", command, port, control, address, answers, core) as server:
        yield server


def await_control(server: Server) -> None:
    """Operators are answered later than guests."""
    deadline = time.perf_counter() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", server.control), timeout=guests.PATIENCE).close()
            return
        except ConnectionRefusedError:
            if time.perf_counter() > deadline:
                raise
            time.sleep(0.01)


@contextmanager
def nginx(body: bytes) -> Iterator[Server]:
    """It serves these bytes where a guest polls."""
    port = free_port()
    with TemporaryDirectory(prefix="forenotice-bench-") as directory:
        prefix = Path(directory)
        page = prefix / "html" / guests.PATH.lstrip("/")
        page.parent.mkdir(parents=True)
        page.write_bytes(body)
        conf = prefix / "nginx.conf"
        conf.write_text(NGINX_CONF.read_text().replace("PORT", str(port)).replace("PREFIX", directory))
        command = [program("nginx"), "-p", directory, "-c", str(conf), "-e", str(prefix / "error.log")]
        with running("nginx", command, port, 0, "127.0.0.1", 200) as server:
            yield server


@contextmanager
def postgresql() -> Iterator[str]:
    """The URL of an empty database."""
    with TemporaryDirectory(prefix="forenotice-pg-") as root:
        server = PostgresServer(Path(root))
        server.start()
        with server.guarded():
            yield server.create_database()


def program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise SystemExit(f"bench: there is no {name}; scripts/system-packages bench installs it")
    return found


@contextmanager
def running(
    name: str,
    command: list[str],
    port: int,
    control: int,
    address: str,
    answers: int,
    core: int = machine.SERVER_CORE,
) -> Iterator[Server]:
    pinned = [program("taskset"), "--cpu-list", str(core), *command]
    # Compiled modules are kept, as they are for everyone else.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FORENOTICE_", "PYTHON"))}
    begin = time.perf_counter()
    process = subprocess.Popen(pinned, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        _wait_for_answer(process, port, address, answers)
        yield Server(
            name=name,
            pid=process.pid,
            port=port,
            control=control,
            first_answer_seconds=time.perf_counter() - begin,
        )
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_answer(process: subprocess.Popen[bytes], port: int, address: str, answers: int) -> None:
    deadline = time.perf_counter() + START_SECONDS
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"bench: a server ended with exit code {process.returncode} while starting")
        try:
            status, _ = guests.ask(port, address)
        except OSError:
            time.sleep(0.005)
            continue
        if status == UNAVAILABLE:
            # An edge that has no state yet.
            time.sleep(0.005)
            continue
        if status != answers:
            raise SystemExit(f"bench: a server answered {status} where {answers} was expected")
        return
    raise SystemExit(f"bench: a server did not answer within {START_SECONDS:.0f} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
