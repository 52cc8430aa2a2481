"""Forms as they are sent: only from our own pages (CSRF), read within bounds, as the API would take them."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, ImmutableMultiDict
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
REFUSED = "this form was not sent from a page of this console: open the page again, and try once more"


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


def lines(text: str) -> list[str]:
    """What stands on each line of a text, without empty ones."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def csrf_token(secret: str) -> str:
    """What forms carry for the session with this secret, which cannot be computed from it."""
    return hmac.new(secret.encode(), b"form", hashlib.sha256).hexdigest()[:32]


def require_own(headers: Headers, given: str, expected: str) -> None:
    require_same_origin(headers)
    if not hmac.compare_digest(given.encode(), expected.encode()):
        raise errors.ForbiddenError(REFUSED)


def netloc(address: str) -> str:
    """Host and port; empty where there is neither."""
    try:
        return urlsplit(address).netloc.lower()
    except ValueError:
        return ""


def require_same_origin(headers: Headers) -> None:
    """By the headers in which every current browser says where a form comes from."""
    site = headers.get("sec-fetch-site", "same-origin")
    origin = headers.get("origin")
    elsewhere = origin is not None and netloc(origin) != headers.get("host", "").lower()
    if site not in ("same-origin", "none") or elsewhere:
        raise errors.ForbiddenError(REFUSED)
