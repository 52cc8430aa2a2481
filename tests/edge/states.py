"""States of a host whose guests are those of tests/metadata."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.metadata.running import DB, DB_VM, EVENT, NOON, WEB, WEB_VMS

from forenotice import publication
from forenotice.cluster.messages import HostState
from forenotice.core.operations import Status

HOST = "rack1.host-a"


def state(
    epoch: int = 0,
    position: int = 0,
    *,
    host: str = HOST,
    incarnation: int = WEB.incarnation,
    status: Status = Status.SCHEDULED,
    **more: Any,
) -> HostState:
    """Its event has this status."""
    scopes = (
        publication.of(replace(WEB, incarnation=incarnation), vms=WEB_VMS, events=(replace(EVENT, status=status),)),
        publication.of(DB, vms=(DB_VM,)),
    )
    at = NOON + timedelta(seconds=position)
    return HostState(host=host, epoch=epoch, position=position, at=at, **{"scopes": scopes, **more})
