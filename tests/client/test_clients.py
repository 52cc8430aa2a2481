"""Both clients over real sockets, through one suite."""

import asyncio
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import monotonic

import pytest
from tests.client.both import QUICK, Awaiting, Either, Make
from tests.client.samples import EVENT, OTHER, STARTED, document
from tests.client.scripted import Asked, Script, Scripted, answer, full_port, scripted

import forenotice
from forenotice import AsyncClient, Client, EndpointError, Pace, RefusedError
from forenotice import client as client_room
from forenotice.client import Change

SOON = 30.0


def said(*answers: bytes | None) -> Script:
    """One after another, the last one again and again."""
    return lambda asked, ended: answers[min(asked.number, len(answers) - 1)]


@pytest.fixture
def server() -> Iterator[Scripted]:
    """A guest that is about to be paused."""

    def answered(asked: Asked, ended: threading.Event) -> bytes:
        if asked.method == "POST":
            return answer()
        if asked.target.startswith("/metadata/instance"):
            return answer(body=b"WestNO_1")
        if asked.headers.get("if-none-match") == '"2"':
            if "prefer" in asked.headers:
                ended.wait(0.05)
            return answer("304 Not Modified", b"", 'ETag: "2"')
        return answer("200 OK", document(EVENT, OTHER), 'ETag: "2"')

    with scripted(answered) as found:
        yield found


def test_the_life_of_a_guest(make: Make, server: Scripted) -> None:
    with make(server.url) as client:
        assert client.endpoint == server.url
        assert len(client.document().events) == 2
        (event,) = client.events(mine=True)
        client.approve(event)
        assert client.me == "WestNO_1"
        assert client.ahead == 0
        first, second = islice(client.watch(), 2)
        assert isinstance(first, forenotice.Appeared)
        assert {first.event.type, second.event.type} == {"Freeze", "Reboot"}
        news = list(islice(client.follow(), 3))
    assert [each.changed for each in news] == [True, False, False]
    assert [asked.method for asked in server.asked[:4]] == ["GET", "GET", "GET", "POST"]
    assert server.asked[3].body == b'{"StartRequests":[{"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123"}]}'
    assert {asked.headers["metadata"] for asked in server.asked} == {"true"}
    assert len(server.connections) == 1


