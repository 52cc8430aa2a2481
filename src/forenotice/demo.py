"""`serve --demo`: its small fleet, and the commands to try next that it prints."""

import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import UNSET

from forenotice.core.fleet import Listening, ScopeKind
from forenotice.logs import log
from forenotice.service import fleet
from forenotice.service.calls import SYSTEM
from forenotice.service.service import Service
from forenotice.settings import Address, Settings, table
from forenotice.views.fleet import Fleet, GroupTable, HostTable, Policy, VmTable


def show(words: str) -> None:
    try:
        print(words, flush=True)
    except OSError as error:
        log.warning("The lines to try next cannot be written", action="demo.unwritten", reason=str(error))
        # What is left in the buffer would fail once more at the end.
        sys.stdout = io.StringIO()


def text(guests_at: Address | Path, operators_at: str, settings: Settings, once: str | None = None) -> str:
    """`once` is what signs in to the portal one time, where there is such a thing."""
    vm = settings.metadata[0].vm or settings.as_vm
    if isinstance(guests_at, Path):
        base, curl, others = "http://localhost", f"curl --unix-socket {shlex.quote(str(guests_at))}", ""
        inside = ""
    else:
        base, curl, others = f"http://{guests_at}", "curl", "; as another VM: curl --interface 127.1.0.21 ... is pool_1"
        inside = f"\n  FORENOTICE_ENDPOINT={base} forenotice guest events"
    url = f"{base}/metadata/scheduledevents?api-version=2020-07-01"
    prefix = "".join(f"{name}={shlex.quote(value)} " for name, value in _variables(settings))
    portal = f"{_scheme(settings)}://{operators_at}"
    sign_in = link(operators_at, settings, once) if once else ""
    return f"""
forenotice serves a demo fleet: guests at {guests_at}, operators at {portal}.
You are {vm}{"" if settings.metadata[0].vm else others}.

{sign_in}In another terminal (. .venv/bin/activate first), try:

  {curl} -H Metadata:true '{url}'
  {prefix}forenotice vm restart {vm}
  {curl} -H Metadata:true '{url}'
  {prefix}forenotice event list
  {prefix}forenotice event explain ID{inside}
  {curl} -H Metadata:true -d '{{"StartRequests":[{{"EventId":"ID"}}]}}' '{url}'

with the ID that `event list` shows. The event becomes Started at once and vanishes when the restart is done.
The administrator's token is in {settings.token_file}. Ctrl-C ends it.
To start afresh: rm -r {shlex.quote(str(settings.directory))}
"""


def link(operators_at: str, settings: Settings, once: str) -> str:
    return f"""Open this in a browser within 15 minutes; it signs you in, once:

  {_scheme(settings)}://{operators_at}/sign-in?once={once}

"""


def _variables(settings: Settings) -> Iterator[tuple[str, str]]:
    """What a command in another terminal cannot know by itself."""
    if settings.data != table.DATA.read(table.DATA.default or ""):
        yield table.DATA.variable, str(settings.data.absolute())


def _scheme(settings: Settings) -> str:
    return "https" if settings.control_certificate else "http"


HEARD = Policy(listening=Listening.ALWAYS)

PLACES = (
    # name, host, group, domain, last number of its address
    ("web-0", "host-a", "web", 0, 10),
    ("web-1", "host-b", "web", 1, 11),
    ("web-2", "host-c", "web", 2, 12),
    ("pool_0", "host-a", "pool", 0, 20),
    ("pool_1", "host-a", "pool", 0, 21),
    ("pool_2", "host-b", "pool", 1, 22),
    ("pool_3", "host-b", "pool", 1, 23),
    ("pool_4", "host-c", "pool", 2, 24),
    ("db", "host-b", None, 0, 30),
    ("batch", "host-c", None, 0, 40),
)

FLEET = Fleet(
    hosts={name: HostTable() for name in ("host-a", "host-b", "host-c", "host-d")},
    groups={
        "web": GroupTable(kind=ScopeKind.AVAILABILITY_SET, policy=HEARD),
        "pool": GroupTable(
            kind=ScopeKind.PLACEMENT_GROUP, policy=Policy(listening=Listening.ALWAYS, terminate_notice_minutes=5)
        ),
    },
    vms={
        name: VmTable(
            host=host,
            group=group,
            update_domain=domain,
            fault_domain=domain,
            spot=name == "batch",
            addresses=[f"127.1.0.{number}"],
            policy=HEARD if group is None else UNSET,
        )
        for name, host, group, domain, number in PLACES
    },
)


def make_fleet(service: Service) -> None:
    """Make the fleet on the first start; later it is what its owner made of it."""
    with service.store.read() as reader:
        if reader.hosts.page(None, 1):
            return
    fleet.apply(service, SYSTEM, FLEET, prune=False, dry_run=False)
