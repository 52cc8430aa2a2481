"""`webhook`: one HTTP request for each phase."""

import base64
import contextlib
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from forenotice import __version__, secretfiles
from forenotice.agent import handlers
from forenotice.agent.handlers import Outcome, Work, facts, tables
from forenotice.client.http import Connection, ProtocolError, Response
from forenotice.core import errors
from forenotice.programs import process

if TYPE_CHECKING:
    import ssl

JSON = "application/json"
LARGEST_ANSWER = 1024 * 1024
LARGEST_SECRET = 64 * 1024
LOOK_TIMEOUT = 5.0


class UnusableError(errors.RefusedError):
    """A file that the webhook needs cannot be used."""

    code = "webhook"

    def __init__(self, said: str) -> None:
        super().__init__(facts.plain(said))


class Webhook:
    def __init__(self, config: tables.Webhook) -> None:
        self._config = config
        self._url = urlsplit(config.url)
        self._port = self._url.port or (443 if self._url.scheme == "https" else 80)
        self._at = facts.plain(f"{self._url.scheme}://{self._url.netloc.rpartition('@')[2]}")
        """All that is told of the URL: the rest of it may be a secret."""

    def run(self, work: Work) -> Outcome:
        until = time.monotonic() + work.seconds_left
        try:
            headers, body = self._headers(), self._body(work)
            with contextlib.closing(Connection(self._host, self._port, tls=self._tls())) as connection:
                answer = handlers.within(
                    lambda: connection.request(
                        self._config.method,
                        _target(self._url),
                        headers,
                        body,
                        timeout=until - time.monotonic(),
                        largest=LARGEST_ANSWER,
                    ),
                    until=until,
                    stop=work.stop,
                    interrupt=connection.close,
                )
        except (UnusableError, handlers.StoppedError) as error:
            return Outcome(ok=False, said=error.message)
        except (OSError, ProtocolError) as error:
            return Outcome(ok=False, said=f"no answer from {self._at}: {process.of_error(error)}")
        return self._judge(answer)

    def rehearse(self) -> Outcome:
        try:
            self._headers()
            self._look()
        except UnusableError as error:
            return Outcome(ok=False, said=error.message)
        except (OSError, UnicodeError) as error:
            return Outcome(ok=False, said=f"cannot connect to {self._at}: {process.of_error(error)}")
        return Outcome(ok=True, said=f"would send {self._config.method} to {self._at}, which can be reached")

    @property
    def _host(self) -> str:
        return self._url.hostname or ""

    @property
    def _content_type(self) -> str:
        return next((value for name, value in self._config.headers.items() if name.lower() == "content-type"), JSON)

    def _headers(self) -> Mapping[str, str]:
        headers = {"User-Agent": f"forenotice/{__version__}", "Content-Type": self._content_type}
        if self._url.username is not None:
            pair = f"{unquote(self._url.username)}:{unquote(self._url.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        secrets = {name: _secret(name, path) for name, path in self._config.header_files.items()}
        for name, value in {**self._config.headers, **secrets}.items():
            # A name in another case is the same header.
            headers = {known: kept for known, kept in headers.items() if known.lower() != name.lower()}
            headers[name] = value
        return headers

    def _body(self, work: Work) -> bytes | None:
        if self._config.body:
            escape = facts.escape_for(self._content_type)
            return facts.fill(self._config.body, facts.environment(work), escape).encode()
        return None if self._config.method == "GET" else facts.encoded(work)

    def _tls(self) -> "ssl.SSLContext | None":
        if self._url.scheme != "https":
            return None
        # Only now: it takes more memory than the rest of the agent.
        import ssl

        try:
            return ssl.create_default_context(cafile=self._config.ca_file or None)
        except OSError as error:
            raise UnusableError(f"ca_file {self._config.ca_file} cannot be used: {process.of_error(error)}") from None

    def _look(self) -> None:
        """As far as a request would go, without sending one."""
        tls = self._tls()
        with socket.create_connection((self._host, self._port), timeout=LOOK_TIMEOUT) as connected:
            if tls is not None:
                tls.wrap_socket(connected, server_hostname=self._host).close()

    def _judge(self, answer: Response) -> Outcome:
        reason = facts.plain(answer.reason)[: process.LONGEST].strip()
        said = f"{self._at} answered {answer.status} {reason}".rstrip()
        if 300 <= answer.status < 400:
            said += "; redirects are not followed, so give the URL it leads to"
        return Outcome(ok=200 <= answer.status < 300, said=said)


def _target(url: SplitResult) -> str:
    return (url.path or "/") + (f"?{url.query}" if url.query else "")


def _secret(header: str, path: str) -> str:
    try:
        content = secretfiles.read(Path(path), f"{header} in header_files:")
    except errors.RefusedError as error:
        raise UnusableError(error.message) from None
    value = content.decode(errors="replace").strip()
    if not value or not value.isascii() or not value.isprintable() or len(content) > LARGEST_SECRET:
        raise UnusableError(f"{header} in header_files: {path} must hold one line of plain ASCII")
    return value
