"""Our cookies: their names, and the one by which the next page tells once what was done."""

from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

SAID_SECONDS = 60
LONGEST_SAID = 1000


def name(noun: str, request: Request) -> str:
    """Cookies know no ports, but several of us may run on one machine."""
    return f"forenotice-{noun}-{request.url.port or request.url.scheme}"


def said(request: Request) -> str:
    return unquote(request.cookies.get(name("said", request), ""))


def say(answer: Response, cookie: str, text: str) -> None:
    answer.set_cookie(cookie, quote(text[:LONGEST_SAID]), max_age=SAID_SECONDS, httponly=True, samesite="strict")


def forget(answer: Response, cookie: str) -> None:
    answer.delete_cookie(cookie, httponly=True, samesite="strict")
