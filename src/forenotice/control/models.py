"""What operators send: each request as a model that takes nothing it does not know."""

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    WithJsonSchema,
)

from forenotice.core import fleet, rollouts, selectors, windows
from forenotice.core.fleet import (
    MAX_ADDRESSES,
    MAX_AMOUNT,
    MAX_BUDGET,
    MAX_LABELS,
    MAX_TAGS,
    MAX_USER_OPERATIONS,
    Facts,
    Listening,
    ScopeKind,
)
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.core.roles import MOST_NETWORKS, Role
from forenotice.settings.spans import Span, lasting

EventStatus = Literal["Scheduled", "Started", "Completed", "Canceled", "Failed"]
"""An event is never Planned."""

MAX_NAMES = 10_000
MAX_PATTERNS = 50
YEAR_MINUTES = 366 * 24 * 60
LONGEST_REASON = 1000
# Neither control characters nor any that turn the direction of a text, or are not seen at all.
REASON = r"[^\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*"


def _name(noun: str) -> AfterValidator:
    def check(name: str) -> str:
        return fleet.require_name(noun, name)

    return AfterValidator(check)


def _selected(name: str) -> str:
    """A VM, or a host or several: one part of a selector."""
    if not re.search(r"[!*?:]", name) or "," in name:
        return fleet.require_name("VM or host", name)
    return selectors.of_hosts(name).text


def _max_unavailable(value: object) -> object:
    fleet.require_max_unavailable(str(value))
    return value


def require_reason(reason: str) -> str:
    """The same wherever it is given."""
    if len(reason) > LONGEST_REASON or not re.fullmatch(REASON, reason):
        raise ValueError(
            f"a reason is at most {LONGEST_REASON} printable characters: leave out lines, control and direction marks"
        )
    return reason


def text(pattern: str, **more: object) -> WithJsonSchema:
    """As the description tells it. What enforces it says in its own words what is wrong."""
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$", **more})


NAMED = text(fleet.NAME.pattern)
PATTERN = r"!?[A-Za-z0-9._*?-]{1,64}"
HOST_PATTERN = r"!?(label:[A-Za-z0-9._/-]{1,64}=[A-Za-z0-9._/*?-]{1,64}|[A-Za-z0-9._*?-]{1,64})"
SCOPE_PATTERN = r"!?((group|vm):)?[A-Za-z0-9._*?-]{1,64}"

