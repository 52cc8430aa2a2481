"""Our cookies: their names, and the one by which the next page tells once what was done."""

from collections.abc import Mapping
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

SAID_SECONDS = 60
LONGEST_SAID = 1000


SECURED = "__Host-"
"""Browsers accept a cookie with this prefix only over TLS and only from this very host, not from subdomains."""


def name(noun: str, request: Request) -> str:
    """Cookies know no ports, but several of us may run on one machine."""
    secured = SECURED if request.url.scheme == "https" else ""
    return f"{secured}forenotice-{noun}-{request.url.port or request.url.scheme}"


def said(request: Request) -> str:
    return unquote(request.cookies.get(name("said", request), ""))


def say(answer: Response, cookie: str, text: str) -> None:
    keep(answer, cookie, quote(text[:LONGEST_SAID]), SAID_SECONDS)


def keep(answer: Response, cookie: str, value: str, seconds: int) -> None:
    secure = cookie.startswith(SECURED)
    answer.set_cookie(cookie, value, max_age=seconds, secure=secure, httponly=True, samesite="strict")


def forget(answer: Response, cookie: str) -> None:
    answer.delete_cookie(cookie, secure=cookie.startswith(SECURED), httponly=True, samesite="strict")


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
