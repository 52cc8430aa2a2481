"""When planned maintenance of some VMs may start: all their windows at once, and those of its rollout."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from forenotice.core import errors, windows
from forenotice.core.draft import Draft, names
from forenotice.core.timing import whole_second_up
from forenotice.core.windows import Window

LEAD = timedelta(minutes=1)
"""Guests are told this much earlier than the notice requires, so that a late tick does not miss a short window."""


@dataclass(frozen=True, slots=True)
class Slot:
    """When guests are told, and the NotBefore that they are told."""

    told_at: datetime
    not_before: datetime


def earliest(draft: Draft, notice: timedelta) -> datetime:
    """NotBefore of what is announced now, if no window is in the way."""
    try:
        return whole_second_up(draft.now + draft.allowance + draft.timing.shortened(notice))
    except OverflowError:
        raise errors.RefusedError("that much notice is beyond the calendar: give less") from None


def slot(draft: Draft, wanted: Iterable[tuple[Window, ...]], notice: timedelta) -> Slot | None:
    """When to tell guests of what must wait for windows; None: these windows are never open together."""
    opening = windows.next_open(wanted, earliest(draft, notice))
    if opening is None:
        return None
    return Slot(told_at(opening, draft.timing.shortened(notice), draft.now), opening)


def told_at(opening: datetime, notice: timedelta, now: datetime) -> datetime:
    """When guests are told of what can start at `opening`; `notice` is the real one, after --speed."""
    return max(opening - notice - LEAD, now)


def demands(draft: Draft, vms: Iterable[str], rollout: str | None) -> dict[str, tuple[Window, ...]]:
    """Who asks for which windows: scopes by their keys, and the rollout."""
    asked = of_scopes(draft, vms)
    own = draft.rollout(rollout).options.windows if rollout is not None else ()
    return {**asked, rollout: own} if rollout is not None and own else asked


def of_scopes(draft: Draft, vms: Iterable[str]) -> dict[str, tuple[Window, ...]]:
    asked = {key: draft.scope(key).policy.windows for key in dict.fromkeys(draft.vm(name).scope for name in vms)}
    return {key: wanted for key, wanted in asked.items() if wanted}


def first_start(draft: Draft, vms: Iterable[str], rollout: str | None, earliest: datetime) -> datetime:
    """The first moment from `earliest` on at which everybody allows it."""
    asked = demands(draft, vms, rollout)
    opening = windows.next_open(asked.values(), earliest)
    if opening is None:
        raise never(asked)
    return opening


def never(asked: Iterable[str]) -> errors.ConflictError:
    who = [key.partition(":")[2] or "the rollout" for key in asked]
    return errors.ConflictError(
        f"the windows of {names(who)} are never open together: give them hours in common", who=who
    )
