"""The fleet: hosts, VMs, and the scopes whose VMs share one document."""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter

from forenotice.core import errors, libvirt_uri
from forenotice.core.operations import Status
from forenotice.core.windows import Window

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
IS_NAME = "must be a name: 1 to 64 letters, digits, '.', '_' or '-'"
VM_ID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
TERMINATE_NOTICE_MIN = timedelta(minutes=5)
TERMINATE_NOTICE_MAX = timedelta(minutes=15)
SHUTDOWN_TIMEOUT = timedelta(seconds=60)
SHUTDOWN_TIMEOUT_MAX = timedelta(hours=1)
MAX_USER_OPERATIONS = 1_000_000
MAX_BUDGET = 1_000_000
MAX_UNAVAILABLE = re.compile(r"([1-9]\d{0,6})(%?)", re.ASCII)
DIGITS = re.compile(r"([0-9]+)")
MAX_ADDRESSES = 64
LINK_LOCAL = re.compile(r"169\.254\.|fe[89ab][0-9a-f]:")
RESERVED = tuple(map(ipaddress.ip_network, ("0.0.0.0/8", "240.0.0.0/4", "::/96")))
"""Addresses that no VM has; the last network once embedded IPv4 addresses."""
MAX_TAGS = 64
RENAMED_POLICIES = {"auto_approve": "auto_approve_restart and auto_approve_redeploy"}
"""Keys of a policy that are no longer known, and what to give instead."""
LABEL = re.compile(r"[A-Za-z0-9._/-]{1,64}")
HOST_ADDRESS = re.compile(r"[!-~]{1,256}")
"""The key of a host's label, and its value."""
MAX_LABELS = 64
INVENTORIES = ("libvirt",)
MAX_AMOUNT = 10**15
"""Of a host's capacity and of a VM's size."""
THOUSANDTHS = 1000
"""Amounts are added up and compared in thousandths: sums of fractions would not be exact."""
MOST_NAMES = 6
"""In a list that stays short."""
STANDALONE_PREFIX = "vm:"
GROUP_PREFIX = "group:"


class ScopeKind(StrEnum):
    STANDALONE = "standalone"
    AVAILABILITY_SET = "availability-set"
    PLACEMENT_GROUP = "placement-group"
    CLOUD_SERVICE = "cloud-service"


class Listening(StrEnum):
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What an operator has settled for a scope."""

    listening: Listening = Listening.AUTO
    auto_approve_restart: bool = False
    """Users' own restarts need no approval,"""
    auto_approve_redeploy: bool = False
    """and their redeploys."""
    terminate_notice: timedelta | None = None
    """Notice before a deletion; None: deletions are not announced. Groups only."""
    max_user_operations: int | None = None
    """How many users' operations may be live at once; None: any number."""
    max_unavailable: str | None = None
    """How many VMs planned maintenance may have down at once: a number or a percentage such as `25%`. Groups only."""
    min_available: int | None = None
    """How many VMs planned maintenance must leave. Groups only."""
    windows: tuple[Window, ...] = ()
    """When planned maintenance may start; without any, always."""
    shutdown_timeout: timedelta = SHUTDOWN_TIMEOUT
    """How long drivers let a VM shut down before they power it off; zero: they power it off at once."""

    @property
    def has_budget(self) -> bool:
        return self.max_unavailable is not None or self.min_available is not None

    def allowed_down(self, members: int) -> int | None:
        """How many VMs of so many may be down at once; None: any number. A part of a VM is none."""
        return min((allowed for allowed, _ in self._budgets(members)), default=None)

    def budget(self, members: int) -> str:
        """The rule that decides, as the operator wrote it; empty without one."""
        return min(self._budgets(members), key=itemgetter(0), default=(0, ""))[1]

    def _budgets(self, members: int) -> Iterator[tuple[int, str]]:
        if (most := self.max_unavailable) is not None:
            yield members * int(most[:-1]) // 100 if most.endswith("%") else int(most), f"max_unavailable {most}"
        if self.min_available is not None:
            yield max(0, members - self.min_available), f"min_available {self.min_available}"


