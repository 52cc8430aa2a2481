"""Garbage collection in a service that keeps a whole fleet in memory."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLD = 10_000
"""New objects before a collection. Python's own 700 costs a tenth of the time when thousands of guests are connected;
many more would let the cycles that requests leave behind pile up."""


def raise_threshold() -> None:
    _, *others = gc.get_threshold()
    gc.set_threshold(THRESHOLD, *others)


@contextmanager
def paused() -> Iterator[None]:
    """For work whose objects live for a while: to look at them again and again would be a sixth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def freeze() -> None:
    """Exempt all present objects from collection."""
    gc.freeze()
