"""Rollouts on both databases: wave by wave, and kept through whatever happens."""

import threading
from dataclasses import replace
from datetime import timedelta
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import asdict
from tests.service.rig import OPERATOR
from tests.service.rolling import Failing, Rolling, request

from forenotice.core import errors, roles
from forenotice.core.roles import EVERYTHING
from forenotice.core.rollouts import RolloutHostStatus, RolloutSpec
from forenotice.core.timing import Timing
from forenotice.core.windows import parse
from forenotice.service import fleet, housekeeping, maintenance, queries, rollouts
from forenotice.service.calls import Call
from forenotice.service.gates import Gates
from forenotice.service.service import Service
from forenotice.ssrf import OutgoingClient
from forenotice.store.database import Store
from forenotice.store.opener import open_store
from forenotice.views.rollouts import ListedRollout, Progress

HOSTS = "abcdef"
ASKED = {"listening": "always"}
FLEET: Any = {
    "hosts": {host: {} for host in [*HOSTS, "spare"]},
    "groups": {
        # Two hosts of each update domain, of which one may be out.
        "web": {"kind": "availability-set", "policy": {**ASKED, "max_unavailable": "20%"}},
        # On the same hosts, numbered from the other end; nobody listens.
        "api": {"kind": "placement-group", "policy": {"listening": "never", "min_available": 2}},
    },
    "vms": {
        **{
            f"web-{number}": {"host": host, "group": "web", "update_domain": number % 3, "fault_domain": number % 3}
            for number, host in enumerate(HOSTS)
        },
        **{
            f"api_{number}": {"host": host, "group": "api", "update_domain": 2 - number % 3}
            for number, host in enumerate(HOSTS)
        },
        "solo": {"host": "a", "policy": ASKED},
    },
}
WAVES = {"a": 1, "d": 1, "b": 2, "e": 2, "c": 3, "f": 3, "spare": 1}
DONE = {**dict.fromkeys(HOSTS, "Done"), "spare": "Skipped"}


SPEED = 60
"""What is held is looked at once a minute, whatever the speed: so that is seldom."""


@pytest.fixture
def rig(store: Store) -> Rolling:
    return Rolling(store, driver=Failing(Timing(speed=SPEED)), speed=SPEED).settle(FLEET)


@pytest.fixture
def slow(store: Store) -> Rolling:
    """By the clock on the wall."""
    return Rolling(store).settle(FLEET)


def loose(document: Any = FLEET) -> Any:
    """Without budgets."""
    groups = {name: {**group, "policy": ASKED} for name, group in document["groups"].items()}
    return {**document, "groups": groups}


def failing(rig: Rolling, *hosts: str) -> None:
    assert isinstance(rig.driver, Failing)
    rig.driver.hosts = frozenset(hosts)


def live(rig: Rolling) -> dict[str, str]:
    return {each.host: each.status for each in queries.operations(rig.service, live=True).items}


# Its course


every = partial(rollouts.page, access=EVERYTHING)


def progress(rig: Rolling, found: str) -> list[tuple[int, list[int], dict[str, int]]]:
    return [
        (wave.wave, wave.update_domains, {name: hosts for name, hosts in asdict(wave.progress).items() if hosts})
        for wave in rig.show(found).by_wave
    ]


