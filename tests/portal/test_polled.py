"""What the endpoint knows of polls reaches the page of a VM, in the program itself."""

import re
from pathlib import Path
from urllib.parse import urlencode

from tests.acceptance.running import Server, ask, serving
from tests.portal.running import Answer

POLLED = re.compile(r"Last polled 20\S+ \S+ UTC \( (now|\d+ s ago) \)")


def test_the_page_of_a_vm_tells_when_it_last_polled(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as server:
        cookie = sign_in(server)
        assert "Last polled nobody of its group has polled" in page(server, cookie, "web-1")
        server.document("127.1.0.11")
        assert POLLED.search(page(server, cookie, "web-1"))
        assert not POLLED.search(page(server, cookie, "web-2"))


def sign_in(server: Server) -> str:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    said = ask(server.operators, "POST", "/sign-in", urlencode({"token": server.token}).encode(), form)
    assert said.status == 303, said
    return said.headers["set-cookie"].partition(";")[0]


def page(server: Server, cookie: str, vm: str) -> str:
    said = ask(server.operators, "GET", f"/vms/{vm}", None, {"Accept": "text/html", "Cookie": cookie})
    assert said.status == 200, said
    return Answer(said.status, said.headers, said.body).text