DEFAULT_POLICY = Policy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A group, or one standalone VM: whose VMs share a document."""

    key: str
    """`group:NAME` or `vm:NAME`."""
    kind: ScopeKind
    tag: str
    """Short and random: an ETag of a scope that once had this name never fits."""
    incarnation: int = 1
    policy: Policy = DEFAULT_POLICY
    last_heard: datetime | None = None
    unheard_since: datetime | None = None
    """Since when an edge of its guests is lost, so that they may be polling without being heard."""

    @property
    def name(self) -> str:
        return self.key.partition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerScope:
    """When scopes with a certain key were removed."""

    ended_at: datetime
    """When it was last removed."""
    before: datetime | None = None
    """When it was removed the time before."""
    exists: bool
    """Whether a scope with this key exists now."""

    @property
    def hidden_until(self) -> datetime | None:
        """Only those who see all scopes see what happened up to then. A removed scope stays visible until its key is
        reused."""
        return self.ended_at if self.exists else self.before

    def hides(self, moment: datetime) -> bool:
        return self.hidden_until is not None and moment <= self.hidden_until

    def is_meant(self, named_at: datetime) -> bool:
        """Whether a name in a token made at that time means the latest scope with this key."""
        return not self.hides(named_at) and (self.exists or named_at <= self.ended_at)


class VmState(StrEnum):
    STARTED = "started"
    """Something is being done to it."""
    MISSING = "missing"
    """Its host, which is watched, does not have it."""
    SCHEDULED = "scheduled"
    """Something will be."""
    NOT_LISTENING = "not listening"
    """Nothing is planned, and no guest would see it if it were."""
    FINE = "fine"


def vm_state(status: Status | None, *, listening: bool, missing: bool = False) -> VmState:
    """By the status of whatever names it, None when nothing live does, and whether its scope listens."""
    match status:
        case Status.STARTED:
            return VmState.STARTED
        case _ if missing:
            return VmState.MISSING
        case Status.SCHEDULED:
            return VmState.SCHEDULED
    return VmState.FINE if listening else VmState.NOT_LISTENING


def furthest(events: Iterable[tuple[Status, Iterable[str]]]) -> dict[str, Status]:
    """By VM, the status of the live event that is furthest on; events as their status and the VMs they name."""
    found: dict[str, Status] = {}
    for status, names in events:
        if status.live:
            for name in names:
                if found.get(name) is not Status.STARTED:
                    found[name] = status
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    name: str
    cordoned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    """What operators tell hosts apart by, such as `rack: r1`; selectors know them as `label:rack=r1`."""
    capacity: float | None = None
    """How much fits on it, in the unit of the VMs' `size`; None: any number of VMs."""
    address: str | None = None
    """Where drivers reach it: a name, an address or a URI such as `qemu+ssh://rack1-01/system`."""
    inventory: str | None = None
    """Who tells what VMs it really has, one of INVENTORIES; None: nobody, the fleet is as operators describe it."""

    @property
    def holds(self) -> int | None:
        """Its capacity in thousandths."""
        return None if self.capacity is None else round(self.capacity * THOUSANDTHS)


class DriftKind(StrEnum):
    MISSING = "missing"
    """The fleet has the VM there; the host does not."""
    DUPLICATE = "duplicate"
    """The VM runs on several hosts."""
    REFUSED = "refused"
    """The host has it; the fleet's rules do not allow it."""
    MISPLACED = "misplaced"
    """The VM is there; the fleet's rules do not allow that."""
    DIFFERENT = "different"
    """The fleet cannot follow what its description says."""
    UNREADABLE = "unreadable"
    """Its description cannot be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a watched host differs from the fleet, in one domain or VM."""

    host: str
    name: str
    """Of the VM, or of the domain where there is none."""
    kind: DriftKind
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Optional facts of a VM, shown in `/metadata/instance`."""

    location: str = ""
    resource_group: str = ""
    subscription: str = ""
    size: str = ""
    """What guests see as `vmSize`: a name. How much of its host a VM takes is `Vm.size`."""
    os_type: str = ""
    zone: str = ""
    eviction_policy: str = ""
    az_environment: str = ""
    offer: str = ""
    """Of the image that it was made from; so is `sku`."""
    sku: str = ""
    computer_name: str = ""
    """What the guest calls itself; empty: as the VM is called."""
    tags: Mapping[str, str] = field(default_factory=dict)


NO_FACTS = Facts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vm:
    name: str
    vm_id: str
    host: str
    scope: str
    """The key of the scope it belongs to."""
    update_domain: int = 0
    fault_domain: int = 0
    spot: bool = False
    addresses: tuple[str, ...] = ()
    facts: Facts = NO_FACTS
    size: float | None = None
    """How much of its host's capacity it takes; None: 1."""

    @property
    def domains(self) -> tuple[int, int]:
        return self.update_domain, self.fault_domain

    @property
    def takes(self) -> int:
        """Its size in thousandths."""
        return taken_by(self.size)

    @property
    def known_by(self) -> tuple[str, ...]:
        """What callers may be known by, unique in the fleet."""
        return (*self.addresses, self.vm_id.lower())

    @property
    def group(self) -> str | None:
        return self.scope.removeprefix(GROUP_PREFIX) if self.scope.startswith(GROUP_PREFIX) else None


