"""Somebody who is signed in, without the page for it."""

from http.cookies import SimpleCookie
from typing import Any, Protocol
from urllib.parse import urlencode

from playwright.sync_api import BrowserContext, Page
from tests.acceptance.running import Server, ask
from tests.portal.browser.chromium import Browsing


class Signs(Protocol):
    """A server, whether a program of its own or in this one."""

    @property
    def operators(self) -> str: ...
    @property
    def token(self) -> str: ...


def visiting(browsing: Browsing, server: Signs, token: str = "", **options: Any) -> Page:
    """A page of whoever has the token; without one, of the administrator."""
    context = browsing.context(server.operators, **options)
    sign_in(context, server, token or server.token)
    return context.new_page()


def sign_in(context: BrowserContext, server: Signs, token: str) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    said = ask(server.operators, "POST", "/sign-in", urlencode({"token": token}).encode(), form)
    assert said.status == 303, said
    (cookie,) = SimpleCookie(said.headers["set-cookie"]).values()
    assert cookie["samesite"] == "strict"
    context.add_cookies(
        [
            {
                "name": cookie.key,
                "value": cookie.value,
                "url": f"http://{server.operators}",
                "sameSite": "Strict",
                "httpOnly": bool(cookie["httponly"]),
            }
        ]
    )


def tenant_of(server: Server, scopes: str, name: str) -> str:
    """Its token."""
    return str(server.post("/v1/tokens", {"name": name, "role": "tenant", "scopes": scopes})["token"])


def restart(page: Page, vm: str) -> str:
    """Through the pages; gives the id of the event, whose page is then open."""
    page.goto(f"/act?kind=restart&name={vm}")
    page.get_by_role("button", name=f"Restart {vm}").click()
    page.wait_for_url("**/events/*")
    return page.url.rpartition("/")[2]
