"""The kinds of operations against the tables of the protocol."""

from datetime import timedelta

import pytest
from tests.core import invariants

from forenotice.core.operations import ANNOUNCED, DEGRADED_NOTICE, Kind, Status

HOST = "Host server is undergoing maintenance."
FAILURE = "Virtual machine has encountered a failure."
MIGRATION = "Virtual machine is being paused because of a memory-preserving Live Migration operation."
RESTART = "Virtual machine is going to be restarted as requested by authorized user."
REDEPLOY = "Virtual machine is going to be redeployed as requested by authorized user."


@pytest.mark.parametrize(
    ("kind", "type_", "source", "seconds", "duration", "description"),
    [
        (Kind.RESTART, "Reboot", "User", 900, -1, RESTART),
        (Kind.REDEPLOY, "Redeploy", "User", 600, -1, REDEPLOY),
        (Kind.EVICTION, "Preempt", "Platform", 30, -1, ""),
        (Kind.DELETION, "Terminate", "User", 300, -1, ""),
        (Kind.HOST_UPDATE, "Freeze", "Platform", 900, 9, HOST),
        (Kind.HOST_REBOOT, "Reboot", "Platform", 900, -1, HOST),
        (Kind.LIVE_MIGRATION, "Freeze", "Platform", 900, 5, MIGRATION),
        (Kind.DEGRADED_HARDWARE, "Redeploy", "Platform", 600, -1, FAILURE),
        (Kind.HARDWARE_FAILURE, "Redeploy", "Platform", 0, -1, FAILURE),
    ],
)
def test_what_each_kind_tells_guests(
    kind: Kind, type_: str, source: str, seconds: int, duration: int, description: str
) -> None:
    traits = kind.traits
    assert (traits.type, traits.source) == (type_, source)
    assert traits.minimum_notice == timedelta(seconds=seconds)
    assert (traits.duration, traits.description) == (duration, description)


def test_what_each_kind_does() -> None:
    vm_kinds = {Kind.RESTART, Kind.REDEPLOY, Kind.EVICTION, Kind.DELETION}
    assert {kind for kind in Kind if kind.traits.of_host} == set(Kind) - vm_kinds
    assert {kind for kind in Kind if kind.traits.maintenance} == invariants.PLANNED
    assert {kind for kind in Kind if kind.traits.moves} == invariants.MOVING
    assert {kind for kind in Kind if kind.traits.removes} == {Kind.EVICTION, Kind.DELETION}
    assert timedelta(days=7) == DEGRADED_NOTICE


def test_what_is_listed_is_scheduled_or_started() -> None:
    assert {Status.SCHEDULED, Status.STARTED} == ANNOUNCED
    assert {status for status in Status if status.live} == ANNOUNCED | {Status.PLANNED}
