"""A preview is what scheduling then really does: over whole random lives of a fleet, for everybody and for tenants."""

import functools
import json
import random
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.service.rig import OPERATOR, Rig

from forenotice.core import errors, roles
from forenotice.core.fleet import Listening
from forenotice.core.operations import Kind
from forenotice.service import fleet, maintenance, queries
from forenotice.service.calls import Call
from forenotice.service.service import read_published
from forenotice.store.database import Store
from forenotice.views.fleet import PolicyChange
from forenotice.wire import document, versions

TENANT = Call(actor="tenant:shop", token_id="t2", access=roles.access("tenant", "web"))
HOSTS = ["host-a", "host-b", "host-c", "host-d"]
VMS = ["web-0", "web-1", "web-2", "pool_0", "pool_1", "pool_2", "pool_3", "pool_4", "db", "batch"]
POLICIES: list[dict[str, Any]] = [
    {"listening": Listening.AUTO},
    {"listening": Listening.ALWAYS},
    {"listening": Listening.NEVER},
    {"auto_approve_restart": True},
    {"auto_approve_restart": False},
    {"max_user_operations": 1},
    {"max_user_operations": None},
]
OF_GROUPS: list[dict[str, Any]] = [
    {"max_unavailable": "1"},
    {"max_unavailable": None},
    {"terminate_notice_minutes": None},
    {"terminate_notice_minutes": 7},
]
GUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
STARTED = "It starts at once: it waits for no approval."


def everything(rig: Rig) -> str:
    """All that there is, the journal included."""
    with rig.service.store.read() as reader:
        return repr((reader.worlds.fleet(), read_published(reader, None), reader.journal.page(limit=100_000)))


def previewed(rig: Rig, kind: Kind, *names: str, call: Call = OPERATOR, **more: Any) -> Any:
    """And nothing has changed by it, here or for guests."""
    before, published = everything(rig), repr(rig.published)
    try:
        return msgspec.to_builtins(maintenance.preview(rig.service, call, kind=kind, names=names, **more))
    finally:
        assert everything(rig) == before
        assert repr(rig.published) == published


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(errors.ForenoticeError) as refused:
        ask()
    return f"{type(refused.value).__name__}: {refused.value.message}"


def what_came(rig: Rig, operation: Any, call: Call, made: set[str]) -> Any:
    """A scheduled operation as a preview would tell it: without the ids that were made then."""
    explained = queries.explain_operation(rig.service, operation.id, call.access.scopes)
    waiting = [
        {key: value for key, value in facts.items() if str(value) not in made} for facts in explained.waiting_for
    ]
    started = operation.status == "Started"
    return msgspec.to_builtins(operation) | {
        "id": "",
        "events": [
            msgspec.to_builtins(event) | {"id": "", "operation": "", "told": told(rig, event)}
            for event in operation.events
        ],
        "latest": msgspec.to_builtins(operation.started_at or explained.until),
        "sentence": explained.sentence,
        "sentences": explained.sentences,
        "waiting_for": [facts for facts in waiting if facts["kind"] == "target-host"] if started else waiting,
    }


def in_any_order(view: Any) -> Any:
    """Which of several is named first depends on what they were loaded with."""
    return {
        **view,
        "sentence": sorted(re.findall(r"[\w:-]+", view["sentence"])),
        "sentences": len(view["sentences"]),
        "waiting_for": sorted(view["waiting_for"], key=json.dumps),
    }


def told(rig: Rig, event: Any) -> Any:
    """By the published document, in the newest version."""
    shown = json.loads(document.render(rig.published.latest[event.scope], versions.NEWEST))
    (found,) = [each for each in shown["Events"] if each["EventId"] == event.id]
    return {**found, "EventId": maintenance.NOT_YET_KNOWN}


def compare(rig: Rig, kind: Kind, names: list[str], call: Call, notice: timedelta | None) -> str:
    """Preview, then do it; gives what it came to."""
    live = {each.id: each for each in queries.operations(rig.service, live=True, limit=1000).items}
    cordoned = {each.name for each in queries.hosts(rig.service, cordoned=True).items}
    try:
        shown = previewed(rig, kind, *names, call=call, notice=notice)
    except errors.ForenoticeError as error:
        refused = f"{type(error).__name__}: {error.message}"
    else:
        refused = ""
    if refused:
        assert refusal(lambda: rig.schedule(kind, *names, call=call, notice=notice)) == refused
        return refused.partition(":")[0]
    made = rig.schedule(kind, *names, call=call, notice=notice)
    ids = {each.id for each in made} | {event.id for each in made for event in each.events}
    assert len(shown["operations"]) == len(names)
    for expected, operation in zip(shown["operations"], made, strict=True):
        came = what_came(rig, operation, call, ids)
        earliest = expected.pop("earliest")
        if came["status"] == "Started":
            assert expected["sentence"].startswith(STARTED)
            came |= {name: expected[name] for name in ("sentence", "sentences")}
            assert earliest == came["started_at"]
        assert in_any_order(expected) == in_any_order(came)
        assert expected["latest"] is None or earliest <= expected["latest"]
    known = {each.id: each for each in queries.operations(rig.service, limit=10_000).items}
    assert {each["id"]: each["status"] for each in shown["ends"]} == {
        key: known[key].status for key in live if known[key].ended_at
    }
    now_cordoned = {each.name for each in queries.hosts(rig.service, cordoned=True).items}
    assert set(shown["cordons"]) == now_cordoned - cordoned
    events = {each.id for each in queries.events(rig.service, limit=10_000).items}
    assert set(GUID.findall(json.dumps(shown))) <= (known.keys() | events) - ids
    return str(made[0].status)


