"""Forms as they are sent: read within bounds, and asked for what the API would take."""

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from forenotice.control import requests
from forenotice.core import errors
from forenotice.views import base

M = TypeVar("M", bound=base.Request)
Fields = ImmutableMultiDict[str, str]

LARGEST = 256 * 1024
MOST_FIELDS = 200
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
NO_FIELDS: Fields = ImmutableMultiDict()


async def read(request: Request) -> tuple[bytes, Fields]:
    """The body, and its fields."""
    body = await requests.read(request.scope["headers"], request.receive, LARGEST)
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise errors.RefusedError("the form cannot be read: send it from a page of this console") from None
    return body, ImmutableMultiDict(fields)


def require_sound(path: Mapping[str, str], *given: Fields) -> None:
    """No control characters but ends of lines, wherever they come from: databases and logs take them badly."""
    texts = chain(path.values(), *((text for _, text in fields.multi_items()) for fields in given))
    if any(map(CONTROL.search, texts)):
        raise errors.RefusedError("what was sent holds control characters: leave them out")


def asked(model: type[M], values: Mapping[str, Any]) -> M:
    """What the API would take in the same words."""
    return base.convert(dict(values), model, "the form", strict=False)


def number(text: str) -> int | float | str | None:
    """None where nothing stands; what is no number stays as it is, and the model says what it should be."""
    if not text:
        return None
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
