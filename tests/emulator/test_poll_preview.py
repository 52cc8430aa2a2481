"""What a poll would be answered is what the next one is."""

from collections.abc import Iterator
from datetime import timedelta
from http.client import HTTPConnection, IncompleteRead

import pytest
from tests.acceptance.running import NEWEST

from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.emulator import faults
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.faults import Delay, Fault
from forenotice.emulator.simulation import Announcement
from forenotice.wire import versions


@pytest.fixture(scope="module")
def shared() -> Iterator[Emulator]:
    found = Emulator(as_vm="web-0", virtual=True)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def emulator(shared: Emulator) -> Emulator:
    shared.reset()
    shared.announce(Announcement(kind=Kind.RESTART, resources=("web-0",)))
    return shared


def polled(emulator: Emulator) -> tuple[int | None, bytes]:
    connection = HTTPConnection(emulator.address.host, emulator.address.port, timeout=60)
    try:
        connection.request("GET", f"/metadata/scheduledevents?api-version={NEWEST}", headers={"Metadata": "true"})
        said = connection.getresponse()
        return said.status, said.read()
    except IncompleteRead as error:
        return said.status, error.partial
    except ConnectionResetError:
        return None, b""
    finally:
        connection.close()


NOT_HELD = [fault for fault in faults.ALL if not isinstance(fault.effect, Delay)]


@pytest.mark.parametrize("fault", NOT_HELD, ids=lambda each: each.name)
def test_faults_are_foreseen_and_not_used_up(emulator: Emulator, fault: Fault) -> None:
    emulator.switch_on(fault.name, times=1, on="polls")
    emulator.announce(Announcement(kind=Kind.HOST_UPDATE, resources=("web-0",)))
    first, second = (emulator.preview_poll("web-0", versions.NEWEST) for _ in range(2))
    assert first == second
    assert first.faults == fault.name
    assert (first.status, first.body) == polled(emulator)
    assert len(emulator.requests) == 1
    assert emulator.preview_poll("web-0", versions.NEWEST).faults is None


def test_what_holds_a_poll_is_named(emulator: Emulator) -> None:
    emulator.switch_on("slow-first-answer", amount=timedelta(minutes=1))
    emulator.switch_on("error-503", on="approvals")
    found = emulator.preview_poll("web-0", versions.NEWEST)
    assert (found.status, found.faults) == (200, "slow-first-answer")
    emulator.advance(timedelta(hours=1))
    assert emulator.preview_poll("web-0", versions.NEWEST).faults == "slow-first-answer"


def test_a_vm_that_is_not_there(emulator: Emulator) -> None:
    with pytest.raises(errors.NotFoundError, match="there is no VM 'web-9'"):
        emulator.preview_poll("web-9", versions.NEWEST)
