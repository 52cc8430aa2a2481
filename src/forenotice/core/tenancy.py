"""Tenancy follows things, not names: a scope does not inherit from an earlier one with the same key."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from forenotice.core.selecting import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """When scopes with a certain key were removed."""

    ended_at: datetime
    """When it was last removed."""
    before: datetime | None = None
    """When it was removed the time before."""
    is_borne: bool
    """Whether a scope with this key exists now."""

    @property
    def hidden_until(self) -> datetime | None:
        """Only those who see all scopes see what happened up to then. A removed scope stays visible until its key is
        reused."""
        return self.ended_at if self.is_borne else self.before

    def hides(self, moment: datetime) -> bool:
        return self.hidden_until is not None and moment <= self.hidden_until

    def is_meant(self, named_at: datetime) -> bool:
        """Whether a name in a token made at that time means the latest scope with this key."""
        return not self.hides(named_at) and (self.is_borne or named_at <= self.ended_at)


def bound(selector: Selector, named_at: datetime, former: Mapping[str, Former]) -> Selector:
    """Without the names that meant an earlier scope when the token was made; patterns match by name alone."""
    gone = {key for key in selector.named if key in former and not former[key].is_meant(named_at)}
    return replace(selector, wanted=tuple(key for key in selector.wanted if key not in gone)) if gone else selector