def test_it_goes_from_wave_to_wave_as_planned_and_ends(rig: Rolling) -> None:
    def everything() -> object:
        return rig.journal, fleet.export(rig.service), queries.operations(rig.service), every(rig.service), rig.next_due

    before = everything()
    plan = rollouts.plan(rig.service, request(batch=2))
    assert everything() == before, "a plan changes nothing"
    found = rig.start(batch=2)
    assert rig.show(found).waves == 3
    hosts = {host.host: host for host in rollouts.hosts(rig.service, found).items}
    assert {name: host.wave for name, host in hosts.items()} == WAVES
    # The groups number the same hosts oppositely: so a wave has one update domain of each.
    assert [hosts[name].update_domains for name in ("a", "b", "spare")] == [[0, 2], [1], []]
    assert progress(rig, found) == [
        (1, [0, 2], {"waiting": 1, "under_way": 1, "skipped": 1}),
        (2, [1], {"waiting": 2}),
        (3, [0, 2], {"waiting": 2}),
    ]
    # Of the two hosts of its update domain, the budget lets one go.
    assert live(rig) == {"a": "Scheduled"}
    assert rig.waits_for(found, "operation")["host"] == "a"
    assert rig.waits_for(found, "budget")["host"] == "d"
    assert "max_unavailable 20%" in rig.why(found)
    rig.pass_time(minutes=20)
    assert live(rig) == {"d": "Scheduled"}
    rig.pass_time(hours=2)
    shown = rig.show(found)
    assert (shown.status, shown.wave, shown.failures) == ("Completed", 3, 0)
    assert shown.progress == Progress(done=6, skipped=1)
    assert progress(rig, found)[1:] == [(2, [1], {"done": 2}), (3, [0, 2], {"done": 2})]
    assert rig.hosts(found) == DONE
    assert rig.why(found).startswith("It is over: Completed at ")
    assert rig.violations == []
    assert rig.actions(action="rollout.wave_began") == ["rollout.wave_began"] * 3
    assert [entry.rollout for entry in rig.journal if entry.action == "operation.completed"] == [found] * 6

    announced = [entry.host for entry in rig.journal if entry.action == "operation.scheduled"]
    assert [host.host for host in plan.planned_hosts] == announced
    assert {host.host: host.wave for host in plan.planned_hosts} == {host: WAVES[host] for host in HOSTS}
    assert {host.host: host.update_domains for host in plan.planned_hosts}["e"] == [1]
    assert plan.empty == ["spare"]
    assert [wave.update_domains for wave in plan.waves] == [[0, 2], [1], [0, 2]]
    (web,) = [group for group in plan.groups if group.group == "web"]
    assert (web.budget, web.allowed, web.most_down) == ("max_unavailable 20%", 1, 1)
    assert web.delayed_hosts >= 3


def test_update_domains_are_those_of_the_beginning(rig: Rolling) -> None:
    """Hosts that a rollout has emptied are still of the update domain in which they had their wave."""
    found = rig.start("migrate", hosts="b")
    rig.pass_time(hours=1)
    assert rig.status(found) == "Completed"
    assert queries.host(rig.service, "b").vms == 0
    assert rig.show(found).by_wave[0].update_domains == [1]


def test_a_host_that_is_gone_is_skipped(rig: Rolling) -> None:
    found = rig.start(hosts="a,spare,f")
    for name in ("web-5", "api_5"):
        rig.remove_vm(name)
    for name in ("spare", "f"):
        fleet.remove_host(rig.service, OPERATOR, name)
    rig.pass_time(hours=1)
    assert rig.hosts(found) == {"a": "Done", "f": "Skipped", "spare": "Skipped"}
    hosts = {host.host: host for host in rollouts.hosts(rig.service, found, status=None).items}
    assert hosts["f"].why == "it is no longer in the fleet"
    assert rig.status(found) == "Completed"


def many() -> Any:
    """More hosts than are looked at together, each with a VM of its own."""
    hosts = [f"h{number:02}" for number in range(rollouts.CANDIDATES + 10)]
    vms = {f"vm-{host}": {"host": host, "policy": ASKED} for host in hosts}
    return {"hosts": {host: {} for host in hosts}, "groups": {}, "vms": vms}


def test_many_hosts_at_once(store: Store) -> None:
    rig = Rolling(store, speed=SPEED).settle(many())
    hosts = rig.fleet["hosts"]
    found = rig.start(batch=len(hosts) - 1)
    assert rig.show(found).progress.under_way == len(hosts) - 1
    assert rig.waits_for(found, "batch")["batch"] == len(hosts) - 1
    assert f"More hosts are under way: {len(hosts) - 1 - 3}." in rig.why(found)
    rig.pass_time(hours=1)
    assert rig.status(found) == "Completed"
    assert rig.violations == []


def test_lists(rig: Rolling) -> None:
    first = rig.start(hosts="a")
    rig.pass_time(minutes=1)
    second = rig.start(hosts="f")
    rig.pass_time(hours=1)
    third = rig.start()
    listed = every(rig.service).items
    assert [each.id for each in listed] == [third, second, first]
    for each in listed:
        shown = rig.show(each.id)
        assert each == ListedRollout(**{name: getattr(shown, name) for name in each.__struct_fields__})
    assert [each.id for each in every(rig.service, live=True).items] == [third]
    page = every(rig.service, live=False, limit=1)
    assert [each.id for each in page.items] == [second]
    assert [each.id for each in every(rig.service, after=str(page.next)).items] == [first]
    hosts = rollouts.hosts(rig.service, third, limit=5)
    assert [each.host for each in rollouts.hosts(rig.service, third, after=str(hosts.next)).items] == ["f", "spare"]
    under_way = rollouts.hosts(rig.service, third, status=RolloutHostStatus.UNDER_WAY)
    assert [each.host for each in under_way.items] == ["a"]


