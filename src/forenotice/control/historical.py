"""Which part of the history somebody asks for: in the same words and times wherever they ask."""

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, Field

from forenotice.control.routing import Word
from forenotice.core.journal import OF_TOKENS
from forenotice.core.roles import Access, Need

LAST_POSITION = 2**63 - 1
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]")


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is beyond the calendar: give a time of the years 1 to 9999 in UTC") from None


def _written(value: object) -> object:
    """As in RFC 3339, and not a number, which would be taken for seconds since 1970."""
    if not isinstance(value, str) or not DATE.match(value):
        raise ValueError("is not a time: write one such as 2026-01-31T12:00:00Z")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(_in_utc)]
Position = Annotated[int, Field(ge=0, le=LAST_POSITION)]
_OF_VM = "What names it, and what is of the events and operations that named it."


class Wanted(BaseModel):
    """What an entry must fit; what is not given is not looked at."""

    action: Annotated[Word | None, Field(description="Such as `event.approved`; `event.` means all of them.")] = None
    scope: Annotated[Word | None, Field(description="`group:NAME` or `vm:NAME`.")] = None
    event: Word | None = None
    operation: Word | None = None
    rollout: Word | None = None
    host: Word | None = None
    vm: Annotated[Word | None, Field(description=_OF_VM)] = None
    by: Annotated[Word | None, Field(description="Who did it, such as `operator:admin`.")] = None
    since: Annotated[Moment | None, Field(description="From this moment on.")] = None
    until: Annotated[Moment | None, Field(description="Before this moment.")] = None

    def filters(self, access: Access) -> dict[str, Any]:
        """As the service takes them, without what is for administrators alone."""
        return {
            **{name: getattr(self, name) for name in Wanted.model_fields},
            "operation": self.operation and self.operation.lower(),
            "rollout": self.rollout and self.rollout.lower(),
            "without": None if access.may(Need.ADMINISTER) else OF_TOKENS,
        }
