"""The metadata endpoint as a guest asks it: one request at a time, past every proxy."""

import http.client
import json
from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlsplit

import msgspec

from notbefore import __version__
from notbefore.core import errors
from notbefore.wire import dates

API_VERSION = "2020-07-01"
PATH = f"/metadata/scheduledevents?api-version={API_VERSION}"
CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 130.0
"""The real service may take two minutes over its first answer."""
LARGEST = 16 * 1024 * 1024


class EndpointError(errors.UnavailableError):
    """The metadata endpoint cannot be used just now."""

    code = "endpoint"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    id: str = msgspec.field(name="EventId")
    status: str = msgspec.field(name="EventStatus")
    type: str = msgspec.field(name="EventType")
    resource_type: str = msgspec.field(name="ResourceType", default="VirtualMachine")
    resources: tuple[str, ...] = msgspec.field(name="Resources", default=())
    not_before_text: str = msgspec.field(name="NotBefore", default="")
    description: str = msgspec.field(name="Description", default="")
    source: str = msgspec.field(name="EventSource", default="")
    duration_seconds: int = msgspec.field(name="DurationInSeconds", default=-1)

    @property
    def not_before(self) -> datetime | None:
        """None once it has started."""
        return dates.parse(self.not_before_text)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    incarnation: int = msgspec.field(name="DocumentIncarnation")
    events: tuple[Event, ...] = msgspec.field(name="Events", default=())


NOTHING = Document(incarnation=0)


class Guest:
    """This VM, towards the endpoint that tells it what is going to happen."""

    def __init__(
        self, endpoint: str, *, connect_timeout: float = CONNECT_TIMEOUT, answer_timeout: float = ANSWER_TIMEOUT
    ) -> None:
        self._endpoint = endpoint
        self._connect_timeout = connect_timeout
        self._answer_timeout = answer_timeout

    def events(self) -> Document:
        """What is announced now. An empty answer, which the real service gives at times, means nothing is."""
        body = self._ask("GET", None)
        if not body.strip():
            return NOTHING
        try:
            document = msgspec.json.decode(body, type=Document)
            for event in document.events:
                dates.parse(event.not_before_text)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise EndpointError(f"{self._endpoint} gave no Scheduled Events document: {error}") from None
        return document

    def approve(self, event_ids: Sequence[str]) -> None:
        """Say that this VM is ready: the events need not wait for their NotBefore."""
        self._ask("POST", json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode())

    def _ask(self, method: str, body: bytes | None) -> bytes:
        parts = urlsplit(self._endpoint)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=self._connect_timeout)
        headers = {"Metadata": "true", "User-Agent": f"notbefore/{__version__}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.connect()
            connection.sock.settimeout(self._answer_timeout)
            connection.request(method, PATH, body, headers)
            answer = connection.getresponse()
            said = answer.read(LARGEST)
            if answer.length:
                raise http.client.IncompleteRead(b"", answer.length)
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(
                f"cannot reach the metadata endpoint {self._endpoint} ({_reason(error)}): is this inside a VM? "
                "Otherwise give --endpoint or set NOTBEFORE_ENDPOINT"
            ) from None
        finally:
            connection.close()
        if answer.status != 200:
            raise _refusal(self._endpoint, answer.status, answer.reason, said)
        return said


def _refusal(endpoint: str, status: int, reason: str, body: bytes) -> errors.NotbeforeError:
    try:
        message = json.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        message = reason
    if isinstance(message, dict):
        return EndpointError(f"{endpoint} is the control plane's: give --endpoint of the metadata service")
    said = f"{endpoint} answered {status}: {message}"
    return errors.RefusedError(said) if 400 <= status < 500 else EndpointError(said)


def _reason(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    return str(strerror or error or type(error).__name__).lower()
