"""Tenancy follows things, not names: what a former bearer of a name left behind is not its successor's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from forenotice.core.selecting import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """What is known of a scope's key that was removed at least once."""

    ended_at: datetime
    """When it was last removed."""
    before: datetime | None = None
    """When it was removed the time before."""
    is_borne: bool
    """Whether it exists again."""

    @property
    def hidden_until(self) -> datetime | None:
        """What happened until then is told only to those who see all scopes. What is gone is told until it has a
        successor."""
        return self.ended_at if self.is_borne else self.before

    def hides(self, moment: datetime) -> bool:
        return self.hidden_until is not None and moment <= self.hidden_until

    def is_meant(self, named_at: datetime) -> bool:
        """Whether a name that was written down then means the last bearer: the one of that time, or the next."""
        return not self.hides(named_at) and (self.is_borne or named_at <= self.ended_at)


def bound(selector: Selector, named_at: datetime, former: Mapping[str, Former]) -> Selector:
    """Without the names that meant somebody else when they were written down; patterns go by the name alone."""
    gone = {key for key in selector.named if key in former and not former[key].is_meant(named_at)}
    return replace(selector, wanted=tuple(key for key in selector.wanted if key not in gone)) if gone else selector
