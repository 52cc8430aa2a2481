"""A VM's domain on one host: what it looks like now, and what can be done to it."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import libvirt

from forenotice.core import errors
from forenotice.drivers.libvirt import domains
from forenotice.drivers.libvirt.connections import ANSWER_SECONDS, Connection, HostError, number
from forenotice.drivers.libvirt.domains import Definition, Mark

STATES = {
    libvirt.VIR_DOMAIN_NOSTATE: "has no state",
    libvirt.VIR_DOMAIN_RUNNING: "runs",
    libvirt.VIR_DOMAIN_BLOCKED: "runs",
    libvirt.VIR_DOMAIN_PAUSED: "is paused",
    libvirt.VIR_DOMAIN_SHUTDOWN: "is being shut down",
    libvirt.VIR_DOMAIN_SHUTOFF: "is shut off",
    libvirt.VIR_DOMAIN_CRASHED: "has crashed",
    libvirt.VIR_DOMAIN_PMSUSPENDED: "is suspended by its guest",
}
REASONS = {
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER): "by somebody",
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_IOERROR): "by an I/O error of a disk",
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_WATCHDOG): "by its watchdog",
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_CRASHED): "because its guest has crashed",
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION): "by a migration",
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP): "while it starts",
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN): "by its guest",
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED): "by somebody",
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_CRASHED): "because it has crashed",
    (libvirt.VIR_DOMAIN_SHUTOFF, libvirt.VIR_DOMAIN_SHUTOFF_FAILED): "because it could not start",
    (libvirt.VIR_DOMAIN_CRASHED, libvirt.VIR_DOMAIN_CRASHED_PANICKED): "with a panic of its kernel",
}
REMOVED = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
)
"""With everything that libvirt keeps for it."""
MOVED = (
    libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
    | libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
    | libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM
)
"""With what another host has no use for; the firmware's variables may be on storage that both share."""
UNSUPPORTED = (
    libvirt.VIR_ERR_INVALID_ARG,
    libvirt.VIR_ERR_NO_SUPPORT,
    libvirt.VIR_ERR_CONFIG_UNSUPPORTED,
    libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED,
)
"""By these errors a hypervisor says that it does not know a flag."""

AGENT_SECONDS = 10.0
"""libvirt gives up an agent that is silent after five."""

T = TypeVar("T")


class TwoDomainsError(errors.ConflictError):
    """A VM has two domains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A domain at one moment."""

    state: int
    reason: int
    persistent: bool
    autostart: bool
    snapshots: int
    xml: str
    """The definition with which it starts next, with its secrets."""
    definition: Definition
    live: Definition | None
    """None: it is shut off."""

    @property
    def is_active(self) -> bool:
        return self.live is not None

    @property
    def is_running(self) -> bool:
        return self.state in (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_BLOCKED)

    @property
    def is_paused(self) -> bool:
        return bool(self.state == libvirt.VIR_DOMAIN_PAUSED)

    @property
    def is_ending(self) -> bool:
        return bool(self.state == libvirt.VIR_DOMAIN_SHUTDOWN)

    @property
    def is_moving(self) -> bool:
        """Paused by a migration that comes, goes, or was broken off."""
        return self.is_paused and bool(self.reason == libvirt.VIR_DOMAIN_PAUSED_MIGRATION)

    @property
    def is_dead(self) -> bool:
        """By itself it will not come back."""
        return not self.is_active or self.state == libvirt.VIR_DOMAIN_CRASHED

    @property
    def sentence(self) -> str:
        """`is paused by an I/O error of a disk`"""
        return " ".join(filter(None, (STATES.get(self.state, ""), REASONS.get((self.state, self.reason), ""))))

    def live_mark(self, operation: str) -> Mark | None:
        """It is there if the domain was started, frozen or moved by this operation."""
        mark = self.live.mark if self.live else None
        return mark if mark and mark.operation == operation else None

    def kept_mark(self, operation: str) -> Mark | None:
        """It is there if this operation has begun to end the domain, or has defined it."""
        mark = self.definition.mark
        return mark if self.persistent and mark and mark.operation == operation else None


