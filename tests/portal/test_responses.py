"""What every answer says to browsers, word for word: a policy with one word more is another one."""

import http.client
import ssl
from pathlib import Path
from urllib.parse import urlencode

from tests.control import certificates
from tests.control.running import DEADLINE
from tests.emulator.controlled import controlled
from tests.portal.running import HIDDEN, Portal, Visitor, running

from forenotice.control import tls

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
OTHERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def says_all(visitor: Visitor, path: str, status: int) -> None:
    headers = visitor.get(path, status).headers
    assert headers["content-security-policy"] == POLICY, path
    assert {name: headers.get(name) for name in OTHERS} == OTHERS, path


def test_pages_of_the_portal(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    for path, status in (("/", 200), ("/?span=2h", 400), ("/vms/nobody", 404), ("/nowhere", 404), ("/live", 400)):
        says_all(visitor, path, status)
    for path, status in (("/", 303), ("/sign-in", 200), ("/sign-in?once=x", 401)):
        says_all(Visitor(unchanged.port), path, status)


def test_pages_of_the_emulator() -> None:
    with controlled() as emulator:
        visitor = Visitor(int(emulator.control.rpartition(":")[2]))
        for path, status in (("/", 200), ("/nowhere", 404)):
            says_all(visitor, path, status)


def test_over_tls_the_session_never_travels_without_it(tmp_path: Path) -> None:
    made = certificates.make(tmp_path, "127.0.0.1")
    with running(tmp_path, tls=tls.context(made.file, made.key)) as portal:
        trusting = ssl.create_default_context(cafile=made.ca)
        connection = http.client.HTTPSConnection("127.0.0.1", portal.port, timeout=DEADLINE, context=trusting)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/sign-in", urlencode({"token": portal.token}), form)
        said = connection.getresponse()
        cookie = said.headers["set-cookie"]
        said.read()
        connection.request("GET", "/", headers={"Cookie": cookie.partition(";")[0]})
        page = connection.getresponse()
        token = HIDDEN.search(page.read().decode())
        connection.request("GET", "/v1/hosts", headers={"Authorization": f"Bearer {portal.token}"})
        hosts = connection.getresponse()
        hosts.read()
        assert token is not None
        sent = {**form, "Cookie": cookie.partition(";")[0]}
        connection.request("POST", "/sign-out", urlencode({"form_token": token[1]}), sent)
        left = connection.getresponse()
        connection.close()
    assert page.status == 200
    assert "Secure" in left.headers["set-cookie"], "a browser would not forget it"
    assert [answer.headers["strict-transport-security"] for answer in (said, page, hosts)] == ["max-age=31536000"] * 3
    assert said.status == 303
    assert cookie.startswith(f"__Host-forenotice-session-{portal.port}=")
    attributes = set(cookie.split("; "))
    assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= attributes
    assert not any(attribute.startswith("Domain") for attribute in attributes)


def test_without_tls_browsers_keep_the_session_too(unchanged: Portal) -> None:
    said = Visitor(unchanged.port).send("/sign-in", {"token": unchanged.token})
    attributes = set(said.headers["set-cookie"].split("; "))
    assert {"HttpOnly", "SameSite=strict"} <= attributes
    assert "Secure" not in attributes
    assert said.headers["set-cookie"].startswith(f"forenotice-session-{unchanged.port}=")
    assert "strict-transport-security" not in said.headers
