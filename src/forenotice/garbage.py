"""The garbage collector of a service that keeps a whole fleet in memory."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLD = 10_000
"""Collect after so many new things. Python's own 700 is a tenth of the time when thousands of guests are connected;
many more would let what requests leave behind in cycles pile up."""


def ease() -> None:
    _, *others = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *others)


@contextmanager
def put_off() -> Iterator[None]:
    """What is made meanwhile stays for a while: looking at it again and again is a sixth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def keep() -> None:
    """What is there now stays: it is never looked at again."""
    gc.freeze()
