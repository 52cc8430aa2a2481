"""Fixtures of the control plane's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.running import Control, running


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    with running(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    """For many tests that change nothing."""
    with running(tmp_path_factory.mktemp("control")) as found:
        yield found


@pytest.fixture
def fleet(control: Control) -> Control:
    return settled(control)


def settled(control: Control) -> Control:
    """Two hosts and a spare, the group `web` on two of them, a standalone VM and a spot VM."""
    for host in ("host-a", "host-b", "host-c"):
        control.post("/v1/hosts", {"name": host})
    control.post("/v1/groups", {"name": "web", "kind": "availability-set", "policy": {"listening": "always"}})
    control.post("/v1/vms", {"name": "web-0", "host": "host-a", "group": "web", "addresses": ["10.0.0.1"]})
    control.post("/v1/vms", {"name": "web-1", "host": "host-b", "group": "web", "update_domain": 1, "fault_domain": 1})
    control.post("/v1/vms", {"name": "db", "host": "host-b"})
    control.post("/v1/vms", {"name": "batch", "host": "host-a", "spot": True})
    control.ask("PATCH", "/v1/vms/db/policy", {"listening": "always"})
    return control
