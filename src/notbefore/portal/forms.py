"""Forms as they are sent: read within bounds, and asked for what the API would take."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from notbefore.control import guarding
from notbefore.control.errors import sentence
from notbefore.core import errors

M = TypeVar("M", bound=BaseModel)
Fields = ImmutableMultiDict[str, str]

LARGEST = 256 * 1024
MOST_FIELDS = 200
NO_FIELDS: Fields = ImmutableMultiDict()


async def read(request: Request) -> tuple[bytes, Fields]:
    """The body, and its fields."""
    body = await guarding.read(request.scope["headers"], request.receive, LARGEST)
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise errors.RefusedError("the form cannot be read: send it from a page of this console") from None
    return body, ImmutableMultiDict(fields)


def asked(model: type[M], values: Mapping[str, Any]) -> M:
    """What the API would take in the same words."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        found = [{**each, "loc": ("form", *each["loc"])} for each in error.errors()]
        raise errors.RefusedError(sentence(found)) from None