def test_polling_goes_on_after_every_fault(make: Make) -> None:
    faults: list[bytes | None] = [
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\nConnection: close\r\n\r\n{",
        b"garbage\r\n\r\n",
        answer("404 Not Found"),
        answer("410 Gone"),
        answer("429 Too Many Requests", b"", "Retry-After: 1"),
        answer("503 Service Unavailable", b"", "Connection: close"),
        answer(body=document(EVENT)[:-4]),
        answer(),
    ]
    script = [answer(body=document(EVENT)), *faults, answer(body=document(STARTED)), *faults, answer(body=document())]
    with scripted(said(*script)) as server, make(server.url) as client:
        changes = list(islice(client.watch(), 3))
    assert [type(change).__name__ for change in changes] == ["Appeared", "Started", "Gone"]


def test_a_kept_connection_that_ends_is_no_error(make: Make) -> None:
    script = said(answer(body=document()), None, answer(body=document()))
    with scripted(script) as server, make(server.url) as client:
        assert client.document() == client.document()
    assert len(server.asked) == 3


@pytest.mark.parametrize("after", [0.0, 0.2])
def test_stray_bytes_are_not_taken_for_the_next_answer(make: Make, after: float) -> None:
    """They come with the answer or later, while nobody looks; an approval that was never taken would seem to be."""

    def straying() -> None:
        for number in range(2):
            accepted, _ = listening.accept()
            with accepted, suppress(ConnectionError):
                while accepted.recv(65536):
                    accepted.sendall(answer("503 Away") if number else answer(body=document()))
                    if not number:
                        gone.wait(after)
                        accepted.sendall(answer())
                        strayed.set()

    strayed, gone = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=straying)
        thread.start()
        with make(f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
            client.document()
            assert strayed.wait(SOON)
            with pytest.raises(EndpointError, match="answered 503"):
                client.approve("A")
        thread.join(SOON)


def test_a_kept_connection_that_was_reset_is_not_used(make: Make) -> None:
    def resetting() -> None:
        for number in range(2):
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(answer() if number else answer(body=document()))
                heard.wait(SOON)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reset.set()

    heard, reset = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=resetting)
        thread.start()
        with make(f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
            client.document()
            heard.set()
            assert reset.wait(SOON)
            client.approve("A")
        thread.join(SOON)


def test_a_slow_first_answer_is_waited_for_and_later_ones_are_not(make: Make) -> None:
    def slow(asked: Asked, ended: threading.Event) -> bytes:
        ended.wait(0.3 if asked.number < 2 else 0)
        return answer(body=document())

    pace = Pace(first_timeout=SOON, timeout=0.1, first_pause=0.01, longest_pause=0.01, interval=0.01)
    with scripted(slow) as server, make(server.url, pace=pace) as client:
        client.document()
        with pytest.raises(EndpointError, match="timed out"):
            client.document()
        client.document()


def test_nobody_there(make: Make) -> None:
    with make("http://127.0.0.1:9") as client:
        with pytest.raises(EndpointError, match=r"\(connection refused\): is this inside a VM"):
            client.document()
        with pytest.raises(EndpointError):
            client.approve("A")
        with pytest.raises(EndpointError):
            _ = client.me


@pytest.mark.parametrize("host", ["a..b", "x" * 70, "a\0b"], ids=["empty label", "long label", "null"])
def test_what_cannot_be_the_name_of_a_host(make: Make, host: str) -> None:
    with make(f"http://{host}") as client, pytest.raises(EndpointError, match="cannot reach the metadata endpoint"):
        client.document()


def test_no_proxy_is_asked(make: Make, server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with make(server.url) as client:
        assert client.document().incarnation == 2


def test_after_its_end_a_client_says_no_more(make: Make, server: Scripted) -> None:
    with make(server.url) as client:
        client.document()
        if isinstance(client, Awaiting):
            client.runner.run(client.client.close())
        else:
            client.close()
        assert list(client.watch()) == []
        assert list(client.follow()) == []
        with pytest.raises(EndpointError, match="closed here"):
            client.document()


def test_an_answer_beyond_all_bounds_is_refused(make: Make) -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 5_000_000
    refused = pytest.raises(EndpointError, match="larger than")
    with scripted(said(endless)) as server, make(server.url) as client, refused:
        client.document()


# What the two do in their own ways


def held(asked: Asked, ended: threading.Event) -> bytes | None:
    """Long polls get no response."""
    if "prefer" in asked.headers:
        ended.wait(90)
        return None
    return answer("200 OK", document(EVENT), 'ETag: "2"')


def until_asked(server: Scripted, count: int) -> None:
    deadline = monotonic() + SOON
    while len(server.asked) < count:
        assert monotonic() < deadline
        server.ended.wait(0.01)


def test_closing_in_another_thread_ends_watching_at_once() -> None:
    with scripted(held) as server:
        client = Client(server.url, pace=QUICK)
        seen: list[Change] = []
        thread = threading.Thread(target=lambda: seen.extend(client.watch()))
        thread.start()
        until_asked(server, 2)
        begun = monotonic()
        client.close()
        thread.join(SOON)
        assert monotonic() - begun < 20
    assert [type(change).__name__ for change in seen] == ["Appeared"]


def test_closing_in_another_thread_ends_a_pause() -> None:
    client = Client("http://127.0.0.1:9", pace=Pace(first_pause=60, longest_pause=60))
    failed = threading.Event()

    def run() -> None:
        for _ in client.follow():
            failed.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert failed.wait(SOON)
    client.close()
    thread.join(SOON)
    assert not thread.is_alive()


def test_another_thread_approves_while_a_poll_is_held() -> None:
    with scripted(held) as server, Client(server.url, pace=QUICK) as client:
        thread = threading.Thread(target=lambda: list(client.follow()))
        thread.start()
        until_asked(server, 2)
        begun = monotonic()
        client.approve("A")
        assert client.document().incarnation == 2
        assert monotonic() - begun < 20
        client.close()
        thread.join(SOON)


def test_tasks_share_a_client_and_one_ends_what_others_wait_for() -> None:
    async def run(server: Scripted) -> list[Change]:
        async with AsyncClient(server.url, pace=QUICK) as client:
            watching = asyncio.create_task(collect(client))
            await asyncio.to_thread(until_asked, server, 2)
            async with asyncio.timeout(SOON):
                await client.approve("A")
                await client.close()
                return await watching

    async def collect(client: AsyncClient) -> list[Change]:
        return [change async for change in client.watch()]

    with scripted(held) as server:
        (change,) = asyncio.run(run(server))
    assert change.event.id == EVENT["EventId"]


def test_a_task_that_is_cancelled_leaves_a_client_that_works() -> None:
    def first_hangs(asked: Asked, ended: threading.Event) -> bytes | None:
        if asked.number == 1:
            ended.wait(90)
        return answer(body=document(incarnation=asked.number))

    async def run(server: Scripted) -> int:
        async with AsyncClient(server.url, pace=QUICK) as client:
            await client.document()
            task = asyncio.create_task(client.document())
            await asyncio.to_thread(until_asked, server, 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return (await client.document()).incarnation

    with scripted(first_hangs) as server:
        assert asyncio.run(run(server)) == 2
    assert len(server.connections) == 2


def test_leaving_a_watch_early_leaves_nothing_behind() -> None:
    async def run(url: str) -> None:
        async with AsyncClient(url, pace=QUICK) as client:
            async for _ in client.watch():
                break

    with scripted(said(answer(body=document(EVENT)))) as server:
        asyncio.run(run(server.url), debug=True)


def test_an_attempt_to_connect_is_given_up(make: Make) -> None:
    begun = monotonic()
    pace, given_up = Pace(connect_timeout=0.2), pytest.raises(EndpointError, match="timed out")
    with full_port() as port, make(f"http://127.0.0.1:{port}", pace=pace) as client, given_up:
        client.document()
    assert monotonic() - begun < 20


# What is loaded


LIGHT = """
import sys
import forenotice
assert not [name for name in sys.modules if name.startswith("forenotice.")], "forenotice alone"
assert forenotice.Client.__name__ == "Client"
heavy = {"asyncio", "email", "http.client", "logging", "ssl", "click", "rich", "urllib.request", "structlog"}
print(*sorted(heavy & set(sys.modules)))
try:
    forenotice.Nothing
except AttributeError as error:
    print(error)
print(forenotice.AsyncClient.__name__, forenotice.RefusedError.__name__, *sorted(heavy & set(sys.modules)))
"""


def test_only_what_is_used_is_loaded() -> None:
    ran = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    first, second, third = ran.stdout.splitlines()
    assert first == ""
    assert second == "module 'forenotice' has no attribute 'Nothing'"
    assert third.startswith("AsyncClient RefusedError asyncio")


@pytest.mark.parametrize("name", [name for name in forenotice.__all__ if name != "__version__"])
def test_every_name_is_there(name: str) -> None:
    assert getattr(forenotice, name) is getattr(client_room, name, RefusedError)


def test_both_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(Client) == public(AsyncClient)
    assert public(Client) - {"run"} <= public(Awaiting) | {"session"}
    assert Either is not None


PAGE = Path(__file__).parents[2] / "docs" / "library.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("example", [example for example in EXAMPLES if ".approve(" in example], ids=["sync", "async"])
def test_the_examples_of_the_page_go_on_when_an_approval_fails(
    example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    approvals: list[bytes] = []

    def script(asked: Asked, _: object) -> bytes:
        if asked.method == "POST":
            approvals.append(asked.body)
            return answer("503 Service Unavailable")
        return answer(body=document() if approvals else document(EVENT))

    with scripted(script) as server:
        monkeypatch.setenv("FORENOTICE_ENDPOINT", server.url)
        monkeypatch.setenv("FORENOTICE_NAME", "WestNO_0")
        exec(compile(example, str(PAGE), "exec"), {"__name__": "__main__"})
    assert len(approvals) == 1
    assert "answered 503" in capsys.readouterr().out
