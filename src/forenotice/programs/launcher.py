"""Waits until its parent has recorded its process id, then becomes the program.

Runs by itself, without the package: `python -I -S launcher.py DESCRIPTOR LC_CTYPE PROGRAM ARGUMENT...`.
"""

import os
import signal
import sys


def main(descriptor: str, locale: str, *argv: str) -> None:
    """`locale` is the program's LC_CTYPE: an interpreter changes that variable when it starts."""
    told = os.read(int(descriptor), 1)
    os.close(int(descriptor))
    if not told:
        sys.exit("not begun, because the agent has ended")
    os.environ["LC_CTYPE"] = locale
    if not locale:
        del os.environ["LC_CTYPE"]
    for name in ("SIGPIPE", "SIGXFSZ"):
        # An interpreter ignores them; other programs do not expect that.
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 (what an administrator configured)
    except OSError as error:
        sys.exit(f"{argv[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
