"""Waits until it is told to go on, then becomes the program: meanwhile whoever started it writes its number down.

Runs by itself, without the package: `python -I -S launcher.py DESCRIPTOR LC_CTYPE PROGRAM ARGUMENT...`.
"""

import os
import signal
import sys


def main(descriptor: str, locale: str, *argv: str) -> None:
    """`locale` is what LC_CTYPE was: an interpreter changes that variable when it starts."""
    told = os.read(int(descriptor), 1)
    os.close(int(descriptor))
    if not told:
        sys.exit("not begun, because the agent has ended")
    os.environ["LC_CTYPE"] = locale
    if not locale:
        del os.environ["LC_CTYPE"]
    for name in ("SIGPIPE", "SIGXFSZ"):
        # Ignored by an interpreter; a program that is not one would not expect that.
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 (what an administrator configured)
    except OSError as error:
        sys.exit(f"{argv[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
