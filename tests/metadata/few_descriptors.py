"""A server that runs out of descriptors, and serves again when there are some; run by test_server."""

import os
import resource

import structlog  # noqa: F401  (as `serve` has: without a descriptor it could not be loaded any more)
from tests.metadata.running import DEADLINE, WEB_ADDRESSES, Running, request, until

MANY = 400


def main() -> None:
    server = Running()
    clients = []
    spare = os.open(os.devnull, os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MANY, MANY))
    try:
        while True:
            clients.append(server.connect())
            clients[-1].send(request())
    except OSError:
        os.close(spare)
    assert len(clients) < MANY
    # The last descriptor is this client's, so that there is none left to let it in.
    clients.append(server.connect())
    clients[-1].send(request())
    assert clients[-1].is_silent()
    for client in clients:
        client.socket.close()
    until(lambda: server.server.counters.open == 0)
    reply = server.ask(source=WEB_ADDRESSES[0])
    assert reply.status == 200, reply
    server.stop(DEADLINE / 2)
    Running().stop()


if __name__ == "__main__":
    main()
