"""Counts refused requests by status, and logs them without flooding the log."""

from collections import OrderedDict
from time import monotonic

from forenotice.control.connection_limits import address_of
from forenotice.failures import has_doubled
from forenotice.logs import log
from forenotice.rate import Rate
from forenotice.service.service import Telemetry

TRACED = frozenset({401, 403, 429})
KNOWN = 1000
"""Callers whose refusals are counted."""
LINES_A_SECOND, LINES_AT_ONCE = 1.0, 20.0


class Refusals:
    """Logs the first, second, fourth and so on of each caller, and a limited number a second of all together."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._counts: OrderedDict[tuple[int, str, str], int] = OrderedDict()
        self._rate = Rate(LINES_A_SECOND, LINES_AT_ONCE)
        self._full_at = 0.0
        self._unlogged = 0

    def note(self, status: int, *, address: str, token: str, method: str, path: str) -> None:
        """Ignores other statuses. `token` is the token's id, if known; the secret is never logged."""
        if status not in TRACED:
            return
        self._telemetry.refused(status)
        count = self._counted((status, str(address_of(address)) if address else "", token))
        full_at = self._rate.take(self._full_at, monotonic())
        if not has_doubled(count) or full_at < 0:
            self._unlogged += 1
            return
        self._full_at = full_at
        unlogged, self._unlogged = self._unlogged, 0
        log.warning(
            "A caller was refused",
            action="control.refused",
            status=status,
            address=address,
            token=token,
            method=method,
            path=path[:200],
            count=count,
            unlogged=unlogged,
        )

    def _counted(self, caller: tuple[int, str, str]) -> int:
        self._counts[caller] = count = self._counts.get(caller, 0) + 1
        self._counts.move_to_end(caller)
        if len(self._counts) > KNOWN:
            self._counts.popitem(last=False)
        return count