HostName = Annotated[str, _name("host"), NAMED]
VmName = Annotated[str, _name("VM"), NAMED]
GroupName = Annotated[str, _name("group"), NAMED]
TokenName = Annotated[str, _name("token"), NAMED]
SubscriptionName = Annotated[str, _name("subscription"), NAMED]
Selected = Annotated[str, AfterValidator(_selected), text(HOST_PATTERN)]
Amount = Annotated[float, Field(strict=True, ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]
Label = Annotated[str, text(fleet.LABEL.pattern)]
# Without control characters: they end up in logs, terminals and databases.
Text = Annotated[str, StringConstraints(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]
LongText = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Reason = Annotated[str, AfterValidator(require_reason), text(REASON, maxLength=LONGEST_REASON)]
Duration = Annotated[timedelta, BeforeValidator(Span.read), WithJsonSchema({"type": "string"})]
Lasting = Annotated[timedelta, BeforeValidator(lasting), WithJsonSchema({"type": "string"})]
Selector = Annotated[str, StringConstraints(min_length=1, max_length=70_000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Address = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f]*$")]
Receiver = Annotated[Address, Field(examples=["https://hooks.example.com/forenotice"])]
HostAddress = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Position = Annotated[StrictInt, Field(ge=0, le=2**63 - 1)]
Domain = Annotated[StrictInt, Field(ge=0, le=999)]
Minutes = Annotated[float, Field(strict=True, ge=0, le=YEAR_MINUTES, allow_inf_nan=False)]
PauseMinutes = Annotated[Minutes, Field(le=rollouts.LONGEST_PAUSE // timedelta(minutes=1))]
Count = Annotated[StrictInt, Field(ge=1, le=MAX_USER_OPERATIONS)]
Addresses = Annotated[list[Text], Field(max_length=MAX_ADDRESSES)]
MaxUnavailable = Annotated[
    int | str,
    BeforeValidator(_max_unavailable),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_BUDGET},
                {"type": "string", "pattern": "^(100|[1-9][0-9]?)%$"},
            ],
            "examples": ["25%"],
        }
    ),
]
AtLeast = Annotated[StrictInt, Field(ge=0, le=MAX_BUDGET)]
Windows = Annotated[list[Text], Field(max_length=windows.MOST, examples=[["mon-fri 22:00-04:00 Europe/Berlin"]])]


def several(pattern: str, longest: int) -> WithJsonSchema:
    """With commas between them, and spaces around."""
    return text(f"[ ,]*{pattern} *(,[ ,]*{pattern} *)*[ ,]*", maxLength=longest)


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    def given(self) -> dict[str, Any]:
        """What was sent, without defaults."""
        return self.model_dump(exclude_unset=True)


class NewHost(Request):
    name: HostName
    cordoned: StrictBool = False
    labels: Annotated[dict[Label, Label], Field(max_length=MAX_LABELS)] = {}
    capacity: Amount | None = None
    """What fits on it, in the unit of the VMs' `size`; null: any number of VMs."""
    address: HostAddress | None = None
    """Where drivers reach it: a name, an address or a URI."""


class HostChange(Request):
    """What is left out stays."""

    cordoned: StrictBool = False
    labels: dict[Label, Label | None] = {}
    """Labels that are not given stay; null removes one."""
    capacity: Amount | None = None
    address: HostAddress | None = None
    """Where drivers reach it; null removes it."""


class PolicyChange(Request):
    listening: Listening = Listening.AUTO
    auto_approve_restart: StrictBool = False
    auto_approve_redeploy: StrictBool = False
    terminate_notice_minutes: Minutes | None = None
    max_user_operations: Count | None = None
    max_unavailable: MaxUnavailable | None = None
    min_available: AtLeast | None = None
    windows: Windows = []


class NewGroup(Request):
    name: GroupName
    kind: ScopeKind
    policy: PolicyChange = PolicyChange()


class GroupChange(Request):
    policy: PolicyChange


class FactsChange(Request):
    location: Text = ""
    resource_group: Text = ""
    subscription: Text = ""
    size: Text = ""
    os_type: Text = ""
    zone: Text = ""
    eviction_policy: Text = ""
    az_environment: Text = ""
    offer: Text = ""
    sku: Text = ""
    computer_name: Text = ""
    tags: Annotated[dict[Text, Text], Field(max_length=MAX_TAGS)] = {}


class NewVm(Request):
    name: VmName
    host: HostName
    group: GroupName | None = None
    update_domain: Domain = 0
    fault_domain: Domain = 0
    spot: StrictBool = False
    addresses: Addresses = []
    vm_id: Text | None = None
    facts: FactsChange = FactsChange()
    size: Amount | None = None
    """How much of its host's capacity it takes; null: 1. What guests see as `vmSize` is `facts.size`."""

    def spec(self) -> VmSpec:
        return VmSpec(
            name=self.name,
            host=self.host,
            group=self.group,
            update_domain=self.update_domain,
            fault_domain=self.fault_domain,
            spot=self.spot,
            addresses=tuple(self.addresses),
            vm_id=self.vm_id,
            facts=Facts(**self.facts.model_dump()),
            size=self.size,
        )


class VmChange(Request):
    """What is left out stays; of the facts, too."""

    host: HostName = ""
    group: GroupName | None = None
    update_domain: Domain = 0
    fault_domain: Domain = 0
    spot: StrictBool = False
    addresses: Addresses = []
    vm_id: Text = ""
    facts: FactsChange = FactsChange()
    size: Amount | None = None


class NewOperation(Request):
    kind: Kind
    names: Annotated[list[Selected], Field(min_length=1, json_schema_extra={"maxItems": MAX_NAMES})]
    """Of VMs; or of hosts, also as the parts of a selector such as `label:rack=r1`. The role limits how many."""
    notice_minutes: Minutes | None = None
    reason: Reason = ""


class NewRollout(Request):
    kind: Literal["update", "migrate", "reboot"]
    hosts: Annotated[Selector, Field(examples=["rack1-*,!rack1-07"])]
    """Names with wildcards, and labels such as `label:rack=r1`; `!` stands before exceptions."""
    notice_minutes: Minutes | None = None
    batch: Annotated[StrictInt, Field(ge=1, le=rollouts.MOST_AT_ONCE)] = 1
    """Hosts under way at once, at most."""
    pause_minutes: PauseMinutes = 0
    """Between the end of one wave and the next."""
    gate: Annotated[Address | None, Field(examples=["https://shop.example.com/healthy"])] = None
    """What must be green before each wave: a URL, or the name of a command in the service's settings."""
    max_failures: Annotated[StrictInt, Field(ge=1, le=rollouts.MOST_FAILURES)] = 1
    """After so many hosts that failed it pauses."""
    windows: Windows = []
    reason: Reason = ""

    def request(self, reason: str) -> rollouts.Request:
        options = rollouts.Options(
            notice=None if self.notice_minutes is None else timedelta(minutes=self.notice_minutes),
            batch=self.batch,
            pause=timedelta(minutes=self.pause_minutes),
            gate=self.gate,
            max_failures=self.max_failures,
            windows=windows.parse_all(self.windows),
        )
        return rollouts.Request(kind=rollouts.KINDS[self.kind], hosts=self.hosts, options=options, reason=reason)


class Because(Request):
    reason: Reason = ""


class Resumption(Because):
    retry: StrictBool = False
    """Hosts that failed have another try."""


class DriverResult(Request):
    """What became of each VM that a driver's call asked for."""

    attempt: Annotated[StrictInt, Field(ge=1, le=1000)]
    done: Annotated[list[VmName], Field(max_length=MAX_NAMES)] = []
    failures: Annotated[dict[VmName, LongText], Field(max_length=MAX_NAMES)] = {}


class _Wanted(Request):
    types: Annotated[list[Text], Field(max_length=MAX_PATTERNS, examples=[["forenotice.event.*"]])] = []
    """CloudEvents types, in which * stands for anything; empty: all."""
    groups: Annotated[LongText, Field(examples=["web-*,vm:db"])] = ""
    """Whose entries; empty: everybody's, and those that are nobody's."""
    statuses: Annotated[list[EventStatus], Field(max_length=MAX_PATTERNS)] = []
    """Only entries of events, and of those that are so from then on; empty: everything."""


class NewSubscription(_Wanted):
    name: SubscriptionName
    url: Receiver
    secret: Text | None = None
    """Messages are signed with it; null: one is made, and shown this once."""
    after: Position | None = None
    """The journal position behind which it begins; null: with what happens from now on."""


class SubscriptionChange(_Wanted):
    """What is left out stays."""

    url: Receiver = ""
    secret: Text = ""


class Replay(Request):
    after: Position


class NewToken(Request):
    name: TokenName
    role: Role
    scopes: Annotated[LongText | None, Field(examples=["web-*,vm:db"])] = None
    """Whose VMs, groups and events; needed for a tenant, possible for a viewer."""
    expires_in: Annotated[Lasting | None, Field(examples=["90d"])] = None
    """A duration or `never`; 90 days if left out."""
    networks: Annotated[list[Text], Field(max_length=MOST_NETWORKS, examples=[["10.0.0.0/8"]])] = []
    """Source networks that it may be used from; anywhere if left out."""


class TokenRotation(Request):
    overlap: Annotated[Duration, Field(examples=["1h"])] = timedelta(hours=1)
    """How long the old secret still works; `0s` ends it at once."""
    expires_in: Annotated[Lasting | None, Field(examples=["90d"])] = None
    """A duration or `never`; if left out, the same lifetime as before."""
