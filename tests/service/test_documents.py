"""A VM's document: byte for byte what the endpoint answers it with."""

from collections.abc import Mapping

import msgspec
import pytest
from tests.metadata.running import running
from tests.service.rig import OPERATOR, Rig

from forenotice.core import errors, selectors
from forenotice.core.membership import VmSpec
from forenotice.core.operations import Kind
from forenotice.metadata.options import Options
from forenotice.service import fleet, maintenance, queries
from forenotice.service.context import read_published
from forenotice.wire import versions
from forenotice.wire.versions import Version

ADDRESSES = {"web-0": "127.1.0.10", "web-2": "127.1.0.12", "pool_4": "127.1.0.24", "db": "127.1.0.30"}


@pytest.fixture
def busy(rig: Rig) -> Rig:
    """Events of several types and ages, one of them Started."""
    rig.schedule(Kind.RESTART, "web-0")
    rig.clock.advance(seconds=7)
    (update,) = rig.schedule(Kind.HOST_UPDATE, "host-c")
    rig.schedule(Kind.DELETION, "pool_0")
    for event in update["events"]:
        maintenance.approve(rig.service, OPERATOR, event["id"])
    rig.tick()
    return rig


@pytest.mark.parametrize("known", [versions.AS_PUBLISHED, versions.AS_SEEN], ids=["published", "seen"])
def test_it_is_what_the_endpoint_answers_in_every_version(busy: Rig, known: Mapping[str, Version]) -> None:
    busy.service.versions = known
    with busy.service.store.read() as reader:
        members = read_published(reader, None)
    shown = set()
    with running(fleet=members, options=Options(versions=known)) as server:
        for name, address in ADDRESSES.items():
            for version in queries.VERSIONS:
                answer = server.ask(f"/metadata/scheduledevents?api-version={version}", source=address)
                assert answer.status == 200
                assert queries.document(busy.service, name, version) == answer.body
                shown.add(answer.body)
    assert len(shown) > len(queries.VERSIONS)


def test_all_versions_can_be_chosen_and_the_newest_comes_first() -> None:
    assert queries.VERSIONS[0] == versions.NEWEST.name
    assert set(queries.VERSIONS) == {version.name for version in versions.ALL}


def test_what_cannot_be_shown_says_why(rig: Rig) -> None:
    with pytest.raises(errors.RefusedError, match="no api-version '2020-07-02': choose one of 2020-07-01, 2019-08-01"):
        queries.document(rig.service, "web-0", "2020-07-02")
    with pytest.raises(errors.NotFoundError, match="no VM 'web-9'"):
        queries.document(rig.service, "web-9")


def test_another_scopes_document_is_as_if_there_were_no_such_vm(rig: Rig) -> None:
    seen = selectors.of_scopes("web")
    assert queries.document(rig.service, "web-1", seen=seen)
    with pytest.raises(errors.NotFoundError, match="no VM 'db'"):
        queries.document(rig.service, "db", seen=seen)


def test_events_of_one_command_are_listed_as_the_document_has_them(rig: Rig) -> None:
    names = [f"pool_{number}" for number in (12, 10, 11, 2, 3)]
    for name in names[:3]:
        fleet.add_vm(rig.service, OPERATOR, VmSpec(name=name, host="host-d", group="pool", update_domain=3))
    rig.schedule(Kind.RESTART, *names)
    wanted = ["pool_2", "pool_3", "pool_10", "pool_11", "pool_12"]
    shown = msgspec.json.decode(queries.document(rig.service, "pool_0"))["Events"]
    assert [name for event in shown for name in event["Resources"]] == wanted
    for descending in (False, True):
        listed = queries.events(rig.service, group="pool", descending=descending)["items"]
        assert [name for event in listed for name in event["resources"]] == wanted
    first = queries.events(rig.service, limit=3)
    rest = queries.events(rig.service, after=first["next"], limit=3)
    assert {event["id"] for event in (*first["items"], *rest["items"])} == {event["EventId"] for event in shown}