# Commands


def test_a_paused_one_neither_announces_nor_starts(rig: Rolling) -> None:
    found = rig.start()
    shown = rollouts.pause(rig.service, replace(OPERATOR, reason="a storm"), found)
    assert (shown.status, shown.why) == ("Paused", "paused by ada: a storm")
    rig.pass_time(minutes=20)
    assert live(rig) == {"a": "Scheduled"}
    assert rig.waits_for(found, "paused")["why"] == "paused by ada: a storm"
    assert found in str(rig.explain(rig.live_events()[0].id).waiting_for)
    assert rollouts.resume(rig.service, OPERATOR, found).status == "Running"
    rig.step()
    assert live(rig) == {"a": "Started"}
    rig.pass_time(hours=3)
    assert rig.status(found) == "Completed"
    assert rig.violations == []


def test_a_command_that_does_not_fit_is_told_the_state(rig: Rolling) -> None:
    found = rig.start(hosts="a")
    with pytest.raises(errors.ConflictError, match=f"rollout {found} is Running: only a paused") as raised:
        rollouts.resume(rig.service, OPERATOR, found)
    assert raised.value.facts["status"] == "Running"
    rollouts.pause(rig.service, OPERATOR, found)
    with pytest.raises(errors.ConflictError, match="is Paused: only a running"):
        rollouts.pause(rig.service, OPERATOR, found)
    rollouts.cancel(rig.service, OPERATOR, found)
    rig.step()
    for command in (rollouts.pause, rollouts.resume, rollouts.cancel):
        with pytest.raises(errors.ConflictError, match="is Canceled: only"):
            command(rig.service, OPERATOR, found)
        with pytest.raises(errors.NotFoundError, match="there is no rollout 'unheard-of'"):
            command(rig.service, OPERATOR, "unheard-of")
    for question in (partial(rollouts.show, access=EVERYTHING), rollouts.hosts, rollouts.explain):
        with pytest.raises(errors.NotFoundError, match="there is no rollout 'unheard-of'"):
            question(rig.service, "unheard-of")


def test_cancel_lets_what_has_started_finish(store: Store) -> None:
    rig = Rolling(store, speed=SPEED).settle(loose())
    found = rig.start(batch=2)
    for event in rig.live_events():
        if {"web-0", "api_0", "solo"} & set(event.resources):
            maintenance.approve(rig.service, OPERATOR, event.id)
    rig.step()
    assert live(rig) == {"a": "Started", "d": "Scheduled"}
    assert rollouts.cancel(rig.service, OPERATOR, found).status == "Canceling"
    rig.step()
    assert live(rig) == {"a": "Started"}
    assert rig.waits_for(found, "operation")["host"] == "a"
    rig.pass_time(minutes=5)
    assert rig.status(found) == "Canceled"
    assert rig.hosts(found) == {"a": "Done", **dict.fromkeys([*HOSTS[1:], "spare"], "Skipped")}
    assert rig.why(found).startswith("It is over: Canceled at ")
    assert rig.next_due is None
    assert rig.violations == []


def test_failures_pause_it(rig: Rolling) -> None:
    failing(rig, "d")
    found = rig.start(hosts="a,d,b")
    rig.pass_time(hours=1)
    shown = rig.show(found)
    assert (shown.status, shown.failures) == ("Paused", 1)
    assert shown.why == "1 of its hosts failed, the last one d: api_3 and web-3: no power"
    assert rig.hosts(found) == {"a": "Done", "b": "Waiting", "d": "Failed"}
    assert shown.why in rig.why(found)
    failing(rig)
    rollouts.resume(rig.service, OPERATOR, found, retry=True)
    rig.pass_time(hours=2)
    assert rig.hosts(found) == {"a": "Done", "b": "Done", "d": "Done"}
    assert (rig.status(found), rig.show(found).failures) == ("Completed", 0)
    assert rig.violations == []


def test_the_same_key_starts_it_once(rig: Rolling) -> None:
    call = Call(actor="ada", token_id="t", key="k", digest="d")
    first = rollouts.start(rig.service, call, request())
    # By now nobody could start it any more.
    rig.set_policy("group:web", max_unavailable=1, min_available=6)
    assert rollouts.start(rig.service, call, request()) == first
    assert len(every(rig.service).items) == 1
    pause = replace(call, key="p")
    assert rollouts.pause(rig.service, pause, first.id) == rollouts.pause(rig.service, pause, first.id)
    with pytest.raises(errors.ConflictError, match="Idempotency-Key"):
        rollouts.cancel(rig.service, replace(pause, digest="other"), first.id)


