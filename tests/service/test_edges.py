"""Edges as a process hears them: registered by their first beat, lost, returned, forgotten, and waited for."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
import structlog
from tests.service.rig import OPERATOR, START, ManualClock, Rig, wait_for

from forenotice.clock import SystemClock
from forenotice.cluster.messages import Beat, Fence
from forenotice.core import errors
from forenotice.core.edges import EdgeState
from forenotice.core.fleet import Listening
from forenotice.core.journal import Entry
from forenotice.core.operations import Kind, Status
from forenotice.core.roles import Access, Role
from forenotice.core.selectors import of_scopes
from forenotice.runtime import Runtime
from forenotice.service import fleet, queries
from forenotice.service.edges import LEASE
from forenotice.service.leases import Lease
from forenotice.service.loops import Follower
from forenotice.service.service import Service
from forenotice.store.database import Store
from forenotice.store.opener import open_store
from forenotice.views import wording

SECOND = timedelta(seconds=1)


class Site:
    """Hosts a and b, VM `db` on a, which listens; time that the test moves, and a watch every second."""

    def __init__(self, store: Store) -> None:
        self.clock = ManualClock()
        self.rig = self.process(store)
        for host in "ab":
            self.rig.add_host(host)
        self.rig.add_vm("db", "a")
        self.rig.set_policy("vm:db", listening=Listening.ALWAYS)

    def process(self, store: Store) -> Rig:
        monotonic = lambda: (self.clock.now() - START).total_seconds()  # noqa: E731
        rig = Rig(store, runtime=Runtime(clock=self.clock, monotonic=monotonic))
        rig.service.refresh()
        return rig

    @property
    def service(self) -> Service:
        return self.rig.service

    def beat(self, host: str, service: Service | None = None, **fields: Any) -> None:
        fields = {"version": "1.0", "position": 1, "at": self.clock.now(), **fields}
        (service or self.service).edges.beat(host, Beat(**fields))

    def watch(self, seconds: int = 0, *, beating: str = "", connected: bool = True) -> None:
        """Each second; some hosts beat meanwhile."""
        self.service.edges.watch(connected)
        for _ in range(seconds):
            self.clock.advance(seconds=1)
            for host in beating:
                self.beat(host)
            self.service.edges.watch(connected)

    def state(self, host: str) -> EdgeState:
        return queries.edge(self.service, host).state

    def actions(self) -> list[str]:
        return [f"{entry.action} {entry.host}" for entry in self.rig.entries() if entry.action.startswith("edge.")]


class Meddled:
    """A store where something happens before it is read or written."""

    def __init__(self, store: Store, before: str, action: Callable[[], None]) -> None:
        self._store, self._before, self._action = store, before, action

    def __getattr__(self, name: str) -> object:
        if name == self._before:
            self._action()
        return getattr(self._store, name)


def away() -> None:
    raise errors.UnavailableError


@contextmanager
def meddled(service: Service, before: str, action: Callable[[], None]) -> Iterator[None]:
    store = service.store
    service.store = cast(Store, Meddled(store, before, action))
    try:
        yield
    finally:
        service.store = store


@pytest.fixture
def site(store: Store) -> Site:
    return Site(store)


# Registered


def test_an_edge_is_known_by_its_first_beat(site: Site) -> None:
    site.beat("a")
    assert site.service.edges.hosts == set()
    site.watch(2, beating="a")
    assert (site.service.edges.hosts, site.actions()) == ({"a"}, ["edge.registered a"])
    assert site.state("a") is EdgeState.CURRENT
    assert site.service.edges.known.shown == {"a": site.clock.now()}
    assert wording.sentence(site.rig.entries()[-1]) == (
        "Host a has an edge of version 1.0: it answers the guests there."
    )


def test_an_edge_of_a_host_that_is_not_in_the_fleet_is_ignored_and_logged_on_doubling(site: Site) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            site.beat("x")
            site.watch()
    assert [(entry["action"], entry["host"]) for entry in logs] == [("edge.stranger", "x")] * 3
    assert site.service.edges.hosts == set()
    site.rig.add_host("x")
    site.beat("x")
    site.watch()
    assert site.service.edges.hosts == {"x"}


def test_a_host_that_is_removed_meanwhile_gets_no_edge(site: Site, store: Store) -> None:
    other, left = site.process(store).service, ["b"]

    def remove() -> None:
        while left:
            fleet.remove_host(other, OPERATOR, left.pop())

    site.beat("b")
    with meddled(site.service, "write", remove):
        site.watch()
    assert (left, site.service.edges.hosts, site.actions()) == ([], set(), [])


def test_edges_are_known_again_after_a_restart(site: Site, store: Store) -> None:
    site.beat("a")
    site.beat("b")
    site.watch(40, beating="a")
    again = site.process(store).service
    assert [(edge.host, edge.state, edge.version) for edge in queries.edges(again).items] == [
        ("a", EdgeState.UNHEARD, None),
        ("b", EdgeState.LOST, None),
    ]
    assert again.edges.known.shown == {"a": None, "b": None}


# Lost and returned


def test_an_edge_is_lost_after_30_seconds_and_returns_with_a_beat(site: Site) -> None:
    site.beat("a")
    site.beat("b")
    site.watch(30, beating="b")
    assert site.actions() == ["edge.registered a", "edge.registered b"]
    site.watch(1, beating="b")
    [lost] = queries.edges(site.service, state=EdgeState.LOST).items
    assert (lost.host, lost.lost_since, lost.last_beat) == ("a", START, START)
    assert wording.sentence(site.rig.entries()[-1]) == (
        "The edge of host a is lost: the service last heard it at 2026-01-05 12:00:00 UTC."
    )
    site.watch(60, beating="b")
    site.beat("a")
    assert site.state("a") is EdgeState.LOST
    site.watch(35, beating="ab")
    assert site.state("a") is EdgeState.CURRENT
    assert site.actions()[2:] == ["edge.lost a", "edge.returned a"]
    assert wording.sentence(site.rig.entries()[-1]) == (
        "The service hears the edge of host a again, which was lost at 2026-01-05 12:00:00 UTC."
    )


def test_no_edge_is_lost_while_this_process_could_not_hear_it(site: Site) -> None:
    site.beat("a")
    site.watch(100, connected=False)
    assert site.state("a") is EdgeState.UNHEARD
    site.watch(30)
    # It sleeps, and looks at once when it wakes up.
    site.clock.advance(seconds=600)
    site.watch(30)
    assert site.actions() == ["edge.registered a"]
    site.watch(1)
    assert site.actions()[1:] == ["edge.lost a"]
    assert queries.edge(site.service, "a").lost_since == site.clock.now() - 31 * SECOND


def test_all_edges_are_lost_after_an_hour_without_nats_unless_another_process_has_it(site: Site, store: Store) -> None:
    """A day without NATS is not a day of silence."""
    site.rig.set_policy("vm:db", listening=Listening.AUTO)
    site.rig.guests.heard({"vm:db": START})
    site.beat("a")
    publishing = Lease(site.process(store).service, LEASE, timedelta(hours=2))
    assert publishing.holds()
    site.watch(3700, connected=False)
    assert site.actions() == ["edge.registered a"]
    publishing.give_up()
    site.watch(1, connected=False)
    assert site.actions() == ["edge.registered a"], "somebody published until now"
    site.watch(3700, connected=False)
    assert site.actions() == ["edge.registered a", "edge.lost a"]
    assert queries.edge(site.service, "a").lost_since == START
    site.clock.advance(days=2)
    assert site.rig.vm("db").listening
    site.watch(60)
    assert site.state("a") is EdgeState.LOST
    site.beat("a")
    site.watch()
    assert site.actions()[2:] == ["edge.returned a"]


def test_an_edge_that_another_process_hears_is_not_lost_for_one_without_nats(site: Site, store: Store) -> None:
    site.beat("a")
    site.watch(3700, connected=False)
    assert site.state("a") is EdgeState.LOST
    other = site.process(store).service
    site.beat("a", other)
    other.edges.watch(connected=True)
    site.service.edges.follow([Entry(at=site.clock.now(), action="edge.returned", host="a")])
    site.watch(3, connected=False)
    assert site.actions() == ["edge.registered a", "edge.lost a", "edge.returned a"]


def test_a_process_that_slept_was_not_without_nats(site: Site) -> None:
    site.beat("a")
    site.watch()
    site.clock.advance(hours=2)
    site.watch(10, connected=False)
    assert site.actions() == ["edge.registered a"]


def test_after_a_start_an_edge_has_30_seconds_to_be_heard(site: Site, store: Store) -> None:
    site.beat("a")
    site.watch()
    site.rig = site.process(store)
    site.watch(30)
    assert site.state("a") is EdgeState.UNHEARD
    site.watch(1)
    assert site.state("a") is EdgeState.LOST


def test_an_edge_that_is_lost_is_not_a_scope_that_is_silent(site: Site) -> None:
    site.rig.set_policy("vm:db", listening=Listening.AUTO)
    site.rig.guests.heard({"vm:db": START})
    site.beat("a")
    site.watch(31)
    site.clock.advance(days=2)
    assert site.rig.vm("db").listening
    [operation] = site.rig.schedule(Kind.HOST_UPDATE, "a")
    assert operation.events[0].approved_by is None
    site.beat("a")
    site.watch()
    assert not site.rig.vm("db").listening


def test_nobody_moves_to_a_host_whose_edge_is_lost_until_it_returns(site: Site) -> None:
    site.beat("b")
    site.watch(31)
    [operation] = site.rig.schedule(Kind.LIVE_MIGRATION, "a")
    site.rig.approve_all(operation)
    site.rig.tick()
    assert site.rig.operation(operation).status is Status.SCHEDULED
    assert "no VM moves to the host whose edge is lost" in site.rig.explain(operation.events[0].id).sentence
    site.beat("b")
    site.watch()
    site.rig.tick()
    assert site.rig.operation(operation).targets == {"db": "b"}


# Forgotten


def test_a_forgotten_edge_is_waited_for_no_more_and_known_again_if_it_beats(site: Site) -> None:
    site.beat("a", at=START - SECOND)
    site.watch()
    site.clock.advance(seconds=1)
    [operation] = site.rig.schedule(Kind.HOST_UPDATE, "a")
    site.clock.advance(minutes=16)
    site.rig.tick()
    assert site.rig.operation(operation).status is Status.SCHEDULED
    assert fleet.forget_edge(site.service, OPERATOR, "a").removed == "a"
    site.rig.tick()
    assert site.rig.operation(operation).status is Status.STARTED
    for ask in (queries.edge, lambda service, host: fleet.forget_edge(service, OPERATOR, host)):
        with pytest.raises(errors.NotFoundError, match="host 'a' has no edge"):
            ask(site.service, "a")
    assert (site.service.edges.hosts, dict(site.service.edges.known.shown)) == (set(), {})
    site.beat("a")
    site.watch()
    assert site.actions() == ["edge.registered a", "edge.forgotten a", "edge.registered a"]


def test_a_removed_host_takes_its_edge_with_it(site: Site) -> None:
    site.beat("b", polls={"db": START})
    site.watch()
    site.service.edges.published["b"] = Fence(0, 7)
    fleet.remove_host(site.service, OPERATOR, "b")
    assert (site.service.edges.hosts, site.service.edges.published) == (set(), {})
    site.watch(40)
    assert site.actions() == ["edge.registered b"]


# Waited for


def test_what_an_edge_has_not_shown_starts_when_it_has(site: Site) -> None:
    site.beat("a")
    site.watch()
    site.clock.advance(seconds=1)
    [operation] = site.rig.schedule(Kind.HOST_UPDATE, "a")
    event = operation.events[0].id
    site.clock.advance(minutes=15, seconds=2)
    site.rig.tick()
    said = site.rig.explain(event)
    assert said.sentence == (
        "NotBefore has passed, but the edge of host a has not shown the event to its guests: the operation waits until "
        "it has, or until 2026-01-05 12:30:02 UTC."
    )
    assert said.waiting_for[0]["host"] == "a"
    tenant = Access(role=Role.TENANT, scopes=of_scopes("vm:db")).scopes
    limited = queries.explain_event(site.service, event, tenant)
    assert limited.sentence == ("It waits for the edge of its host to show it to guests until 2026-01-05 12:30:02 UTC.")
    assert "host" not in limited.waiting_for[0]
    assert wording.sentence(site.rig.entries()[-1]) == (
        "The operation could not start yet: it waits for the edge of its host to show it to guests."
    )
    site.service.nudge.clear()
    site.beat("a", at=START)
    site.watch(2)
    assert not site.service.nudge.is_set()
    site.beat("a", at=operation.created_at)
    site.watch()
    assert site.service.nudge.is_set()
    site.rig.tick()
    assert site.rig.operation(operation).status is Status.STARTED


def test_what_was_shown_while_the_store_was_away_is_not_forgotten(site: Site) -> None:
    site.beat("a", at=START - SECOND)
    site.watch()
    [operation] = site.rig.schedule(Kind.HOST_UPDATE, "a")
    site.clock.advance(minutes=16)
    site.rig.tick()
    site.beat("a")
    with meddled(site.service, "write", away), pytest.raises(errors.UnavailableError):
        site.watch()
    site.watch()
    site.rig.tick()
    assert site.rig.operation(operation).status is Status.STARTED


# What operators see


def test_what_each_edge_tells(site: Site) -> None:
    site.beat("a", epoch=3, position=40, age=30, refused=2, refusal="the state is cut off")
    site.beat("b", epoch=3, position=40)
    site.watch()
    site.service.edges.published |= {"a": Fence(3, 44), "b": Fence(3, 40)}
    site.clock.advance(seconds=2)
    a, b = queries.edges(site.service).items
    assert (a.state, a.behind, a.refused, a.refusal) == (EdgeState.BEHIND, 4, 2, "the state is cut off")
    assert (a.last_beat, a.last_beat_seconds, a.shown_until) == (START, 2, START)
    assert (a.confirmed, a.confirmed_seconds) == (START - timedelta(seconds=30), 32)
    assert (b.confirmed, b.confirmed_seconds) == (None, None)
    assert (b.state, b.behind, b.epoch, b.position) == (EdgeState.CURRENT, 0, 3, 40)
    site.service.edges.published["b"] = Fence(4, 1)
    b = queries.edge(site.service, "b")
    assert (b.state, b.behind) == (EdgeState.BEHIND, None)
    assert [edge.host for edge in queries.edges(site.service, refused=True).items] == ["a"]
    assert [edge.host for edge in queries.edges(site.service, refused=False).items] == ["b"]


def test_edges_are_listed_in_pages(site: Site) -> None:
    for host in "ab":
        site.beat(host)
    site.watch()
    first = queries.edges(site.service, limit=1)
    assert ([edge.host for edge in first.items], first.next) == (["a"], "a")
    assert [edge.host for edge in queries.edges(site.service, after="a").items] == ["b"]


# When VMs polled


def test_a_poll_at_an_edge_counts_where_the_vm_is_or_is_going(site: Site) -> None:
    polled = site.service.edges.polled
    site.beat("a", polls={"db": START - SECOND})
    site.beat("b", polls={"db": START})
    site.watch()
    assert (polled("db"), polled("web")) == (START - SECOND, None)
    [operation] = site.rig.schedule(Kind.REDEPLOY, "db")
    site.rig.approve_all(operation)
    site.rig.tick()
    assert polled("db") == START
    site.beat("b", polls={"db": START + timedelta(hours=1)})
    assert polled("db") == site.clock.now()
    site.beat("b")
    assert polled("db") == START - SECOND
    site.beat("a")
    assert polled("db") is None


def test_nobody_is_known_to_have_polled_while_the_store_is_away(site: Site) -> None:
    site.beat("a", polls={"db": START})
    site.watch()
    with meddled(site.service, "read", away):
        assert site.service.edges.polled("db") is None
    assert site.service.edges.polled("db") == START


# Several processes


def test_what_another_process_wrote_is_followed(site: Site, store: Store) -> None:
    other = site.process(store).service

    def follow(journal_from: int) -> int:
        with store.read() as reader:
            page = reader.journal.page(after=journal_from, limit=100)
        other.edges.follow(entry for _, entry in page)
        return page[-1][0] if page else journal_from

    site.beat("a")
    site.watch()
    position = follow(0)
    assert other.edges.hosts == {"a"}
    site.watch(31)
    position = follow(position)
    assert queries.edge(other, "a").lost_since == START
    site.beat("a")
    site.watch()
    position = follow(position)
    assert queries.edge(other, "a").state is EdgeState.UNHEARD
    fleet.forget_edge(site.service, OPERATOR, "a")
    follow(position)
    assert other.edges.hosts == set()


def test_two_processes_write_the_same_once(site: Site, store: Store) -> None:
    """Neither follows the other here: each reads again before it writes."""
    other = site.process(store).service
    for service in (site.service, other):
        site.beat("a", service)
        service.edges.watch(True)
    assert other.edges.hosts == {"a"}
    for _ in range(31):
        site.clock.advance(seconds=1)
        for service in (site.service, other):
            service.edges.watch(True)
    for service in (site.service, other):
        site.beat("a", service)
        service.edges.watch(True)
    assert site.actions() == ["edge.registered a", "edge.lost a", "edge.returned a"]
    fleet.forget_edge(site.service, OPERATOR, "a")
    site.clock.advance(seconds=4)
    for _ in range(31):
        site.clock.advance(seconds=1)
        other.edges.watch(True)
    assert other.edges.hosts == set()


def test_a_follower_tells_of_edges(migrated_postgres_url: str) -> None:
    stores = [open_store(migrated_postgres_url, migrate=False) for _ in range(2)]
    with closing(stores[0]) as store, closing(stores[1]) as second:
        rig, other = Rig(store, clock=SystemClock()), Rig(second, clock=SystemClock())
        rig.add_host("a")
        follower = Follower(other.service, other.service.refresh())
        follower.start()
        try:
            rig.service.edges.beat("a", Beat(version="1.0", at=START))
            rig.service.edges.watch(True)
            wait_for(lambda: other.service.edges.hosts == {"a"})
        finally:
            follower.stop()
