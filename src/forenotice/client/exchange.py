"""One request and its answer over HTTP/1.1, as bytes: no socket, no waiting."""

from collections.abc import Mapping
from dataclasses import dataclass

import h11

LARGEST_HEAD = 32 * 1024
LARGEST_BODY = 4 * 1024 * 1024
"""Of a document, and there are none near that."""


class ProtocolError(Exception):
    """What came back is not HTTP/1.1, or more than was to be read."""


def no_host(name: str) -> OSError:
    """What the resolver would say of a name that it cannot even be asked for: that is a ValueError."""
    return OSError(f"{name!r} is not the name of a host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    reason: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes


class Exchange:
    """The requests and answers of one connection, one after another."""

    def __init__(self, host: str, port: int, *, default_port: int = 80) -> None:
        name = f"[{host}]" if ":" in host else host
        self._authority = name if port == default_port else f"{name}:{port}"
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._largest: int | None = 0
        self.silent = True
        """Nothing of an answer to the present request has come."""

    def begin(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, *, largest: int | None
    ) -> bytes:
        """The bytes to send. ProtocolError: they would be no request.

        `largest` is of the answer's body; None: it is left unread, and the head is the answer.
        """
        length = {} if body is None else {"Content-Length": str(len(body))}
        fields = {"Host": self._authority, **headers, **length}
        self._head, self._body, self._largest, self.silent = None, bytearray(), largest, True
        try:
            request = h11.Request(method=method, target=target, headers=list(fields.items()))
            sent = [self._state.send(request), body and self._state.send(h11.Data(body)), self._ended()]
        except (h11.LocalProtocolError, UnicodeEncodeError) as error:
            raise ProtocolError(f"this cannot be sent: {error}") from None
        return b"".join(part for part in sent if part)

    def feed(self, data: bytes) -> Answer | None:
        """What has come, empty at the end of the connection; gives the answer once it is whole."""
        if data:
            self.silent = False
        elif self._head is None:
            raise ConnectionResetError("the connection was closed before an answer came")
        try:
            self._state.receive_data(data)
            while True:
                match self._state.next_event():
                    case h11.Response() as head:
                        self._head = head
                        if self._largest is None:
                            return self._answer()
                    case h11.Data(data=part):
                        self._take(part)
                    case h11.EndOfMessage():
                        return self._answer()
                    case h11.InformationalResponse():
                        continue
                    case _:
                        return None
        except h11.RemoteProtocolError as error:
            raise ProtocolError(f"the answer is not HTTP as it should be: {error}") from None

    def next(self) -> bool:
        """Whether this connection may carry another request."""
        if self._state.trailing_data[0]:
            # Nobody asked for it; it would be taken for the next answer.
            return False
        try:
            self._state.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        return True

    def _ended(self) -> bytes | None:
        return self._state.send(h11.EndOfMessage())

    def _take(self, part: bytes | bytearray) -> None:
        self._body += part
        if self._largest is not None and len(self._body) > self._largest:
            raise ProtocolError(f"the answer is larger than {self._largest} bytes")

    def _answer(self) -> Answer:
        head = self._head
        assert head is not None
        headers: dict[str, str] = {}
        for name, value in head.headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return Answer(
            status=head.status_code, reason=head.reason.decode("latin-1"), headers=headers, body=bytes(self._body)
        )
