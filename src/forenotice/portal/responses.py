"""Our cookies (among them the message that the next page shows once) and our headers."""

from collections.abc import Mapping
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

MESSAGE_SECONDS = 60
LONGEST_MESSAGE = 1000


SECURED = "__Host-"
"""Browsers accept a cookie with this prefix only over TLS and only from this very host, not from subdomains."""


def name(noun: str, request: Request) -> str:
    """Cookies know no ports, but several of us may run on one machine."""
    secured = SECURED if request.url.scheme == "https" else ""
    return f"{secured}forenotice-{noun}-{request.url.port or request.url.scheme}"


def message(request: Request) -> str:
    return unquote(request.cookies.get(name("message", request), ""))


def set_message(response: Response, cookie: str, text: str) -> None:
    set_cookie(response, cookie, quote(text[:LONGEST_MESSAGE]), MESSAGE_SECONDS)


def set_cookie(response: Response, cookie: str, value: str, seconds: int) -> None:
    secure = cookie.startswith(SECURED)
    response.set_cookie(cookie, value, max_age=seconds, secure=secure, httponly=True, samesite="strict")


def delete_cookie(response: Response, cookie: str) -> None:
    response.delete_cookie(cookie, secure=cookie.startswith(SECURED), httponly=True, samesite="strict")


POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
