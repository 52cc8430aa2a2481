"""When planned maintenance of some VMs may start: all their windows at once, and those of its rollout."""

from collections.abc import Iterable
from datetime import datetime

from forenotice.core import errors, windows
from forenotice.core.draft import Draft, names
from forenotice.core.windows import Window


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
