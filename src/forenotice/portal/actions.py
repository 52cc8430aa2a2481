"""What can be done to VMs and hosts, in the words in which somebody asks for it."""

from dataclasses import dataclass
from datetime import timedelta

from forenotice.core import announcements
from forenotice.core.operations import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One kind of operation, as somebody asks for it."""

    kind: Kind
    verb: str
    meaning: str
    then: str
    """What happens once it starts."""
    warning: str = ""
    """Of what cannot be undone."""

    @property
    def noun(self) -> str:
        return "host" if self.kind.traits.of_host else "VM"

    @property
    def notice(self) -> timedelta | None:
        """Where none is given; None: each group says it."""
        return announcements.usual_notice(self.kind)

    @property
    def notice_can_be_chosen(self) -> bool:
        return self.kind not in announcements.NOTICE_SETTLED


ACTIONS = {
    action.kind: action
    for action in (
        Action(
            kind=Kind.RESTART,
            verb="Restart",
            meaning="a VM, where it is",
            then="It restarts on its host.",
        ),
        Action(
            kind=Kind.REDEPLOY,
            verb="Redeploy",
            meaning="a VM: it moves to another host and starts anew there",
            then="It is stopped, and starts anew on another host.",
        ),
        Action(
            kind=Kind.EVICTION,
            verb="Evict",
            meaning="a spot VM: its capacity is needed elsewhere",
            then="It is removed from its host and from the fleet.",
            warning="An eviction cannot be undone: what is evicted is removed for good.",
        ),
        Action(
            kind=Kind.DELETION,
            verb="Delete",
            meaning="a VM for good",
            then="It is removed from its host and from the fleet.",
            warning="A deletion cannot be undone: what is deleted is removed for good.",
        ),
        Action(
            kind=Kind.HOST_UPDATE,
            verb="Update",
            meaning="a host: its VMs freeze for some seconds",
            then="The host is updated; its VMs stand still for some seconds.",
        ),
        Action(
            kind=Kind.HOST_REBOOT,
            verb="Reboot",
            meaning="a host, and all VMs on it",
            then="The host reboots, and its VMs with it.",
        ),
        Action(
            kind=Kind.LIVE_MIGRATION,
            verb="Migrate",
            meaning="all VMs of a host to other hosts, while they run",
            then="Its VMs move to other hosts; each stands still for some seconds.",
        ),
        Action(
            kind=Kind.DEGRADED_HARDWARE,
            verb="Degrade",
            meaning="a host whose hardware is expected to fail: its VMs are redeployed in good time",
            then="Its VMs are stopped, and start anew on other hosts.",
        ),
        Action(
            kind=Kind.HARDWARE_FAILURE,
            verb="Fail",
            meaning="a host whose hardware has failed: its VMs are redeployed at once",
            then="Its VMs start anew on other hosts.",
            warning="A failure gives nobody time to prepare and cannot be undone: it starts the moment you confirm.",
        ),
    )
}
