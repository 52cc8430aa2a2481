"""Forms that only our own pages can send."""

import hashlib
import hmac
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from forenotice.core import errors

REFUSED = "this form was not sent from a page of this console: open the page again, and try once more"


def token_of(secret: str) -> str:
    """What forms carry for whoever has this secret; it tells nothing of it."""
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
    """Where the browser says from where it was sent; every current one does."""
    site = headers.get("sec-fetch-site", "same-origin")
    origin = headers.get("origin")
    elsewhere = origin is not None and netloc(origin) != headers.get("host", "").lower()
    if site not in ("same-origin", "none") or elsewhere:
        raise errors.ForbiddenError(REFUSED)
