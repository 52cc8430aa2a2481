import threading
import time

import pytest
from tests.agent.parts import RUNTIME

from forenotice.agent import handlers


def test_its_result_or_exception_is_what_comes_back() -> None:
    def fail() -> None:
        raise ConnectionResetError("gone")

    limit = time.monotonic() + 10
    assert handlers.within(lambda: 5, RUNTIME, until=limit, stop=threading.Event(), interrupt=pytest.fail) == 5
    with pytest.raises(ConnectionResetError, match="gone"):
        handlers.within(fail, RUNTIME, until=limit, stop=threading.Event(), interrupt=pytest.fail)


@pytest.mark.parametrize("asked", [True, False])
def test_a_call_that_does_not_end_is_interrupted_and_left_behind(asked: bool) -> None:
    never, interrupted, stop = threading.Event(), threading.Event(), threading.Event()
    if asked:
        stop.set()
    begun = time.monotonic()
    until = begun + (60 if asked else 0.1)
    with pytest.raises(handlers.StoppedError if asked else TimeoutError):
        handlers.within(never.wait, RUNTIME, until=until, stop=stop, interrupt=interrupted.set)
    assert time.monotonic() - begun < 30
    assert interrupted.is_set()
    never.set()
