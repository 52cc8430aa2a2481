"""The REST API as a command uses it: one request, one answer or one clear error."""

import http.client
import io
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from forenotice import __version__, controlsocket
from forenotice.cli import advice, place
from forenotice.cli.usage import UsageError
from forenotice.core import errors
from forenotice.settings import OperatorSettings

TIMEOUT = 60
PAGE = 500
PIECE = 64 * 1024
CHANGING = frozenset({"POST", "PATCH", "DELETE"})
HASTE = 2
"""Seconds that advice on an error may take."""
MOST_NAMES = 1000

View = dict[str, Any]


class AnswerError(errors.ForenoticeError):
    """The control plane refused."""

    code = "answer"

    def __init__(self, status: int, message: str, **facts: object) -> None:
        super().__init__(message, **facts)
        self.status = status

    def advised(self, advice: str) -> "AnswerError":
        """With that in place of where the server says to look."""
        said = self.message.rstrip(".").partition(": see `")[0]
        return AnswerError(self.status, f"{said}: {advice}", **self.facts) if advice else self


class LostError(errors.UnavailableError):
    """The connection was lost before the answer came."""


class BusyError(errors.UnavailableError):
    """The token has sent too many requests: this one was not looked at."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
        """When to try again."""


class _Counted(io.BytesIO):
    """A body that tells how much of it has been sent."""

    def __init__(self, data: bytes, sent: Callable[[int], None]) -> None:
        super().__init__(data)
        self._sent = sent

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size)
        if chunk:
            self._sent(self.tell())
        return chunk


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    # Following one would hand the token to whoever it points at.
    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, host: str, directory: Path, **named: Any) -> None:
        super().__init__(host, **named)
        self._directory = directory

    def connect(self) -> None:
        self.sock = controlsocket.connect(self._directory, self.timeout)


class _SocketHandler(urllib.request.HTTPHandler):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_SocketConnection, directory=self._directory), req)


class Rest:
    """A control plane that asks for no token."""

    def __init__(
        self,
        url: str,
        program: str,
        timeout: float = TIMEOUT,
        trusted: ssl.SSLContext | None = None,
        directory: Path | None = None,
    ) -> None:
        """`program` is what must be running there; with a `directory`, at the socket that is in it."""
        self._base = url
        self.url = url if directory is None else str(directory / controlsocket.NAME)
        self._program = program
        self._timeout = timeout
        reached = urllib.request.HTTPHandler() if directory is None else _SocketHandler(directory)
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), _NoRedirects(), urllib.request.HTTPSHandler(context=trusted), reached
        )

    def get(self, *path: str, **query: object) -> View:
        return self._ask("GET", path, query)

    def post(self, *path: str, body: Mapping[str, object] | None = None) -> View:
        return self._ask("POST", path, {}, _encoded(body or {}), "application/json")

    def patch(self, *path: str, body: Mapping[str, object]) -> View:
        return self._ask("PATCH", path, {}, _encoded(body), "application/json")

    def delete(self, *path: str) -> View:
        return self._ask("DELETE", path, {})

    def send(
        self, *path: str, data: bytes, content_type: str, sent: Callable[[int], None] = lambda _: None, **query: object
    ) -> View:
        """Bytes as they are; `sent` is told how many of them have left."""
        return self._ask("POST", path, query, _Counted(data, sent), content_type)

    def items(self, *path: str, limit: int | None = None, **query: object) -> Iterator[View]:
        """All items of a list, page by page."""
        after: object = query.pop("after", None)
        left = limit
        while left is None or left > 0:
            page = self.get(*path, **query, after=after, limit=PAGE if left is None else min(left, PAGE))
            yield from page["items"]
            after = page["next"]
            if after is None:
                return
            left = None if left is None else left - len(page["items"])

    def pieces(self, *path: str, **query: object) -> Iterator[bytes]:
        """An answer of any length, as it comes."""
        request = self._request("GET", path, query)
        with self._explained(), self._opener.open(request, timeout=self._timeout) as answer:
            while piece := answer.read1(PIECE):
                yield piece

    def _ask(
        self,
        method: str,
        path: Sequence[str],
        query: Mapping[str, object],
        data: bytes | _Counted | None = None,
        kind: str = "",
    ) -> View:
        return self._carry_out(self._request(method, path, query, data, kind))

    def _request(
        self,
        method: str,
        path: Sequence[str],
        query: Mapping[str, object],
        data: bytes | _Counted | None = None,
        kind: str = "",
    ) -> urllib.request.Request:
        for part in path:
            # A slash would be read as a part of the path, whichever way it is sent.
            if not part or "/" in part:
                raise errors.RefusedError(f"{part!r} is not a name or an id: give one without '/'")
        words = {key: _word(value) for key, value in query.items() if value is not None}
        url = f"{self._base}/v1/{'/'.join(quote(part, safe='') for part in path)}"
        request = urllib.request.Request(f"{url}?{urlencode(words)}" if words else url, data=data, method=method)  # noqa: S310
        request.add_header("Accept", "application/json")
        request.add_header("User-Agent", f"forenotice/{__version__}")
        if kind:
            request.add_header("Content-Type", kind)
        if isinstance(data, _Counted):
            request.add_header("Content-Length", str(len(data.getbuffer())))
        return request

    def _carry_out(self, request: urllib.request.Request) -> View:
        return self._answer(request)

    def _answer(self, request: urllib.request.Request) -> View:
        if isinstance(request.data, _Counted):
            request.data.seek(0)
        with self._explained(), self._opener.open(request, timeout=self._timeout) as answer:
            return self._decoded(answer.status, answer.reason, answer.read())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Whatever goes wrong in asking is one clear error."""
        try:
            yield
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error.code, error.reason, _body(error)) from None
        except urllib.error.URLError as error:
            raise self._unreachable(error.reason) from None
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            raise LostError(
                f"the control plane at {self.url} did not finish its answer ({type(error).__name__}): try again"
                + (", or with https:// if it has a certificate" if self.url.startswith("http:") else "")
            ) from None

    def _decoded(self, status: int, reason: str, body: bytes) -> View:
        try:
            view = json.loads(body)
        except ValueError:
            view = None
        if not isinstance(view, dict):
            raise self._stranger(status, reason)
        return view

    def _refusal(self, status: int, reason: str, body: bytes) -> errors.ForenoticeError:
        try:
            error = json.loads(body)["error"]
            message, facts = str(error["message"]), error.get("facts")
            if status == HTTPStatus.TOO_MANY_REQUESTS:
                return BusyError(message, float(facts["retry_after"]))
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                return errors.UnavailableError(message)
            return AnswerError(status, message, code=error["code"], facts=facts)
        except (ValueError, TypeError, KeyError, AttributeError):
            return self._stranger(status, reason)

    def _stranger(self, status: int, reason: str) -> errors.ForenoticeError:
        advice = f"is --control-url right, and `{self._program}` running there?"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            advice = f"what `{self._program}` says over there may tell why; try again"
        return errors.UnavailableError(
            f"{self.url} answered {status} {reason}, but not as a control plane does: {advice}"
        )

    def _unreachable(self, reason: str | BaseException) -> errors.ForenoticeError:
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
    """The service's. Among several tokens (from files), the first that is accepted is used."""

    def __init__(
        self, settings: OperatorSettings, *, key: str | None = None, reason: str = "", timeout: float = TIMEOUT
    ) -> None:
        found = place.find(settings)
        trusted = _trusted(settings.control_ca)
        super().__init__(found.url, "forenotice serve", timeout, trusted, found.directory)
        self._settings = settings
        self._tokens = found.tokens
        self._key = key
        self._reason = reason

    def _carry_out(self, request: urllib.request.Request) -> View:
        if request.get_method() in CHANGING:
            key = str(uuid.uuid4()) if self._key is None else self._key
            if not (key.isascii() and key.isprintable()):
                raise UsageError("--idempotency-key must be printable ASCII characters without spaces")
            request.add_header("Idempotency-Key", key)
            if self._reason:
                request.add_header("Forenotice-Reason", quote(self._reason, safe=""))
        try:
            try:
                return self._authorized(request)
            except LostError:
                # Under the same key a command takes effect once, so asking again is safe.
                return self._authorized(request)
        except AnswerError as error:
            raise self._advised(error) from None

    def _advised(self, error: AnswerError) -> AnswerError:
        match error.status, error.facts.get("facts"):
            case HTTPStatus.UNAUTHORIZED, _:
                return error.advised(advice.on_token(bool(self._settings.token)))
            case HTTPStatus.NOT_FOUND, dict(facts):
                return error.advised(advice.on_missing(facts, self._names))
        return error

    def _names(self, noun: str, pattern: str | None) -> list[str]:
        try:
            return [each["name"] for each in self.hasty().get(noun, name=pattern, limit=MOST_NAMES)["items"]]
        except errors.ForenoticeError:
            return []

    def hasty(self, seconds: float = HASTE) -> "Api":
        """One that does not wait long for answers."""
        return Api(self._settings, timeout=seconds)

    def _request(self, *arguments: Any) -> urllib.request.Request:
        request = super()._request(*arguments)
        request.add_header("Authorization", f"Bearer {self._tokens[0]}")
        return request

    def _authorized(self, request: urllib.request.Request) -> View:
        until = time.monotonic() + self._timeout
        while True:
            request.add_header("Authorization", f"Bearer {self._tokens[0]}")
            try:
                return self._answer(request)
            except AnswerError as error:
                if error.status != 401 or len(self._tokens) == 1:
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


def _body(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read()
    except (OSError, http.client.HTTPException):
        return b""


def _encoded(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
