"""The REST API as a command uses it: which control plane, with which token, one request, one response or one error."""

import difflib
import http.client
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
from forenotice.cli.commands import UsageError, is_loopback
from forenotice.core import errors
from forenotice.settings import OperatorSettings

TIMEOUT = 60
PAGE = 500
PIECE = 64 * 1024
DEFAULT = "http://127.0.0.1:8255"
"""Where the control plane is if a token is given and no service runs here."""
ADVICE_SECONDS = 2
"""Seconds that looking for advice on an error may take."""
MOST_NAMES = 1000
LISTS = {
    **{noun: f"{noun} list" for noun in ("vm", "host", "edge", "group", "subscription", "token")},
    "hosts": "host list",
    **{noun: f"{noun} list --all" for noun in ("event", "operation", "rollout")},
}
"""The commands that list what a 404 speaks of."""
MISTYPED = ("vm", "host", "group")
"""What has names that people mistype."""
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

T = TypeVar("T")
Sent = Callable[[int], None]


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
        what = self.message.rstrip(".").partition(": see `")[0]
        return RefusalError(self.status, f"{what}: {advice}", **self.facts) if advice else self


class LostError(errors.UnavailableError):
    """The connection was lost before the response came."""


class BusyError(errors.UnavailableError):
    """The token has sent too many requests: this one was not processed."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
        """When to try again."""


class Request(NamedTuple):
    method: str
    target: str
    headers: dict[str, str]
    body: bytes | None
    sent: Sent | None
    """Gets how much of the body has been sent."""


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
        self._program, self._timeout, self._trusted, self._directory = program, timeout, trusted, directory

    # Responses are decoded into `kind`, a struct of `forenotice.views`; requests are such structs.

    def get(self, kind: type[T], /, *path: str, **query: object) -> T:
        return self._exchange(kind, self._request("GET", path, query))

    def post(self, kind: type[T], /, *path: str, body: object = None) -> T:
        return self._exchange(kind, self._request("POST", path, body=msgspec.json.encode(body or {})))

    def patch(self, kind: type[T], /, *path: str, body: object) -> T:
        return self._exchange(kind, self._request("PATCH", path, body=msgspec.json.encode(body)))

    def delete(self, kind: type[T], /, *path: str) -> T:
        return self._exchange(kind, self._request("DELETE", path))

    def send(self, kind: type[T], /, *path: str, data: bytes, content_type: str, sent: Sent, **query: object) -> T:
        """Bytes as they are."""
        return self._exchange(kind, self._request("POST", path, query, data, content_type, sent))

    def items(self, kind: type[T], /, *path: str, limit: int | None = None, **query: object) -> Iterator[T]:
        """All items of a list, page by page."""
        pages: type[views.base.Page[T]] = views.base.Page[kind]  # type: ignore[valid-type]
        left = limit
        while left is None or left > 0:
            page = self.get(pages, *path, **query, limit=PAGE if left is None else min(left, PAGE))
            yield from page.items
            if page.next is None:
                return
            query["after"] = page.next
            left = None if left is None else left - len(page.items)

    def pieces(self, *path: str, **query: object) -> Iterator[bytes]:
        """A response of any length, as it arrives."""
        with self._responding(self._request("GET", path, query)) as response:
            while piece := response.read1(PIECE):
                yield piece

    def _exchange(self, kind: type[T], request: Request) -> T:
        try:
            return msgspec.json.decode(self._carry_out(request), type=kind)
        except NOT_JSON:
            raise self._not_ours(HTTPStatus.OK, HTTPStatus.OK.phrase) from None

    def _request(
        self,
        method: str,
        path: Sequence[str],
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        sent: Sent | None = None,
    ) -> Request:
        for part in path:
            # A slash would be read as a part of the path, whichever way it is sent.
            if not part or "/" in part:
                raise errors.RefusedError(f"{part!r} is not a name or an id: give one without '/'")
        target = f"{self._parts.path}/v1/{'/'.join(quote(part, safe='') for part in path)}"
        if words := {key: _word(value) for key, value in (query or {}).items() if value is not None}:
            target += f"?{urlencode(words)}"
        headers = {"Accept": "application/json", "User-Agent": f"forenotice/{__version__}", "Connection": "close"}
        if body is not None:
            headers |= {"Content-Type": content_type, "Content-Length": str(len(body))}
        return Request(method, target, headers, body, sent)

    def _carry_out(self, request: Request) -> bytes:
        with self._responding(request) as response:
            return response.read()

    @contextmanager
    def _responding(self, request: Request) -> Iterator[http.client.HTTPResponse]:
        """A response that is no error; whatever goes wrong is one clear error."""
        body = request.body
        with closing(self._connection()) as connection:
            try:
                pieces = _pieces(body, request.sent) if body and request.sent else body
                connection.request(request.method, request.target, pieces, request.headers)
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
        except (*NOT_JSON, ValueError, TypeError, KeyError):
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
        match reason:
            case ssl.SSLCertVerificationError():
                message = (
                    f"the certificate of {self.url} is not trusted ({reason.verify_message}): for a private CA, give "
                    "that with --control-ca"
                )
            case ssl.SSLError():
                tried = f"no TLS with the control plane at {self.url} ({reason.reason})"
                message = f"{tried}: is it served with a certificate?"
            case _:
                message = f"cannot reach the control plane at {self.url}: is `{self._program}` running?"
        return errors.UnavailableError(message)


class Api(Rest):
    """The service's API. Among several tokens (from files), the first that is accepted is used."""

    def __init__(
        self, settings: OperatorSettings, *, key: str | None = None, reason: str = "", timeout: float = TIMEOUT
    ) -> None:
        url, directory, self._tokens = find(settings)
        super().__init__(url, "forenotice serve", timeout, _trusted(settings.control_ca), directory)
        self._settings, self._key, self._reason = settings, key, reason

    def hasty(self, seconds: float = ADVICE_SECONDS) -> "Api":
        """One that does not wait long for responses."""
        return Api(self._settings, timeout=seconds)

    def _request(self, method: str, *arguments: Any, **named: Any) -> Request:
        request = super()._request(method, *arguments, **named)
        request.headers["Authorization"] = f"Bearer {self._tokens[0]}"
        if method != "GET":
            key = str(uuid.uuid4()) if self._key is None else self._key
            if not (key.isascii() and key.isprintable()):
                raise UsageError("--idempotency-key must be printable ASCII characters without spaces")
            request.headers["Idempotency-Key"] = key
            if self._reason:
                request.headers["Forenotice-Reason"] = quote(self._reason, safe="")
        return request

    def _carry_out(self, request: Request) -> bytes:
        until, again = time.monotonic() + self._timeout, True
        while True:
            try:
                return super()._carry_out(request)
            except LostError:
                # Under the same key a command takes effect once, so a retry is safe.
                if not again:
                    raise
                again = False
            except BusyError as error:
                if time.monotonic() + error.seconds > until:
                    raise
                threading.Event().wait(error.seconds)
            except RefusalError as error:
                if error.status != HTTPStatus.UNAUTHORIZED or len(self._tokens) == 1:
                    raise self._advised(error) from None
                self._tokens = self._tokens[1:]
                request.headers["Authorization"] = f"Bearer {self._tokens[0]}"

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
        noun = next((noun for noun in LISTS if isinstance(facts.get(noun), str)), None)
        if noun is None:
            return ""
        name = str(facts[noun])
        # In a large fleet the mistake is rather at the end of the name; a small one is searched as a whole.
        for pattern in (f"{name[: len(name) // 2]}*", None) if noun in MISTYPED else ():
            if found := difflib.get_close_matches(name, self._names(f"{noun}s", pattern)):
                return f"did you mean {' or '.join(found)}?"
        return f"see `forenotice {LISTS[noun]}`"

    def _names(self, noun: str, pattern: str | None) -> list[str]:
        try:
            return [each.name for each in self.hasty().items(Named, noun, name=pattern, limit=MOST_NAMES)]
        except errors.ForenoticeError:
            return []


