"""A long wait: a poll that is answered when the document changes, or when its time is up."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from forenotice.metadata import answers
from forenotice.metadata.answers import Answer
from forenotice.metadata.board import Guest
from forenotice.metadata.gates import Poll

if TYPE_CHECKING:
    from forenotice.metadata.desk import Desk


class Wait:
    """Held by a connection; `answer` is called once, unless it is cancelled before."""

    __slots__ = ("_answer", "_desk", "_guest", "_notice", "_poll", "_timer", "_who")

    def __init__(
        self,
        desk: "Desk",
        poll: Poll,
        guest: Guest,
        who: Callable[[], Guest | None],
        answer: Callable[[Answer], None],
        seconds: float,
    ) -> None:
        assert guest.notice is not None
        self._desk = desk
        self._poll = poll
        self._guest = guest
        self._who = who
        self._answer = answer
        self._notice = guest.notice
        self._notice.wait(self)
        self._timer = desk.loop.call_later(seconds, self.end)
        desk.counters.waits += 1
        desk.counters.waiting += 1

    def look_again(self) -> None:
        guest = self._who()
        if guest is None or guest.notice is not self._notice or self._condition_fails():
            self._finish(guest)

    def end(self) -> None:
        """Time is up, the server stops, or the client sends no more."""
        self._finish(self._who())

    def cancel(self) -> None:
        self._timer.cancel()
        self._notice.leave(self)
        self._desk.counters.waiting -= 1

    def _condition_fails(self) -> bool:
        assert self._poll.condition is not None
        return not self._desk.is_unchanged(self._poll.condition, self._notice)

    def _finish(self, guest: Guest | None) -> None:
        self.cancel()
        if guest is None or guest.notice is None:
            self._answer(answers.UNKNOWN_CALLER)
        else:
            self._answer(self._desk.show(self._poll, guest.notice))