def live_a_while(rig: Rig, dice: random.Random) -> None:
    """Something that changes what the next preview finds."""
    match dice.randrange(6):
        case 0 | 1:
            waiting = [each for each in rig.live_events() if not each.approved_at]
            if waiting:
                maintenance.approve(rig.service, OPERATOR, dice.choice(waiting).id)
        case 2:
            scope = dice.choice(["group:web", "group:pool", "vm:db", "vm:batch"])
            known = POLICIES + OF_GROUPS if scope.startswith("group:") else POLICIES
            try:
                fleet.set_policy(rig.service, OPERATOR, scope, msgspec.convert(dice.choice(known), PolicyChange))
            except errors.NotFoundError:  # It was deleted.
                return
        case 3:
            host = dice.choice(HOSTS)
            rig.set_host(host, cordoned=dice.random() < 0.3)
        case _:
            rig.run(dice.choice([1, 5, 20]), step=5)


@pytest.fixture
def demo(sqlite_store: Store) -> Rig:
    return Rig(sqlite_store).settle_demo()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_previewed_is_what_happens(demo: Rig, seed: int) -> None:
    came = act_at_random(demo, random.Random(seed), steps=50)
    assert {"Scheduled", "Started", "ConflictError"} <= came


def test_on_both_databases(rig: Rig) -> None:
    act_at_random(rig, random.Random(7), steps=12)


def act_at_random(rig: Rig, dice: random.Random, steps: int) -> set[str]:
    came = set()
    for _ in range(steps):
        kind = dice.choice([*Kind, Kind.RESTART, Kind.HOST_UPDATE, Kind.LIVE_MIGRATION])
        names = dice.sample(HOSTS if kind.traits.of_host else VMS, dice.choice([1, 1, 1, 2]))
        call = TENANT if kind in roles.TENANTS_KINDS and dice.random() < 0.4 else OPERATOR
        notice = dice.choice([None, None, None, timedelta(minutes=1), timedelta(minutes=40)])
        came.add(compare(rig, kind, names, call, notice))
        live_a_while(rig, dice)
    return came


def test_when_it_can_start(demo: Rig) -> None:
    (shown,) = previewed(demo, Kind.RESTART, "web-0")["operations"]
    assert (shown["status"], shown["earliest"]) == ("Scheduled", "2026-01-05T12:00:00Z")
    assert shown["latest"] == shown["not_before"] == "2026-01-05T12:15:01Z"
    assert shown["events"][0]["told"]["EventId"] == "not yet known"
    demo.set_policy("vm:db", windows=["daily 20:00-22:00 UTC"])
    (shown,) = previewed(demo, Kind.HOST_UPDATE, "host-b")["operations"]
    assert shown["earliest"] == shown["latest"] == shown["not_before"] == "2026-01-05T20:00:00Z"
    demo.set_policy("vm:db", windows=["daily 11:00-13:00 UTC"])
    (shown,) = previewed(demo, Kind.HOST_UPDATE, "host-b", notice=timedelta(hours=2))["operations"]
    # Open now, but no longer when the notice is over: guests are not told in vain.
    assert shown["earliest"] == shown["latest"] == "2026-01-06T11:00:00Z"
    assert (shown["announce_at"], shown["events"]) == ("2026-01-06T08:59:00Z", [])


def test_a_failure_starts_at_once_but_for_vms_without_a_target_host(demo: Rig) -> None:
    assert previewed(demo, Kind.HARDWARE_FAILURE, "host-a")["operations"][0]["sentence"] == STARTED
    for host in ("host-b", "host-c", "host-d"):
        demo.set_host(host, cordoned=True)
    (shown,) = previewed(demo, Kind.HARDWARE_FAILURE, "host-a")["operations"]
    assert shown["sentence"] == (
        f"{STARTED} But no host can take pool_0, pool_1 and web-0: add or uncordon one that keeps their groups' "
        "domains apart."
    )
    assert [facts["vm"] for facts in shown["waiting_for"]] == ["pool_0", "pool_1", "web-0"]


@pytest.mark.parametrize("kind", Kind)
def test_a_tenant_is_limited(demo: Rig, kind: Kind) -> None:
    """To its kinds and its VMs; who asks for another's is told what is told of what does not exist."""
    mine, other = ("host-a", "host-b") if kind.traits.of_host else ("web-0", "db")
    if kind not in roles.TENANTS_KINDS:
        with pytest.raises(errors.ForbiddenError, match="needs the role platform or admin"):
            previewed(demo, kind, mine, call=TENANT)
        return
    assert previewed(demo, kind, mine, call=TENANT)["operations"][0]["sentence"].startswith(
        "It waits for your approval (web)"
    )
    for name in (other, "nonesuch"):
        refused = refusal(functools.partial(previewed, demo, kind, mine, name, call=TENANT))
        assert refused == f"NotFoundError: there is no VM '{name}'"
