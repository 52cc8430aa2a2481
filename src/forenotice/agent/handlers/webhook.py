"""`webhook`: one HTTP request for each phase."""

import base64
import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from forenotice import __version__, secret_files
from forenotice.agent.handlers import HandlerError, Work, facts, tables, within
from forenotice.client.http import Connection, ProtocolError
from forenotice.core import errors
from forenotice.programs.process import LONGEST_REASON, plain, reason
from forenotice.runtime import Runtime

if TYPE_CHECKING:
    import ssl

JSON = "application/json"
LARGEST_RESPONSE = 1024 * 1024
LARGEST_SECRET = 64 * 1024
REHEARSAL_SECONDS = 5.0


class Webhook:
    def __init__(self, config: tables.Webhook, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime
        self._url = urlsplit(config.url)
        self._host = self._url.hostname or ""
        self._port = self._url.port or (443 if self._url.scheme == "https" else 80)
        self._place = plain(f"{self._url.scheme}://{self._url.netloc.rpartition('@')[2]}")
        """All that is shown of the URL: the rest of it may be a secret."""
        self._content_type = next((v for name, v in config.headers.items() if name.lower() == "content-type"), JSON)

    def run(self, work: Work) -> str:
        until = self._runtime.monotonic() + work.seconds_left
        target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        try:
            headers, body = self._headers(), self._body(work)
            with contextlib.closing(Connection(self._host, self._port, tls=self._tls())) as connection:
                response = within(
                    lambda: connection.request(
                        self._config.method,
                        target,
                        headers,
                        body,
                        timeout=until - self._runtime.monotonic(),
                        largest=LARGEST_RESPONSE,
                    ),
                    self._runtime,
                    until=until,
                    stop=work.stop,
                    interrupt=connection.close,
                )
        except (OSError, ProtocolError) as error:
            raise HandlerError(f"no answer from {self._place}: {reason(error)}") from None
        phrase = plain(response.reason)[:LONGEST_REASON].strip()
        message = f"{self._place} answered {response.status} {phrase}".rstrip()
        if 300 <= response.status < 400:
            message += "; redirects are not followed, so give the URL it leads to"
        if not 200 <= response.status < 300:
            raise HandlerError(message)
        return message

    def rehearse(self) -> str:
        try:
            self._headers()
            tls = self._tls()
            with socket.create_connection((self._host, self._port), timeout=REHEARSAL_SECONDS) as connected:
                if tls is not None:
                    tls.wrap_socket(connected, server_hostname=self._host).close()
        except (OSError, UnicodeError) as error:
            raise HandlerError(f"cannot connect to {self._place}: {reason(error)}") from None
        return f"would send {self._config.method} to {self._place}, which can be reached"

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
        # Only here: it takes more memory than the rest of the agent.
        import ssl

        try:
            return ssl.create_default_context(cafile=self._config.ca_file or None)
        except OSError as error:
            raise HandlerError(plain(f"ca_file {self._config.ca_file} cannot be used: {reason(error)}")) from None


def _secret(header: str, path: str) -> str:
    try:
        content = secret_files.read(Path(path), f"{header} in header_files:")
    except errors.RefusedError as error:
        raise HandlerError(plain(error.message)) from None
    value = content.decode(errors="replace").strip()
    if not value or not value.isascii() or not value.isprintable() or len(content) > LARGEST_SECRET:
        raise HandlerError(plain(f"{header} in header_files: {path} must hold one line of plain ASCII"))
    return value
