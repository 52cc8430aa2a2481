"""The state of the host: taken from wherever it comes if it is newer, kept on disk, then shown to guests."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from forenotice import __version__
from forenotice.clock import Clock
from forenotice.cluster import messages
from forenotice.cluster.messages import NOTHING, Beat, Fence, HostState, MalformedError
from forenotice.core.timing import ENDED_APPROVABLE, Timing
from forenotice.edge.state_file import FormerStaysError, StateFile
from forenotice.failures import has_doubled
from forenotice.logs import log
from forenotice.metadata.published import PublishedFleet
from forenotice.wire import versions


class Follower:
    """Used on the loop. `keep_to` is called with the timing whenever a state says another."""

    def __init__(
        self,
        host: str,
        published: PublishedFleet,
        file: StateFile,
        clock: Clock,
        keep_to: Callable[[Timing], None],
    ) -> None:
        self._host = host
        self._published = published
        self._file = file
        self._clock = clock
        self._keep_to = keep_to
        self.state: HostState | None = None
        self._next: tuple[HostState, bytes, datetime] | None = None
        """To be shown, and when it came."""
        self._arrived = asyncio.Event()
        self.news = asyncio.Event()
        """Set whenever the next beat should not wait."""
        self._confirmed: datetime | None = None
        self._is_saved = True
        self.applied = self.refused = self.unsaved = 0
        self._refusal = ""

    @property
    def fence(self) -> Fence:
        return self.state.fence if self.state else NOTHING

    @property
    def started(self) -> frozenset[str]:
        """VMs that are being acted on."""
        return self.state.started if self.state else frozenset()

    @property
    def age(self) -> timedelta | None:
        """How long ago this was known to be the newest state; None: there is none."""
        return None if self._confirmed is None else max(self._clock.now() - self._confirmed, timedelta(0))

    def load(self) -> None:
        """Show what is on disk."""
        try:
            found = self._file.read()
            if found is not None:
                data, self._confirmed = found
                self._show(self._read(data))
        except (OSError, MalformedError) as error:
            self._confirmed = None
            log.error("The state on disk cannot be used", action="edge.unreadable", reason=str(error))

    def offer(self, data: bytes) -> None:
        """A state, by whatever way: it counts only if it is newer."""
        try:
            state = self._read(data)
        except MalformedError as error:
            self._refuse(str(error))
            return
        newest = self._next[0] if self._next else self.state
        if newest is not None and state.fence < newest.fence:
            return
        now = self._clock.now()
        if state.fence == self.fence:
            self._confirmed = now
        # A service that was started anew may have another speed and nothing else to tell.
        is_known = newest is not None and (state.fence, state.speed) == (newest.fence, newest.speed)
        if not is_known or not (self._next or self._is_saved):
            self._next = (state, data, now)
            self._arrived.set()

    async def run(self) -> None:
        """Guests see a state only once it is on disk: after a crash they never see an older one."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            if self._next is None:
                continue
            state, data, came = self._next
            try:
                await asyncio.to_thread(self._file.write, data)
                self._is_saved = may_be_shown = True
            except OSError as error:
                self._is_saved = False
                self.unsaved += 1
                if has_doubled(self.unsaved):
                    log.error("The state cannot be written to disk", action="edge.unsaved", reason=str(error))
                may_be_shown = not isinstance(error, FormerStaysError)
            if self._next[0] is state:
                self._next = None
            if may_be_shown:
                self._show(state)
                self._confirmed = came
                self.applied += 1
                self.news.set()

    def approvable(self, scope: str, event_id: str) -> bool:
        """Whether this is a live event of the scope, or one that has just ended."""
        known = self._published.scopes.get(scope)
        if known is not None and any(event.id == event_id for event in known.document.events):
            return True
        since = self._clock.now() - ENDED_APPROVABLE
        return self.state is not None and any(
            ended.id == event_id and ended.scope == scope and ended.ended_at >= since for ended in self.state.ended
        )

    def beat(self) -> Beat:
        polls = {name: polled for name in self.started if (polled := self._published.polled(name))}
        return Beat(
            version=__version__,
            epoch=self.fence.epoch,
            position=self.fence.position,
            at=self.state.at if self.state else None,
            age=self.age.total_seconds() if self.age is not None else None,
            refused=self.refused,
            refusal=self._refusal,
            polls=polls,
        )

    def _read(self, data: bytes) -> HostState:
        """MalformedError: guests cannot be shown this."""
        state = messages.decode_state(data, self._host)
        trial = PublishedFleet()
        try:
            trial.put_everything(state.scopes)
            for scope in trial.scopes.values():
                scope.render(versions.NEWEST)
        except Exception as error:
            # Whatever it is: the state that guests see now is better than none.
            raise MalformedError(f"the state cannot be shown: {error!r}") from None
        return state

    def _show(self, state: HostState) -> None:
        if self.state is None or state.speed != self.state.speed:
            self._keep_to(Timing(speed=state.speed))
        self._published.put_everything(state.scopes)
        self.state = state
        log.debug("A state was applied", action="edge.applied", epoch=state.epoch, position=state.position)

    def _refuse(self, reason: str) -> None:
        self.refused += 1
        self._refusal = reason[:500]
        if has_doubled(self.refused):
            log.error("A state was refused", action="edge.refused", reason=reason, times=self.refused)
        self.news.set()
