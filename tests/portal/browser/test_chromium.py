"""The browser of these tests notices what no page may do."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.portal.browser.chromium import ZONE, Browsing

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src http:"
PAGES = {
    "/fine": "<p>fine</p>",
    "/styled": "<p style='color: red'>styled</p>",
    "/inline": "<p>inline</p><script>alert(1)</script>",
    "/named": "<p>named</p><img alt='' src='http://example.org/x.png'>",
    "/numbered": "<p>numbered</p><img alt='' src='http://192.0.2.1/x.png'>",
    "/thrown": "<p>thrown</p><script src='/throw.js'></script>",
    "/throw.js": "nobody()",
    "/lost": "<p>lost</p><script src='/nowhere.js'></script>",
}


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = PAGES.get(self.path)
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "text/html")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write((found or "<p>not here</p>").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    with ThreadingHTTPServer(("127.33.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.33.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_what_a_page_may_not_do_is_noticed(browsing: Browsing, place: str) -> None:
    page = browsing.page(place)
    for path, fault in {
        "/fine": "",
        "/missing": "",
        "/styled": "inline style violates",
        "/inline": "inline script violates",
        "/named": "fetched from elsewhere: http://example.org/x.png",
        "/numbered": "fetched from elsewhere: http://192.0.2.1/x.png",
        "/thrown": "nobody is not defined",
        "/lost": f"404 for http://{place}/nowhere.js",
    }.items():
        page.goto(path)
        assert [path for found in browsing.faults if fault not in found] == [], browsing.faults
        assert len(browsing.faults) == bool(fault), (path, browsing.faults)
        browsing.faults.clear()
    assert page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone") == ZONE