class Machine:
    """Each method is one call. It finds the domain anew, since somebody may have replaced it.

    After an UnreachableError, make another one.
    """

    def __init__(self, connection: Connection, host: str, vm: str, vm_id: str, seconds: float = ANSWER_SECONDS) -> None:
        """`seconds`: for a call that names no other time."""
        self.connection = connection
        self.host, self.vm, self._vm_id = host, vm, vm_id
        self._seconds = seconds
        self._given_up = threading.Event()
        """A call was not answered in time. What it has not begun by then, it does not do later."""

    def look(self) -> Look | None:
        """None: the host has no such domain. TwoDomainsError: it is not clear which it is."""
        return self._ask(self._look)

    def mark(self, mark: Mark, *, live: bool = False, kept: bool = False) -> None:
        """`live`: it goes when the domain is shut off; `kept`: it counts from the next start on."""
        flags = live * libvirt.VIR_DOMAIN_AFFECT_LIVE | kept * libvirt.VIR_DOMAIN_AFFECT_CONFIG
        element = libvirt.VIR_DOMAIN_METADATA_ELEMENT
        self._do(lambda domain: domain.setMetadata(element, mark.xml(), domains.PREFIX, domains.OPERATION, flags))

    def suspend(self) -> None:
        def suspend(domain: Any) -> None:
            domain.suspend()
            # If it happens all the same, nobody else would end it.
            if self._given_up.is_set():
                domain.resume()

        self._do(suspend)

    def resume(self) -> None:
        self._do(lambda domain: domain.resume())

    def shut_down(self) -> None:
        """Ask the guest to: through its agent if it has one, else by its power button.

        It may have ended by itself, or not be able to, and some agents answer only when it has ended. So what comes of
        it is seen later, and it is not waited for longer than a silent agent takes.
        """
        agent, button = libvirt.VIR_DOMAIN_SHUTDOWN_GUEST_AGENT, libvirt.VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN
        given_up = threading.Event()

        def shut_down(link: Any) -> None:
            domain = self.domain(link)
            for flags in (agent, button, 0):
                with contextlib.suppress(libvirt.libvirtError):
                    if not given_up.is_set():
                        domain.shutdownFlags(flags)
                    return

        call = self.connection.begin(shut_down, self._seconds)
        if call.is_over(AGENT_SECONDS):
            with contextlib.suppress(HostError):
                call.result()
        given_up.set()

    def power_off(self, seconds: float) -> None:
        self._do(lambda domain: domain.destroy(), seconds)

    def start(self, seconds: float) -> None:
        def start(domain: Any) -> None:
            # It would continue where it was saved, not boot.
            saved = domain.hasManagedSaveImage()
            domain.createWithFlags(libvirt.VIR_DOMAIN_START_FORCE_BOOT if saved else 0)

        self._do(start, seconds)

    def define(self, xml: str) -> None:
        """A transient domain becomes persistent by it."""
        self._ask(lambda link: link.defineXML(xml))

    def undefine(self, flags: int) -> None:
        """A running domain becomes transient by it."""

        def undefine(domain: Any) -> None:
            try:
                domain.undefineFlags(flags)
            except libvirt.libvirtError as error:
                if number(error) not in UNSUPPORTED:
                    raise
                domain.undefine()

        self._do(undefine)

    def set_autostart(self) -> None:
        self._do(lambda domain: domain.setAutostart(1))

    def abort_job(self) -> None:
        self._do(lambda domain: domain.abortJob())

    def job(self, flags: int = 0) -> dict[str, Any]:
        """What it is doing, or did last."""
        return dict(self._do(lambda domain: domain.jobStats(flags)))

    def domain(self, link: Any) -> Any:
        """HostError: there is none any more, or nobody waits for it."""
        found = self.find(link)
        if self._given_up.is_set():
            raise HostError("it was given up")
        if found is None:
            raise HostError(f"{self.host} has no domain {self.vm}", libvirt.VIR_ERR_NO_DOMAIN)
        return found

    def find(self, link: Any) -> Any:
        """The `libvirt.virDomain`; None: there is none."""
        by_id, by_name = _found(link.lookupByUUIDString, self._vm_id), _found(link.lookupByName, self.vm)
        if by_id is not None and by_name is not None and by_id.UUIDString() != by_name.UUIDString():
            raise TwoDomainsError(
                f"{self.host} has two domains for {self.vm}: {by_id.name()} has its id, and another one has its name"
            )
        return by_name if by_id is None else by_id

    def _do(self, act: Callable[[Any], T], seconds: float | None = None) -> T:
        return self._ask(lambda link: act(self.domain(link)), seconds)

    def _ask(self, function: Callable[[Any], T], seconds: float | None = None) -> T:
        try:
            return self.connection.ask(function, seconds or self._seconds)
        except errors.UnavailableError:
            self._given_up.set()
            raise

    def _look(self, link: Any) -> Look | None:
        domain = self.find(link)
        if domain is None:
            return None
        try:
            return _looked(domain)
        except libvirt.libvirtError as error:
            # It went while we looked.
            if number(error) == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise


def _looked(domain: Any) -> Look:
    live = domains.parse(domain.XMLDesc()) if domain.isActive() else None
    state, reason = domain.state()
    persistent = bool(domain.isPersistent())
    xml = domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)
    snapshots = 0
    with contextlib.suppress(libvirt.libvirtError):
        snapshots = domain.snapshotNum()
    return Look(
        state=state,
        reason=reason,
        persistent=persistent,
        autostart=persistent and bool(domain.autostart()),
        snapshots=snapshots,
        xml=xml,
        definition=domains.parse(xml),
        live=live,
    )


def _found(look_up: Callable[[str], Any], key: str) -> Any:
    try:
        return look_up(key)
    except libvirt.libvirtError as error:
        # The latter: what identifies a VM need not be a UUID.
        if number(error) in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_INVALID_ARG):
            return None
        raise
