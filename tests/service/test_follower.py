"""Following what other processes write, whatever becomes of PostgreSQL."""

import threading
import time
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest
from tests.postgres import PostgresServer
from tests.service.rig import OPERATOR, Rig

from forenotice.clock import SystemClock
from forenotice.core import errors
from forenotice.core.fleet import ScopeKind
from forenotice.liveness import WITHIN_SECONDS, Liveness
from forenotice.service import fleet
from forenotice.service.loops import Follower
from forenotice.store.opener import open_store
from forenotice.views.fleet import NewGroup, PolicyChange


def wait_for(condition: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + 60, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        pause.wait(0.05)


def add_group(rig: Rig, name: str) -> None:
    fleet.add_group(rig.service, OPERATOR, NewGroup(name=name, kind=ScopeKind.AVAILABILITY_SET, policy=PolicyChange()))


def is_added(rig: Rig, name: str) -> bool:
    try:
        add_group(rig, name)
    except errors.UnavailableError:
        return False
    return True


def test_a_failover_is_survived(postgres_server: PostgresServer, migrated_postgres_url: str) -> None:
    stores = [open_store(migrated_postgres_url, migrate=False) for _ in range(2)]
    one, two = (Rig(store, clock=SystemClock()) for store in stores)
    seconds = [0.0]
    two.service.liveness = Liveness(clock=lambda: seconds[0])
    follower = Follower(two.service, two.service.refresh())
    follower.start()
    try:
        add_group(one, "before")
        wait_for(lambda: "group:before" in two.published.by_key)
        seconds[0] += WITHIN_SECONDS + 1
        wait_for(lambda: not two.service.liveness.silent())
        postgres_server.fall_behind()
        with pytest.raises(errors.UnavailableError):
            add_group(one, "meanwhile")
        postgres_server.promote()
        wait_for(lambda: is_added(one, "after"))
        wait_for(lambda: "group:after" in two.published.by_key)
        assert "group:meanwhile" not in two.published.by_key
    finally:
        follower.stop()
        for store in stores:
            store.close()


def tag(rig: Rig, key: str) -> str:
    scope = rig.published.by_key[key].document
    assert scope is not None
    return scope.tag


NEWEST = "position = (SELECT max(position) FROM journal)"


@pytest.mark.parametrize(
    "lose",
    [
        f"DELETE FROM journal WHERE {NEWEST}",
        # Something else has happened there since, before we looked.
        f"UPDATE journal SET at = at + 1, action = 'group.removed' WHERE {NEWEST}",
    ],
)
def test_a_database_that_lost_entries_begins_an_epoch(migrated_postgres_url: str, lose: str) -> None:
    """As after a failover to a standby that was behind: what guests have seen must not come again as another thing."""
    store, others = (open_store(migrated_postgres_url, migrate=False) for _ in range(2))
    with closing(store), closing(others):
        rig = Rig(store, clock=SystemClock())
        add_group(rig, "kept")
        follower = Follower(rig.service, rig.service.refresh())
        follower.start()
        try:
            add_group(Rig(others, clock=SystemClock()), "lost")
            wait_for(lambda: "group:lost" in rig.published.by_key)
            with psycopg.connect(migrated_postgres_url) as connection:
                connection.execute(lose)
                connection.execute("DELETE FROM scopes WHERE key = 'group:lost'")
            with psycopg.connect(migrated_postgres_url) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            wait_for(lambda: "group:lost" not in rig.published.by_key)
            wait_for(lambda: "." in tag(rig, "group:kept"))
            assert rig.actions()[-1] == "database.restored"
        finally:
            follower.stop()
