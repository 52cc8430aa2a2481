"""A server that runs out of descriptors and recovers, and one that keeps within few; run by test_server."""

import os
import resource

import structlog  # noqa: F401  (as `serve` has: without a descriptor it could not be loaded any more)
from tests.metadata.running import WEB_ADDRESSES, Client, Running, request, until

MANY = 400
FEW = 256


def run_out() -> None:
    server = Running()
    clients = []
    spare = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MANY, MANY))
    try:
        while True:
            clients.append(server.connect())
            clients[-1].send(request())
    except OSError:
        assert len(clients) < MANY

    def take_the_last() -> None:
        """On the loop, so that the server does not let in somebody else with it: it has none left for this client."""
        os.close(spare)
        clients.append(server.connect())

    server.call(take_the_last)
    clients[-1].send(request())
    assert clients[-1].is_silent()
    for client in clients:
        client.socket.close()
    # Clients that were never accepted still count when they are, until the server sees that they have left.
    until(lambda: status(server.connect(WEB_ADDRESSES[0])) == 200)
    server.stop(5)


def status(client: Client) -> int:
    try:
        client.send(request())
        return client.reply().status
    except ConnectionError:
        # Refused before it had asked, and its question took the answer back.
        return 503


def keep_within() -> None:
    """As started with `ulimit -n 256`: one VM's idle connections leave room for other VMs, and for the rest of us."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, FEW))
    server = Running()
    clients = [server.connect() for _ in range(60)]
    statuses = [status(client) for client in clients]
    assert (statuses.count(200), statuses.count(503)) == (FEW // 8, 60 - FEW // 8), statuses
    other = server.connect(WEB_ADDRESSES[1])
    other.send(request())
    assert other.reply().status == 200
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(FEW // 4)]
    for descriptor in files:
        os.close(descriptor)
    for client in (other, *clients):
        client.socket.close()
    server.stop()


def main() -> None:
    run_out()
    keep_within()


if __name__ == "__main__":
    main()
