"""Threads that go on."""

import threading
from datetime import timedelta

import pytest

from forenotice.liveness import Liveness
from forenotice.runtime import Runtime
from forenotice.service.loops import Loop, watching_for_deaths


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt])
def test_a_thread_that_dies_all_the_same_ends_the_service(death: type[BaseException]) -> None:
    ended = threading.Event()

    def look() -> timedelta:
        raise death

    with watching_for_deaths(ended.set) as dead:
        loop = Loop("doomed", look, threading.Event(), Liveness(), Runtime())
        loop.start()
        assert ended.wait(60)
    assert dead == ["doomed"]
    loop.stop()
