"""The REST API as a command uses it: one request, one response or one clear error."""

import difflib
import http.client
import io
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from forenotice import __version__, control_socket, views
from forenotice.cli import target
from forenotice.cli.commands import UsageError
from forenotice.core import errors
from forenotice.settings import OperatorSettings

TIMEOUT = 60
PAGE = 500
PIECE = 64 * 1024
CHANGING = frozenset({"POST", "PATCH", "DELETE"})
ADVICE_SECONDS = 2
"""Seconds that looking for advice on an error may take."""
MOST_NAMES = 1000
LISTS = {"vm": "vms", "host": "hosts", "group": "groups"}
"""What has names that people mistype, and where the API lists them."""
COMMANDS = {
    "vm": "vm list",
    "host": "host list",
    "hosts": "host list",
    "group": "group list",
    "event": "event list --all",
    "operation": "operation list --all",
    "rollout": "rollout list --all",
    "subscription": "subscription list",
    "token": "token list",
}
"""What lists the things that a 404 speaks of."""

T = TypeVar("T")


class Named(msgspec.Struct):
    """Whatever has a name, or an id."""

    name: str = ""
    id: str = ""


class RefusalError(errors.ForenoticeError):
    """The control plane refused."""

    code = "refused_by_service"

    def __init__(self, status: int, message: str, **facts: object) -> None:
        super().__init__(message, **facts)
        self.status = status

    def advised(self, advice: str) -> "RefusalError":
        """With this advice in place of the service's."""
        said = self.message.rstrip(".").partition(": see `")[0]
        return RefusalError(self.status, f"{said}: {advice}", **self.facts) if advice else self


class LostError(errors.UnavailableError):
    """The connection was lost before the response came."""


