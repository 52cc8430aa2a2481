"""Signing in and out, forms of other origins, and the one page that shows a new token."""

import html
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect
from tests.acceptance.running import HOST, Server, ask
from tests.portal.browser.chromium import Browsing
from tests.portal.browser.visiting import live_events, visiting

SIGN_IN = re.compile(r"/sign-in")


def give(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def test_signing_in_leads_to_the_page_and_signing_out_is_for_good(browsing: Browsing, demo: Server) -> None:
    page = browsing.page(demo.operators)
    page.goto("/?span=6h")
    expect(page).to_have_url(SIGN_IN)
    expect(page.get_by_label("Token")).to_be_focused()
    give(page, "fn_wrong")
    expect(page.get_by_role("alert")).to_contain_text("not a valid token")
    page.goto("/?span=6h")
    expect(page).to_have_url(SIGN_IN)
    give(page, demo.token)
    expect(page).to_have_url(f"http://{demo.operators}/?span=6h")
    [kept] = page.context.cookies()
    assert (kept["httpOnly"], kept["sameSite"], page.evaluate("document.cookie")) == (True, "Strict", "")
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(SIGN_IN)
    # Somebody has kept the cookie.
    page.context.add_cookies([{"name": kept["name"], "value": kept["value"], "url": f"http://{demo.operators}"}])
    page.goto("/")
    expect(page).to_have_url(SIGN_IN)


# Another port of the same host is the same site: the cookie comes along, and the form even has the right token.
@pytest.mark.parametrize("host", [HOST, "127.34.0.1"], ids=["ours", "another"])
def test_a_form_of_another_origin_is_refused(browsing: Browsing, demo: Server, host: str) -> None:
    page = visiting(browsing, demo)
    page.goto("/act?kind=restart&name=db")
    fields = page.eval_on_selector('form[action="/act"][method=post]', "form => Object.fromEntries(new FormData(form))")
    assert fields["form_token"]
    with _elsewhere(host, f"http://{demo.operators}/act", fields) as place:
        browsing.places.add(place)
        page.goto(f"http://{place}/")
        with page.expect_navigation() as sent:
            page.get_by_role("button").click()
        assert sent.value.url == f"http://{demo.operators}/act"
        assert sent.value.status in (401, 403)
        assert bool(sent.value.request.header_value("cookie")) == (host == HOST)
    assert live_events(demo) == []
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


def make_token(page: Page, name: str) -> str:
    page.goto("/tokens")
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Make the token").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"The token {name} is made")
    return page.get_by_label("The token").input_value()


def test_a_new_token_is_copied_by_a_button_works_and_is_revoked(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo, permissions=["clipboard-read", "clipboard-write"])
    secret = make_token(page, "copied")
    expect(page.get_by_label("The token")).to_be_focused()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_text("Copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == secret
    bearer = {"Authorization": f"Bearer {secret}"}
    assert ask(demo.operators, "GET", "/v1/vms", headers=bearer).status == 200
    page.get_by_role("link", name="To all tokens").click()
    row = page.get_by_role("row", name=re.compile("^copied"))
    expect(row).to_contain_text("viewer")
    assert secret not in page.content()
    page.get_by_role("link", name="Revoke copied").click()
    page.get_by_role("button", name="Revoke copied").click()
    expect(row).to_contain_text("revoked")
    assert ask(demo.operators, "GET", "/v1/vms", headers=bearer).status == 401


def test_without_scripts_there_is_no_button_that_would_do_nothing(browsing: Browsing, demo: Server) -> None:
    page = visiting(browsing, demo, java_script_enabled=False)
    assert make_token(page, "by-hand").startswith("fn_")
    expect(page.get_by_role("button", name="Copy")).to_be_hidden()
    expect(page.get_by_text("Select all of the field (Ctrl-A) and copy it (Ctrl-C).")).to_be_visible()