# What is refused


def ask(service: Service, spec: RolloutSpec) -> Any:
    return rollouts.start(service, OPERATOR, spec)


@pytest.mark.parametrize("command", [rollouts.plan, ask])
def test_what_can_never_be_or_is_under_way_already_is_refused(rig: Rolling, command: Any) -> None:
    found = rig.start(hosts="a,b")
    with pytest.raises(errors.ConflictError, match=f"rollout {found} is going to update host b already"):
        command(rig.service, request(hosts="b,c"))
    command(rig.service, request(kind="reboot", hosts="b"))
    rig.set_policy("group:api", min_available=6)
    with pytest.raises(errors.ConflictError, match="the budget of group api can never be met") as raised:
        command(rig.service, request(hosts="c"))
    assert raised.value.facts["group"] == "api"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (request(hosts="z-*"), "no host is selected by 'z-\\*'"),
        (request(gate="lag"), "there is no gate 'lag'"),
        (request(gate="http://127.0.0.1/"), "allow"),
        (request(windows=(parse("mon 10:00-11:00 UTC"),)), "never open together"),
    ],
)
def test_nonsense_is_refused(rig: Rolling, asked: RolloutSpec, words: str) -> None:
    rig.set_policy("group:web", windows=["tue 10:00-11:00 UTC"])
    before = rig.journal
    for command in (rollouts.plan, ask):
        with pytest.raises(errors.ForenoticeError, match=words):
            command(rig.service, asked)
    assert rig.journal == before


# Gates, pauses and windows


def test_a_wave_waits_until_its_gate_is_green(slow: Rolling, tmp_path: Path) -> None:
    healthy = tmp_path / "healthy"
    slow.service.gates = Gates({"health": ("ls", str(healthy))}, slow.service.outgoing)
    found = slow.start(hosts="a,b", gate="health")
    slow.pass_time(seconds=40)
    assert live(slow) == {}
    assert slow.waits_for(found, "gate")["status"] == "exit code 2"
    assert "cannot access" in slow.show(found).gate_result.output
    assert "cannot access" not in str(slow.journal)
    told = rollouts.show(slow.service, found, roles.access(roles.Role.VIEWER, None))
    assert told.gate_result is not None
    assert (told.gate_result.status, told.gate_result.output) == ("exit code 2", "")
    assert "Wave 1 waits for its gate health" in slow.why(found)
    assert slow.show(found).gate_result.green is False
    assert slow.actions(action="rollout.gate_red") == ["rollout.gate_red"]
    healthy.touch()
    slow.pass_time(minutes=1)
    assert live(slow) == {"a": "Scheduled"}
    healthy.unlink()
    slow.pass_time(minutes=16)
    assert slow.hosts(found) == {"a": "Done", "b": "Waiting"}
    assert "Wave 2 waits for its gate health" in slow.why(found)
    healthy.touch()
    slow.pass_time(hours=1)
    assert slow.status(found) == "Completed"
    assert slow.actions(action="rollout.gate_green") == ["rollout.gate_green"] * 2


def test_a_gates_url_is_whole_for_those_alone_who_may_choose_it(rig: Rolling) -> None:
    rig.service.gates = Gates({}, OutgoingClient(private=(ip_network("127.0.0.0/8"),)))
    found = rollouts.start(rig.service, OPERATOR, request(hosts="a", gate="http://127.0.0.1:9?key=secret")).id
    (asked,) = rollouts.advance(rig.service, {})
    assert asked.gate == rig.show(found).gate == "http://127.0.0.1:9?key=secret"
    viewer = roles.access(roles.Role.VIEWER, None)
    seen = rollouts.show(rig.service, found, viewer), rollouts.page(rig.service, access=viewer).items[0]
    assert [each.gate for each in seen] == ["http://127.0.0.1:9/…"] * 2
    assert rig.waits_for(found, "gate")["gate"] == "http://127.0.0.1:9/…"
    rollouts.advance(rig.service, {asked: rig.check(asked)})
    assert rig.actions(action="rollout.gate_red") == ["rollout.gate_red"]
    assert "secret" not in f"{rig.why(found)} {rig.journal}"


def test_a_red_gate_is_asked_sooner_at_speed_but_not_without_rest(rig: Rolling) -> None:
    rig.service.gates = Gates({"health": ("false",)}, rig.service.outgoing)
    rig.start(gate="health")
    assert rig.next_due == rig.clock.now() + timedelta(seconds=1)


# Migration