class BusyError(errors.UnavailableError):
    """The token has sent too many requests: this one was not processed."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
        """When to try again."""


class _Body(io.BytesIO):
    """A body that reports how much of it has been sent."""

    def __init__(self, data: bytes, sent: Callable[[int], None]) -> None:
        super().__init__(data)
        self.size = len(data)
        self._sent = sent

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size)
        if chunk:
            self._sent(self.tell())
        return chunk


class Request(NamedTuple):
    method: str
    target: str
    body: bytes | _Body | None
    headers: dict[str, str]


class Rest:
    """A control plane that needs no token. Redirects are not followed: they would carry a token elsewhere."""

    def __init__(
        self,
        url: str,
        program: str,
        timeout: float = TIMEOUT,
        trusted: ssl.SSLContext | None = None,
        directory: Path | None = None,
    ) -> None:
        """`program` is what must be running there; with a `directory`, at the socket that is in it."""
        self.url = url if directory is None else str(directory / control_socket.NAME)
        self._parts = urlsplit(url)
        self._program = program
        self._timeout = timeout
        self._trusted = trusted
        self._directory = directory

    # Responses are decoded into `kind`, a struct of `forenotice.views`; requests are such structs.

    def get(self, kind: type[T], /, *path: str, **query: object) -> T:
        return self._ask(kind, "GET", path, query)

    def post(self, kind: type[T], /, *path: str, body: object = None) -> T:
        return self._ask(kind, "POST", path, {}, msgspec.json.encode(body or {}), "application/json")

    def patch(self, kind: type[T], /, *path: str, body: object) -> T:
        return self._ask(kind, "PATCH", path, {}, msgspec.json.encode(body), "application/json")

    def delete(self, kind: type[T], /, *path: str) -> T:
        return self._ask(kind, "DELETE", path, {})

    def send(
        self, kind: type[T], /, *path: str, data: bytes, content_type: str, sent: Callable[[int], None], **query: object
    ) -> T:
        """Bytes as they are; `sent` is told how many of them have left."""
        return self._ask(kind, "POST", path, query, _Body(data, sent), content_type)

    def items(self, kind: type[T], /, *path: str, limit: int | None = None, **query: Any) -> Iterator[T]:
        """All items of a list, page by page."""
        pages: type[views.base.Page[T]] = views.base.Page[kind]  # type: ignore[valid-type]
        after: object = query.pop("after", None)
        left = limit
        while left is None or left > 0:
            page = self.get(pages, *path, **query, after=after, limit=PAGE if left is None else min(left, PAGE))
            yield from page.items
            after = page.next
            if after is None:
                return
            left = None if left is None else left - len(page.items)

    def pieces(self, *path: str, **query: object) -> Iterator[bytes]:
        """A response of any length, as it arrives."""
        with self._exchanged(self._request("GET", path, query)) as response:
            while piece := response.read1(PIECE):
                yield piece

    def _ask(self, kind: type[T], *request: Any) -> T:
        body = self._carry_out(self._request(*request))
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._not_ours(HTTPStatus.OK, HTTPStatus.OK.phrase) from None

    def _request(
        self,
        method: str,
        path: Sequence[str],
        query: Mapping[str, object],
        body: bytes | _Body | None = None,
        content_type: str = "",
    ) -> Request:
        for part in path:
            # A slash would be read as a part of the path, whichever way it is sent.
            if not part or "/" in part:
                raise errors.RefusedError(f"{part!r} is not a name or an id: give one without '/'")
        words = {key: _word(value) for key, value in query.items() if value is not None}
        target = f"{self._parts.path}/v1/{'/'.join(quote(part, safe='') for part in path)}"
        headers = {"Accept": "application/json", "User-Agent": f"forenotice/{__version__}", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = content_type
            headers["Content-Length"] = str(len(body) if isinstance(body, bytes) else body.size)
        return Request(method, f"{target}?{urlencode(words)}" if words else target, body, headers)

    def _carry_out(self, request: Request) -> bytes:
        with self._exchanged(request) as response:
            return response.read()

    @contextmanager
    def _exchanged(self, request: Request) -> Iterator[http.client.HTTPResponse]:
        """A response that is no error; whatever goes wrong is one clear error."""
        if isinstance(request.body, _Body):
            request.body.seek(0)
        with closing(self._connection()) as connection:
            try:
                connection.request(request.method, request.target, request.body, request.headers)
            except OSError as error:
                raise self._unreachable(error) from None
            try:
                with connection.getresponse() as response:
                    if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                        raise self._refusal(response.status, response.reason, _body(response))
                    yield response
            except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
                raise LostError(
                    f"the control plane at {self.url} did not finish its response ({type(error).__name__}): try again"
                    + (", or with https:// if it has a certificate" if self.url.startswith("http:") else "")
                ) from None

    def _connection(self) -> http.client.HTTPConnection:
        host = self._parts.netloc
        if self._parts.scheme == "https":
            return http.client.HTTPSConnection(host, timeout=self._timeout, context=self._trusted)
        connection = http.client.HTTPConnection(host, timeout=self._timeout)
        if self._directory is not None:
            try:
                connection.sock = control_socket.connect(self._directory, self._timeout)
            except OSError as error:
                raise self._unreachable(error) from None
        return connection

    def _refusal(self, status: int, reason: str, body: bytes) -> errors.ForenoticeError:
        try:
            error = msgspec.json.decode(body, type=views.base.Error).error
            if status == HTTPStatus.TOO_MANY_REQUESTS:
                return BusyError(error.message, float(error.facts["retry_after"]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, TypeError, KeyError):
            return self._not_ours(status, reason)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return errors.UnavailableError(error.message)
        return RefusalError(status, error.message, code=error.code, facts=error.facts)

    def _not_ours(self, status: int, reason: str) -> errors.ForenoticeError:
        advice = f"is --control-url right, and `{self._program}` running there?"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            advice = f"the log of `{self._program}` there may say why; try again"
        return errors.UnavailableError(
            f"{self.url} responded {status} {reason}, but not as a control plane does: {advice}"
        )

    def _unreachable(self, reason: OSError) -> errors.ForenoticeError:
        if isinstance(reason, ssl.SSLCertVerificationError):
            return errors.UnavailableError(
                f"the certificate of {self.url} is not trusted ({reason.verify_message}): for a private CA, give that "
                "with --control-ca"
            )
        if isinstance(reason, ssl.SSLError):
            return errors.UnavailableError(
                f"no TLS with the control plane at {self.url} ({reason.reason}): is it served with a certificate?"
            )
        return errors.UnavailableError(f"cannot reach the control plane at {self.url}: is `{self._program}` running?")


class Api(Rest):
    """The service's API. Among several tokens (from files), the first that is accepted is used."""

    def __init__(
        self, settings: OperatorSettings, *, key: str | None = None, reason: str = "", timeout: float = TIMEOUT
    ) -> None:
        found = target.find(settings)
        trusted = _trusted(settings.control_ca)
        super().__init__(found.url, "forenotice serve", timeout, trusted, found.directory)
        self._settings = settings
        self._tokens = found.tokens
        self._key = key
        self._reason = reason

    def _carry_out(self, request: Request) -> bytes:
        if request.method in CHANGING:
            key = str(uuid.uuid4()) if self._key is None else self._key
            if not (key.isascii() and key.isprintable()):
                raise UsageError("--idempotency-key must be printable ASCII characters without spaces")
            request.headers["Idempotency-Key"] = key
            if self._reason:
                request.headers["Forenotice-Reason"] = quote(self._reason, safe="")
        try:
            try:
                return self._authorized(request)
            except LostError:
                # Under the same key a command takes effect once, so a retry is safe.
                return self._authorized(request)
        except RefusalError as error:
            raise self._advised(error) from None

    def _advised(self, error: RefusalError) -> RefusalError:
        match error.status, error.facts.get("facts"):
            case HTTPStatus.UNAUTHORIZED, _ if self._settings.token:
                return error.advised("give another with --token or in FORENOTICE_TOKEN")
            case HTTPStatus.UNAUTHORIZED, _:
                return error.advised(
                    "the one in admin.token is not accepted: give --token, name the server's data directory with "
                    "--data, or create a token there with `forenotice token create NAME --offline`"
                )
            case HTTPStatus.NOT_FOUND, dict(facts):
                return error.advised(self._where_to_look(facts))
        return error

    def _where_to_look(self, facts: Mapping[str, object]) -> str:
        """The name that was meant, or the command that lists what there is."""
        noun = next((noun for noun in COMMANDS if isinstance(facts.get(noun), str)), None)
        if noun is None:
            return ""
        name = str(facts[noun])
        # In a large fleet the mistake is rather at the end of the name; a small one is searched as a whole.
        for pattern in (f"{name[: len(name) // 2]}*", None) if noun in LISTS else ():
            if found := difflib.get_close_matches(name, self._names(LISTS[noun], pattern)):
                return f"did you mean {' or '.join(found)}?"
        return f"see `forenotice {COMMANDS[noun]}`"

    def _names(self, noun: str, pattern: str | None) -> list[str]:
        try:
            return [each.name for each in self.hasty().items(Named, noun, name=pattern, limit=MOST_NAMES)]
        except errors.ForenoticeError:
            return []

    def hasty(self, seconds: float = ADVICE_SECONDS) -> "Api":
        """One that does not wait long for responses."""
        return Api(self._settings, timeout=seconds)

    def _request(self, *arguments: Any) -> Request:
        request = super()._request(*arguments)
        request.headers["Authorization"] = f"Bearer {self._tokens[0]}"
        return request

    def _authorized(self, request: Request) -> bytes:
        until = time.monotonic() + self._timeout
        while True:
            request.headers["Authorization"] = f"Bearer {self._tokens[0]}"
            try:
                return super()._carry_out(request)
            except RefusalError as error:
                if error.status != HTTPStatus.UNAUTHORIZED or len(self._tokens) == 1:
                    raise
                self._tokens = self._tokens[1:]
            except BusyError as error:
                if time.monotonic() + error.seconds > until:
                    raise
                threading.Event().wait(error.seconds)


def _trusted(ca: Path | None) -> ssl.SSLContext | None:
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise errors.RefusedError(
            f"no certificates can be read from {ca} ({error.strerror}): give a PEM file"
        ) from None


def _body(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read()
    except (OSError, http.client.HTTPException):
        return b""


def _word(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
    return str(value)
