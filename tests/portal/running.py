"""A portal that really runs, on the demo fleet, and somebody who visits it without a browser."""

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from http.cookies import SimpleCookie
from pathlib import Path
from ssl import SSLContext
from urllib.parse import urlencode

from tests.control.running import DEADLINE, serving
from tests.databases import new_sqlite

from forenotice import demo
from forenotice.clock import CheckedClock, SystemClock
from forenotice.control import app as api
from forenotice.control.metrics import Metrics
from forenotice.control.server import ControlServer
from forenotice.control.stream import HEARTBEAT_SECONDS, Tail
from forenotice.core.timing import Timing
from forenotice.portal import app
from forenotice.portal.pages.sign_in import SignInLink
from forenotice.publication import NullPublisher
from forenotice.runtime import Runtime
from forenotice.service import calls, tokens
from forenotice.service.service import Service
from forenotice.store.opener import open_store

HIDDEN = re.compile(r'name="form_token" value="([^"]*)"')
FIELD = 'name="%s" value="([^"]*)"'
MARKUP = re.compile(r'[<"]')


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def html(self) -> str:
        return self.body.decode()

    @property
    def text(self) -> str:
        """What somebody reads, without tags, and with single spaces."""
        main = re.sub(r"(?s)<(script|style|title)\b.*?</\1>", " ", self.html)
        return " ".join(unescape(re.sub(r"(?s)<[^>]*>", " ", main)).split())

    @property
    def location(self) -> str:
        return self.headers.get("location", "")

    def shows(self, *wanted: str) -> None:
        """Each is in the text; what has tags or attributes in it, in the HTML."""
        missing = [each for each in wanted if each not in (self.html if MARKUP.search(each) else self.text)]
        assert not missing, (missing, self.text)

    def lacks(self, *unwanted: str) -> None:
        """None of them is in the HTML, nor in the text."""
        assert [each for each in unwanted if each in self.html or each in self.text] == []


@dataclass
class Visitor:
    """Keeps its cookies."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        sent = dict(headers or {})
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        try:
            connection.request(method, path, body, sent)
            said = connection.getresponse()
            self._keep(said.headers.get_all("set-cookie") or [])
            return Answer(said.status, {name.lower(): value for name, value in said.getheaders()}, said.read())
        finally:
            connection.close()

    def get(self, path: str, status: int = 200) -> Answer:
        found = self.ask("GET", path, headers={"Accept": "text/html"})
        assert found.status == status, (found.status, found.location, found.text)
        return found

    def post(
        self, path: str, fields: Mapping[str, object] | None = None, *, on: str | None = None, status: int = 303
    ) -> Answer:
        """Send a form, with the hidden fields of the page `on` (the start page where none is given)."""
        found = self.send(path, {**self.hidden(on or "/"), **(fields or {})})
        assert found.status == status, (found.status, found.text)
        return found

    def hidden(self, on: str = "/") -> dict[str, str]:
        """The hidden fields of the forms of a page."""
        page = self.get(on).html
        return {name: found[1] for name in ("form_token", "form_key") if (found := re.search(FIELD % name, page))}

    def send(self, path: str, fields: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Answer:
        """A form as it is."""
        kind = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
        return self.ask("POST", path, urlencode(fields, doseq=True).encode(), kind)

    def _keep(self, set_cookies: list[str]) -> None:
        for text in set_cookies:
            for name, morsel in SimpleCookie(text).items():
                if morsel["max-age"] == "0" or not morsel.value:
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value


@dataclass
class Portal:
    service: Service
    port: int
    token: str
    """The administrator's."""
    once: SignInLink

    @property
    def url(self) -> str:
        return f"http://{self.operators}"

    @property
    def operators(self) -> str:
        """Where it is."""
        return f"127.0.0.1:{self.port}"

    def visitor(self, token: str = "") -> Visitor:
        """Somebody who has signed in; by default the administrator."""
        found = Visitor(self.port)
        answer = found.send("/sign-in", {"token": token or self.token})
        assert answer.status == 303, answer.text
        return found

    def token_of(self, role: str, scopes: str | None = None, name: str = "") -> str:
        made = tokens.create(self.service, calls.SYSTEM, name=name or role, role=role, scopes=scopes)
        return str(made.token)

    def visitor_as(self, role: str, scopes: str | None = None) -> Visitor:
        return self.visitor(self.token_of(role, scopes))


@contextmanager
def running(
    directory: Path,
    *,
    fleet: bool = True,
    clock: CheckedClock | None = None,
    timing: Timing | None = None,
    heartbeat: float = HEARTBEAT_SECONDS,
    polled: app.Polled = lambda _: None,
    guests_at: str | None = None,
    tls: SSLContext | None = None,
    token_rate: float | None = None,
) -> Iterator[Portal]:
    """Nothing happens by itself: no ticker runs."""
    store = open_store(f"sqlite:///{new_sqlite(directory)}", migrate=False)
    service = Service(
        store=store,
        runtime=Runtime(clock=clock or SystemClock()),
        timing=timing or Timing(),
        publisher=NullPublisher(),
        telemetry=None,
        allows_loopback=True,
    )
    metrics = Metrics(events=dict, guests=dict)
    token = str(tokens.create(service, calls.SYSTEM, name="admin").token)
    if fleet:
        demo.make_fleet(service)
    tail, once = Tail(service, heartbeat=heartbeat), SignInLink(token)
    behind = api.Api(service, metrics, tail, token_rate=token_rate)
    served = app.beside(behind, service, once=once, polled=polled, guests_at=guests_at)
    with serving(ControlServer(served, "127.0.0.1", 0, on_stop=tail.close, tls=tls)) as port:
        yield Portal(service, port, token, once)
    store.close()