def test_a_migration_waits_for_a_host_that_takes_its_vms(store: Store) -> None:
    rig = Rolling(store, speed=SPEED).settle(loose())
    fleet.remove_host(rig.service, OPERATOR, "spare")
    for name in HOSTS.replace("d", "")[1:]:
        rig.set_host(name, cordoned=True)
    found = rig.start("migrate", hosts="a")
    rig.set_host("d", cordoned=True)
    with pytest.raises(errors.ConflictError, match="no host can take"):
        rig.start("migrate", hosts="b")
    rig.pass_time(minutes=20)
    assert live(rig) == {"a": "Scheduled"}
    assert "no host can take" in rig.why(found).lower()
    rig.set_host("d", cordoned=False)
    rig.pass_time(minutes=5)
    assert rig.status(found) == "Completed"
    assert rig.violations == []


# Processes


class Mortal(Rolling):
    """Every look at what is due is another process's: the one before has died."""

    def step(self) -> None:
        self.rebirth()
        super().step()

    def tick(self) -> None:
        self.rebirth()
        super().tick()
        self.rebirth()

    def rebirth(self) -> None:
        gates = self.service.gates
        self.service = Rolling(self.service.store, clock=self.clock, speed=SPEED).service
        self.service.gates = gates
        housekeeping.resume(self.service, alone=True)
        self.service.expiry_from = self.clock.now()


def test_nothing_is_lost_when_the_process_dies_after_each_step(store: Store) -> None:
    rig = Mortal(store, speed=SPEED).settle(FLEET)
    rig.service.gates = Gates({"health": ("true",)}, rig.service.outgoing)
    found = rig.start(batch=2, gate="health")
    rig.pass_time(hours=2)
    assert rig.status(found) == "Completed"
    assert rig.hosts(found) == DONE
    assert rig.violations == []


class Dying:
    """A store that is written to so often, and no more."""

    def __init__(self, store: Store, writes: int) -> None:
        self._store = store
        self._left = writes

    def __getattr__(self, name: str) -> object:
        if name == "write":
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("dead")
        return getattr(self._store, name)


def test_a_process_that_dies_while_it_announces_many_leaves_no_gap(store: Store) -> None:
    rig = Rolling(store, speed=SPEED).settle(many())
    found = rollouts.start(rig.service, OPERATOR, request(batch=1000)).id
    rig.service.store = cast(Store, Dying(store, writes=2))
    with pytest.raises(RuntimeError, match="dead"):
        rollouts.advance(rig.service, {})
    rig.service.store = store
    assert 0 < rig.show(found).progress.under_way < rig.show(found).progress.waiting + rollouts.CANDIDATES
    again = Rolling(store, speed=SPEED, clock=rig.clock)
    housekeeping.resume(again.service, alone=True)
    again.step()
    assert again.show(found).progress.waiting == 0


def test_a_gate_whose_answer_is_lost_is_asked_again(slow: Rolling) -> None:
    slow.service.gates = Gates({"health": ("true",)}, slow.service.outgoing)
    rollouts.start(slow.service, OPERATOR, request(hosts="a", gate="health"))
    (asked,) = rollouts.advance(slow.service, {})
    slow.clock.advance(seconds=59)
    assert rollouts.advance(slow.service, {}) == []
    slow.clock.advance(seconds=2)
    assert rollouts.advance(slow.service, {}) == [asked]


def test_two_processes_on_one_database_announce_no_host_twice(migrated_postgres_url: str) -> None:
    stores = [open_store(migrated_postgres_url, migrate=False) for _ in range(2)]
    rigs = [Rolling(stores[0], speed=SPEED).settle(loose())]
    rigs.append(Rolling(stores[1], clock=rigs[0].clock, speed=SPEED))
    faults: list[BaseException] = []

    def work(rig: Rolling, together: threading.Barrier) -> None:
        try:
            together.wait()
            rig.step()
        except BaseException as error:
            faults.append(error)

    found = rollouts.start(rigs[0].service, OPERATOR, request(batch=2)).id
    for _ in range(60):
        together = threading.Barrier(2)
        threads = [threading.Thread(target=work, args=(rig, together)) for rig in rigs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        if (due := rigs[0].next_due) is None:
            break
        rigs[0].clock.not_below(due)
    assert faults == []
    assert rigs[0].hosts(found) == DONE
    announced = [entry.host for entry in rigs[0].journal if entry.action == "operation.scheduled"]
    assert sorted(announced) == list(HOSTS)
    assert rigs[0].violations == []
    for store in stores:
        store.close()
