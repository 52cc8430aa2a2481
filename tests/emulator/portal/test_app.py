"""What the page is told while it is open."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from time import monotonic

import pytest
from tests.acceptance.running import DEADLINE, until
from tests.emulator.controlled import Controlled, controlled

from forenotice.core.operations import Kind
from forenotice.emulator.control import Control
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.portal import app
from forenotice.emulator.simulation import Announcement
from forenotice.settings import Address


@contextmanager
def following(control: str, after: str) -> Iterator[HTTPResponse]:
    host, _, port = control.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=DEADLINE)
    connection.request("GET", f"/live?after={after}")
    answer = connection.getresponse()
    try:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer
    finally:
        answer.close()
        connection.close()


def told(answer: HTTPResponse) -> str:
    """The next message; gives its id."""
    found = ""
    while (line := answer.readline().decode().strip()) != "data: changed":
        assert line != ": alive", "nothing is told"
        found = line.removeprefix("id: ")
    return found


@pytest.fixture(scope="module")
def shared() -> Iterator[Controlled]:
    with controlled() as found:
        yield found


def test_each_change_is_told(shared: Controlled) -> None:
    # So that nothing is told because time passes.
    shared.post("/pause")
    with following(shared.control, "the-page-is-older") as answer:
        seen = [told(answer)]
        for change in (
            lambda: shared.post("/events", kind="freeze"),
            lambda: shared.post("/faults", name="error-410", times=1),
            shared.poll,
            shared.poll,
            lambda: shared.post("/advance", by="1m"),
            lambda: shared.post("/resume"),
            lambda: shared.post("/reset"),
        ):
            change()
            seen.append(told(answer))
        assert len(set(seen)) == len(seen)


def test_a_page_that_is_up_to_date_is_told_nothing_until_something_changes() -> None:
    emulator = Emulator(as_vm="web-0")
    emulator.start()
    control = Control(emulator, Address(host="127.0.0.1", port=0))
    control.start()
    with following(str(control.address), app.position(emulator)) as answer:
        assert answer.readline() == b"retry: 1000\n"
        emulator.pause()
        assert told(answer) == app.position(emulator)
        # It ends at once though somebody follows.
        began = monotonic()
        ending = threading.Thread(target=control.stop)
        ending.start()
        assert answer.read() == b"\n"
        ending.join(DEADLINE)
        assert monotonic() - began < 30
    emulator.stop()


def test_the_line_of_now_moves_on_while_something_is_to_come() -> None:
    emulator = Emulator(as_vm="web-0", speed=10)
    emulator.start()
    emulator.pause()
    emulator.announce(Announcement(kind=Kind.RESTART, resources=("web-0",)))
    before = app.position(emulator)
    assert app.position(emulator) == before
    emulator.resume()
    before = app.position(emulator)
    until(lambda: app.position(emulator) != before)
    emulator.stop()


def test_a_page_that_is_told_nothing_knows_that_we_are_there() -> None:
    emulator = Emulator(as_vm="web-0", virtual=True)

    async def listen() -> list[bytes]:
        told = app.Live(emulator, alive=0).stream(app.position(emulator))
        found = [await anext(told) for _ in range(3)]
        await told.aclose()
        return found

    assert asyncio.run(listen()) == [b"retry: 1000\n\n", b": alive\n\n", b": alive\n\n"]


def test_not_everybody_is_followed_at_a_time(shared: Controlled) -> None:
    opened = [following(shared.control, "x") for _ in range(app.MOST_FOLLOWED)]
    try:
        for each in opened:
            told(each.__enter__())
        with pytest.raises(AssertionError), following(shared.control, "x"):
            pass
    finally:
        for each in opened:
            each.__exit__(None, None, None)


def test_a_form_is_carried_out_once_until_it_is_forgotten() -> None:
    done: list[str] = []

    def do() -> str:
        done.append("it")
        return f"done {len(done)}"

    async def press() -> None:
        found = app.FormResults()
        assert await asyncio.gather(*(found.once("a", do) for _ in range(3))) == ["done 1"] * 3
        for number in range(app.MOST_FORMS):
            await found.once(str(number), do)
        assert await found.once("a", do) == f"done {app.MOST_FORMS + 2}"

    asyncio.run(press())
