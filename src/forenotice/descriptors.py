"""How many files and connections the system lets this process have open, and who gets how many of them."""

import resource

from forenotice.logs import log

SPARE = 512
"""For all that is no guest's connection: operators, the store, deliveries. Half of all, where that is less."""


def for_guests(allowed: int) -> int:
    return allowed - _spare(allowed)


def for_operators(allowed: int) -> int:
    return _spare(allowed) // 2


def _spare(allowed: int) -> int:
    return min(SPARE, allowed // 2)


def allowed() -> int:
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def allow(wanted: int) -> int:
    """Raise this process's own limit as far as it may and needs to; gives the limit, at most what was wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = min(wanted, _number(hard))
    if _number(soft) < enough:
        # Not beyond what is needed: programs that we start inherit it, and some close all that they could have.
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    if enough < wanted:
        log.warning(
            "Fewer connections are possible than allowed", action="descriptors.few", possible=enough, wanted=wanted
        )
    return enough


def _number(limit: int) -> int:
    return 2**31 if limit == resource.RLIM_INFINITY else limit
