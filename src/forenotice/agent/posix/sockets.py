"""Unix sockets."""

import socket


def connect(path: str, timeout: float) -> socket.socket:
    """OSError: nobody listens there, or not for us."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout)
        made.connect(path)
    except OSError:
        made.close()
        raise
    return made
