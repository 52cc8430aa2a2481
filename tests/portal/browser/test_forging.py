"""Requests that somebody else made up are refused, whoever's cookie comes with them."""

import html
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect
from tests.acceptance.running import HOST, Server
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.going_on import live_events
from tests.portal.browser.visiting import visiting

FORM = 'form[action="/act"][method=post]'
DEED = "/act?kind=restart&name=db"


@pytest.mark.parametrize("forge", ["field => field.value = field.value.replace(/./, 'z')", "field => field.remove()"])
def test_a_form_without_the_right_token_is_refused(browsing: Browsing, demo: Server, forge: str) -> None:
    page = visiting(browsing, demo)
    page.goto(DEED)
    page.eval_on_selector(f"{FORM} [name=form_token]", forge)
    with page.expect_navigation() as sent:
        page.get_by_role("button", name="Restart db").click()
    assert sent.value.status == 403
    expect(page.get_by_role("main")).to_contain_text("not sent from a page of this console")
    assert live_events(demo) == []


# Another port of the same host is the same site: the cookie comes along, and the form even has the right token.
@pytest.mark.parametrize("host", [HOST, "127.34.0.1"], ids=["ours", "another"])
def test_a_form_of_another_origin_is_refused(browsing: Browsing, demo: Server, host: str) -> None:
    page = visiting(browsing, demo)
    page.goto(DEED)
    fields = page.eval_on_selector(FORM, "form => Object.fromEntries(new FormData(form))")
    assert fields["form_token"]
    with _elsewhere(host, f"http://{demo.operators}/act", fields) as place:
        browsing.places.add(place)
        page.goto(f"http://{place}/")
        with page.expect_navigation() as sent:
            page.get_by_role("button").click()
        assert sent.value.url == f"http://{demo.operators}/act"
        assert sent.value.status in (401, 403)
        cookie = sent.value.request.header_value("cookie")
        assert bool(cookie) == (host == HOST)
    assert live_events(demo) == []
    _is_signed_in(page)


def _is_signed_in(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


@contextmanager
def _elsewhere(host: str, action: str, fields: Mapping[str, str]) -> Iterator[str]:
    hidden = "".join(
        f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">'
        for name, value in fields.items()
    )
    form = f'<form method="post" action="{action}">{hidden}<button>Win</button></form>'
    body = f'<!doctype html><link rel="icon" href="data:,">{form}'

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"{host}:{server.server_port}"
        server.shutdown()
        thread.join()
