"""Clocks that the standard library does not read everywhere: of the boot, and of the hardware."""

import time
from pathlib import Path

HARDWARE = Path("/sys/class/rtc/rtc0/since_epoch")
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def boot() -> float:
    """Monotonic, and counts while the machine is suspended, where there is a clock that does."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


def hardware(path: Path = HARDWARE) -> int | None:
    """In whole seconds since whenever; None where it cannot be read."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None
