"""The garbage collector of a service that keeps a whole fleet in memory and makes few cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 20)
"""A command over many VMs makes a million things that stay until it is done; looking at them over and over is a sixth
of its time by default."""


def ease() -> None:
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def put_off() -> Iterator[None]:
    """What is made meanwhile stays: it is not looked at, neither now nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
