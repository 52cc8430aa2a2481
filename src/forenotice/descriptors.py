"""The process's limit of file descriptors, and how guests, operators and the store share it."""

from forenotice.logs import log

try:
    import resource
except ImportError:
    resource = None  # type: ignore[assignment]

SPARE = 512
"""Reserved for operators, the store and deliveries; half of all descriptors, if that is less."""
ON_WINDOWS = 512
"""Windows has no such limit; its select can watch so many sockets."""


def for_guests(allowed: int) -> int:
    return allowed - _spare(allowed)


def for_operators(allowed: int) -> int:
    return _spare(allowed) // 2


def _spare(allowed: int) -> int:
    return min(SPARE, allowed // 2)


def allowed() -> int:
    return ON_WINDOWS if resource is None else _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def allow(wanted: int) -> int:
    """Raise this process's own limit towards `wanted`, as far as the system allows; gives the limit."""
    if resource is None:
        return ON_WINDOWS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = min(wanted, _number(hard))
    if _number(soft) < enough:
        # Not higher than needed: child processes inherit it, and some close every possible descriptor.
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    if enough < wanted:
        log.warning(
            "Too few file descriptors: the connection limit is reduced",
            action="descriptors.few",
            possible=enough,
            wanted=wanted,
        )
    return enough


def _number(limit: int) -> int:
    return 2**31 if limit == resource.RLIM_INFINITY else limit