@lru_cache(maxsize=8192)
def natural_key(name: str) -> tuple[tuple[tuple[str, int, str], ...], str]:
    """Sorts names in the order people count: `ss_2` before `ss_10`."""
    texts_and_digits = (*DIGITS.split(name), "")
    pairs = zip(texts_and_digits[::2], texts_and_digits[1::2], strict=True)
    # Of two numbers without leading zeros the longer one is greater; int() would take its time with long ones.
    counted = ((text, digits.lstrip("0")) for text, digits in pairs)
    return tuple((text, len(number), number) for text, number in counted), name


def names_of(vms: Iterable[Vm]) -> tuple[str, ...]:
    return tuple(sorted((vm.name for vm in vms), key=natural_key))


def names(things: Iterable[str]) -> str:
    """A list for a sentence: `a, b and c`."""
    *most, last = list(things)
    return f"{', '.join(most)} and {last}" if most else last


def several(things: Iterable[str]) -> str:
    """A list that stays short, for a sentence: `web-0, web-1 and 40 more`."""
    known = list(things)
    more = len(known) - MOST_NAMES
    return names(known if more <= 1 else [*known[:MOST_NAMES], f"{more} more"])


def taken_by(size: float | None) -> int:
    """By a VM of this size, in thousandths."""
    return THOUSANDTHS if size is None else round(size * THOUSANDTHS)


def amount(thousandths: int) -> float:
    whole, rest = divmod(thousandths, THOUSANDTHS)
    return thousandths / THOUSANDTHS if rest else whole


def group_key(name: str) -> str:
    return GROUP_PREFIX + name


def standalone_key(name: str) -> str:
    return STANDALONE_PREFIX + name


