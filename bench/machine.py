"""The machine: which core is whose, and what a process has used so far."""

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1024 * 1024

_cores = sorted(os.sched_getaffinity(0))
SERVER_CORE = _cores[0]
LOAD_CORE = _cores[-1]


def pin(core: int) -> None:
    os.sched_setaffinity(0, {core})


@contextmanager
def all_cores() -> Iterator[None]:
    """For what needs more than one, and the processes that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads."""
    # The name may hold blanks, so fields are counted from the parenthesis behind it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def allow_descriptors(wanted: int) -> None:
    """For this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"bench: {wanted} open files are needed, and {hard} allowed: raise it with `ulimit -Hn`")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def describe() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / MIB / 1024
    return f"{os.cpu_count()} cores of {_model()}, {memory:.0f} GiB of memory, Linux {platform.release()}"


def load_average() -> float:
    return os.getloadavg()[0]


def _model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
