"""The guest's side of the endpoint, as a library."""

import socket
import time
from datetime import UTC, datetime

import pytest
from tests.cli.stranger import answer, stranger

from notbefore.client.guest import NOTHING, EndpointError, Guest
from notbefore.core import errors

DOCUMENT = (
    b'{"DocumentIncarnation":3,"Events":[{"EventId":"A","EventStatus":"Scheduled","EventType":"Reboot",'
    b'"ResourceType":"VirtualMachine","Resources":["db"],"NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT"},'
    b'{"EventId":"B","EventStatus":"Started","EventType":"Freeze","Resources":["db"],"NotBefore":""}]}'
)


def test_a_document_is_read() -> None:
    with stranger(answer("200 OK", DOCUMENT)) as server:
        document = Guest(server.url).events()
    assert document.incarnation == 3
    first, second = document.events
    assert first.not_before == datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)
    assert (first.resources, first.source, first.duration_seconds) == (("db",), "", -1)
    assert second.not_before is None


def test_an_empty_body_is_tolerated() -> None:
    with stranger(answer("200 OK")) as server:
        assert Guest(server.url).events() == NOTHING


def test_an_endpoint_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        guest = Guest(f"http://127.0.0.1:{silent.getsockname()[1]}", answer_timeout=0.2)
        before = time.monotonic()
        with pytest.raises(EndpointError, match="timed out"):
            guest.events()
        assert time.monotonic() - before < 5


def test_who_must_act_is_told_apart() -> None:
    with stranger(answer("503 Away", b'{"error": "later"}'), answer("400 No", b'{"error": "never"}')) as server:
        guest = Guest(server.url)
        with pytest.raises(EndpointError, match="answered 503: later"):
            guest.approve(["A"])
        with pytest.raises(errors.RefusedError, match="answered 400: never"):
            guest.approve(["A"])