def require_name(noun: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise errors.RefusedError(
            f"{name[:80]!r} is not a {noun} name: 1 to 64 letters, digits, '.', '_' or '-'", name=name[:80]
        )
    return name


def require_vm_id(vm_id: str) -> str:
    if not VM_ID.fullmatch(vm_id):
        raise errors.RefusedError(
            f"{vm_id[:80]!r} is not a vmId: give a GUID such as 8a506c35-679a-4f78-9d76-1f2e3d4c5b6a", vm_id=vm_id[:80]
        )
    return vm_id


def canonical_address(address: str) -> str:
    """As callers are known: without a zone, and IPv4 as such also where it comes from an IPv6 socket."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def require_syntax(address: str) -> str:
    try:
        return canonical_address(address)
    except ValueError:
        raise errors.RefusedError(
            f"{address[:80]!r} is not an IP address: give one such as 10.0.0.4 or fd00::4", address=address[:80]
        ) from None


def require_address(address: str, *, loopback: bool = False) -> str:
    """An address by which a VM can be identified; `loopback` allows loopback addresses, for tests and the demo."""
    found = require_syntax(address)
    parsed = ipaddress.ip_address(found)
    reserved = not parsed.is_loopback and any(parsed in network for network in RESERVED)
    instead = "give one such as 10.0.0.4 or fd00::4"
    for refused, kind in (
        (parsed.is_link_local, "link-local, so VMs on different interfaces can have the same one"),
        (parsed.is_multicast, "multicast, so no VM calls from there"),
        (parsed.is_unspecified, "unspecified, so no VM calls from there"),
        (reserved, "reserved, so no VM calls from there"),
        (parsed.is_loopback and not loopback, "a loopback address, so no VM calls from there"),
    ):
        if refused:
            hint = ", or start the service with --allow-loopback-addresses, for tests" if parsed.is_loopback else ""
            raise errors.RefusedError(f"{found} is {kind}: {instead}{hint}", address=found)
    return found


def is_link_local(address: str) -> bool:
    """Of a canonical address: it is unique only on its interface, so it identifies no VM."""
    return LINK_LOCAL.match(address) is not None


def require_domain(noun: str, number: int) -> int:
    if not 0 <= number <= 999:
        raise errors.RefusedError(f"{noun} {number} is out of range: give a number from 0 to 999")
    return number


def require_amount(noun: str, value: float | None) -> float | None:
    """A capacity or a size; whole numbers as such."""
    if value is not None and not 0 <= value <= MAX_AMOUNT:
        raise errors.RefusedError(f"{noun} cannot be {value}: give a number from 0 to {MAX_AMOUNT}, in any unit")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def require_host_address(address: str | None) -> str | None:
    if address is not None and not HOST_ADDRESS.fullmatch(address):
        raise errors.RefusedError(
            f"{address[:80]!r} is not an address of a host: give a name, an IP address or a URI, without spaces"
        )
    return address


def require_inventory(inventory: str | None, address: str | None) -> None:
    if inventory is None:
        return
    if inventory not in INVENTORIES:
        raise errors.RefusedError(f"{inventory[:80]!r} is no inventory: give {names(INVENTORIES)}, or none")
    if address is None or "://" not in address:
        raise errors.RefusedError(
            f"inventory {inventory} needs the host's connection URI: give an address such as "
            "qemu+ssh://rack1-01/system, too"
        )
    libvirt_uri.require(address)


def require_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    if len(labels) > MAX_LABELS:
        raise errors.RefusedError(f"{len(labels)} labels are too many: a host has at most {MAX_LABELS}")
    for key, value in labels.items():
        for noun, text in (("key", key), ("value", value)):
            if not LABEL.fullmatch(text):
                raise errors.RefusedError(
                    f"{text[:80]!r} is not the {noun} of a label: 1 to 64 letters, digits, '.', '_', '/' or '-'"
                )
    return labels


def require_policy(kind: ScopeKind, policy: Policy) -> Policy:
    notice, limit = policy.terminate_notice, policy.max_user_operations
    most, least = policy.max_unavailable, policy.min_available
    if kind is ScopeKind.STANDALONE and notice is not None:
        raise errors.RefusedError("only a group can announce deletions: terminate notice is not for a standalone VM")
    if kind is ScopeKind.STANDALONE and (most, least) != (None, None):
        raise errors.RefusedError(
            "only a group has a budget: max_unavailable and min_available are not for a standalone VM"
        )
    if notice is not None and not TERMINATE_NOTICE_MIN <= notice <= TERMINATE_NOTICE_MAX:
        raise errors.RefusedError("terminate notice must be from 5 to 15 minutes")
    if not timedelta(0) <= policy.shutdown_timeout <= SHUTDOWN_TIMEOUT_MAX:
        raise errors.RefusedError("shutdown timeout must be from 0 to 3600 seconds")
    if limit is not None and not 1 <= limit <= MAX_USER_OPERATIONS:
        raise errors.RefusedError(
            f"max_user_operations must be from 1 to {MAX_USER_OPERATIONS}; leave it out for no limit"
        )
    parsed = MAX_UNAVAILABLE.fullmatch(most) if most is not None else None
    if most is not None and (parsed is None or int(parsed[1]) > (100 if parsed[2] else MAX_BUDGET)):
        raise errors.RefusedError(
            f"max_unavailable cannot be {most[:20]!r}: give a number from 1 to {MAX_BUDGET}, or a part from 1% to "
            "100%; leave it out for no limit"
        )
    if least is not None and not 0 <= least <= MAX_BUDGET:
        raise errors.RefusedError(f"min_available must be from 0 to {MAX_BUDGET}")
    return policy
