"""What is live about one VM, host or group: of many, the most urgent."""

from datetime import timedelta
from typing import Any

import pytest
from tests.service.rig import OPERATOR, Rig

from forenotice.core import roles
from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.service import fleet, maintenance, overview
from forenotice.views.fleet import NewGroup, PolicyChange


@pytest.fixture
def crowded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Announced last and started first: what has the longest notice comes first in the lists."""
    monkeypatch.setattr(overview, "MOST", 2)
    fleet.add_group(
        rig.service,
        OPERATOR,
        NewGroup(name="new", kind=ScopeKind.AVAILABILITY_SET, policy=PolicyChange(listening=Listening.ALWAYS)),
    )
    for number in range(4):
        spec = VmSpec(name=f"new-{number}", host="host-d", group="new")
        fleet.add_vm(rig.service, OPERATOR, spec)
        rig.schedule(Kind.RESTART, f"new-{number}", notice=timedelta(minutes=100 - 10 * number))
        rig.clock.advance(seconds=1)
    return rig


def shown(found: Any) -> list[str]:
    return [name for item in found["items"] for name in item["resources"]]


def test_of_a_group_and_of_a_host(crowded: Rig) -> None:
    for found in (
        overview.of_group(crowded.service, "new", roles.EVERYTHING),
        overview.of_host(crowded.service, "host-d", roles.EVERYTHING),
    ):
        assert (shown(found), found["more"]) == (["new-3", "new-2"], True)


def test_what_has_started_is_first(crowded: Rig) -> None:
    found = overview.of_group(crowded.service, "new", roles.EVERYTHING)
    maintenance.approve(crowded.service, OPERATOR, found["items"][1]["id"])
    crowded.tick()
    assert shown(overview.of_group(crowded.service, "new", roles.EVERYTHING)) == ["new-2", "new-3"]


def test_of_a_vm(rig: Rig) -> None:
    rig.schedule(Kind.RESTART, "db", notice=timedelta(minutes=60))
    rig.schedule(Kind.REDEPLOY, "db", notice=timedelta(minutes=30))
    found = overview.of_vm(rig.service, "db", roles.EVERYTHING)
    assert ([item["type"] for item in found["items"]], found["more"]) == (["Redeploy", "Reboot"], False)
