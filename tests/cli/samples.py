"""Views for tests: the examples of the API's description, changed where it matters."""

from typing import Any, TypeVar

import msgspec

from forenotice.views import fleet, history, maintenance, rollouts
from forenotice.views.base import EXAMPLES

S = TypeVar("S", bound=msgspec.Struct)

__all__ = ["fleet", "history", "maintenance", "rollouts", "sample"]


def sample(kind: type[S], **changes: Any) -> S:
    found = msgspec.structs.replace(EXAMPLES[kind], **changes)
    assert isinstance(found, kind)
    return found


def encoded(kind: type[S], **changes: Any) -> bytes:
    return msgspec.json.encode(sample(kind, **changes))
