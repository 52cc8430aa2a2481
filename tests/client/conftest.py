"""Fixtures of the guest library's tests: both clients through one suite, and nothing of this machine."""

import pytest
from tests.client.both import Make, make_async, make_sync


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there, so that no test ever asks the usual address."""
    monkeypatch.setenv("FORENOTICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("FORENOTICE_NAME", raising=False)


@pytest.fixture(params=[make_sync, make_async], ids=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Make:
    """Either client, used as the blocking one is."""
    made: Make = request.param
    return made