def _trusted(ca: Path | None) -> ssl.SSLContext | None:
    if ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise errors.RefusedError(
            f"no certificates can be read from {ca} ({error.strerror}): give a PEM file"
        ) from None


def _pieces(data: bytes, sent: Sent) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]
        sent(min(start + PIECE, len(data)))


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


# Which control plane


class Target(NamedTuple):
    url: str
    directory: Path | None
    """The data directory with the socket; None: use the URL."""
    tokens: list[str]
    """The first that is accepted is used."""


def find(settings: OperatorSettings) -> Target:
    """The socket in the data directory or a URL, and the tokens for it."""
    if settings.control_url is not None:
        return _address(settings, settings.control_url)
    try:
        found = [each for each in settings.directories if control_socket.is_in(each)]
        here = next((each for each in found if control_socket.answers(each)), None)
    except OSError as error:
        if settings.token:
            return _address(settings, DEFAULT)
        raise errors.RefusedError(
            f"the control plane's socket in {settings.data} cannot be used ({str(error.strerror).lower()}): run this "
            "as the user that runs `forenotice serve`, or give --token"
        ) from None
    if here is None and settings.token:
        return _address(settings, DEFAULT)
    # One that does not answer was left behind by a service that was killed, and may come back.
    if directory := here or next(iter(found), None):
        return Target("http://localhost", directory, _tokens(settings, directory))
    _tokens(settings, *settings.directories)
    raise errors.UnavailableError(
        f"cannot reach the control plane: no `forenotice serve` uses the data directory {settings.data}; "
        "start it, name another directory with --data, or give --control-url and --token"
    )


def _address(settings: OperatorSettings, url: str) -> Target:
    encrypted, host = url.startswith("https:"), urlsplit(url).hostname or ""
    here = is_loopback(host) or host in ("0.0.0.0", "::")  # noqa: S104 (where it connects to)
    if not settings.token and not (encrypted and here):
        advice = "leave --control-url out, so that the socket in the data directory is used, or give --token"
        raise errors.RefusedError(
            "a token from a file is only sent to the service in the same directory: "
            + (advice if here else f"for {url} give --token")
        )
    if not (encrypted or here or settings.control_without_tls):
        raise errors.RefusedError(
            f"the token would reach {url} unencrypted: give an address that begins with https://, or "
            "--control-without-tls if something else encrypts it"
        )
    return Target(url, None, _tokens(settings, *settings.directories))


def _tokens(settings: OperatorSettings, *directories: Path) -> list[str]:
    if settings.token:
        return [settings.token]
    found: list[str] = []
    for directory in directories:
        file = directory / "admin.token"
        try:
            found.append(file.read_text(encoding="ascii").strip())
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise errors.RefusedError(
                f"the token in {file} cannot be read ({error}): give --token or set FORENOTICE_TOKEN"
            ) from None
    if not found:
        raise errors.RefusedError(
            f"no token: start `forenotice serve` here, give --token, set FORENOTICE_TOKEN, or name with --data the "
            f"directory that holds admin.token (none is in {settings.data}); "
            "`forenotice token create NAME --offline` makes one where the database is"
        )
    return found
