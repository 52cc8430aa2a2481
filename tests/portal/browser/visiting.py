"""Somebody who is signed in, without the page for it; and what goes on at a server that really runs."""

from http.cookies import SimpleCookie
from typing import Any, Protocol
from urllib.parse import urlencode

from playwright.sync_api import Page
from tests.acceptance.running import Server, ask
from tests.portal.browser.chromium import Browsing

ADDRESSES = {"web-0": "127.1.0.10", "db": "127.1.0.30"}


class Signs(Protocol):
    """A server, whether a program of its own or in this one."""

    @property
    def operators(self) -> str: ...
    @property
    def token(self) -> str: ...


def visiting(browsing: Browsing, server: Signs, **options: Any) -> Page:
    """A page of the administrator."""
    context = browsing.context(server.operators, **options)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = ask(server.operators, "POST", "/sign-in", urlencode({"token": server.token}).encode(), form)
    assert answer.status == 303, answer
    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert (cookie["samesite"], bool(cookie["httponly"])) == ("strict", True)
    url = f"http://{server.operators}"
    context.add_cookies(
        [{"name": cookie.key, "value": cookie.value, "url": url, "sameSite": "Strict", "httpOnly": True}]
    )
    return context.new_page()


def restart(page: Page, vm: str) -> str:
    """Through the pages; gives the id of the event, whose page is then open."""
    page.goto(f"/act?kind=restart&name={vm}")
    page.get_by_role("button", name=f"Restart {vm}").click()
    page.wait_for_url("**/events/*")
    return page.url.rpartition("/")[2]


def approve(server: Server, vm: str) -> str:
    """As the guest itself; gives the event's id."""
    source = ADDRESSES[vm]
    [found] = [
        event["EventId"]
        for event in server.document(source)["Events"]
        if vm in event["Resources"] and event["EventStatus"] == "Scheduled"
    ]
    assert server.approve(found, source=source).status == 200
    return str(found)


def live_events(server: Server) -> list[str]:
    """Their ids."""
    return [event["id"] for event in server.get("/v1/events")["items"] if event["ended_at"] is None]
