"""What is published has a serial form that loses nothing."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.service.rig import Rig

from forenotice import publication
from forenotice.core.operations import Kind
from forenotice.metadata.published import PublishedFleet
from forenotice.publication import Publication
from forenotice.service import fleet
from forenotice.service.calls import SYSTEM
from forenotice.service.service import read_published
from forenotice.store.opener import open_store
from forenotice.views.fleet import VmChange
from forenotice.wire import versions


def published(rig: Rig) -> list[Publication]:
    with rig.service.store.read() as reader:
        return read_published(reader, ("group:none", "group:pool", "group:web", "vm:batch", "vm:db"))


@pytest.fixture
def sent(sqlite_path: Path) -> Iterator[list[Publication]]:
    """The demo fleet with several events, facts, a scope that was heard, and one that is gone."""
    with closing(open_store(f"sqlite:///{sqlite_path}", migrate=False)) as store:
        rig = Rig(store).settle_demo()
        changes = {"addresses": ("fd00::31", "10.0.0.31"), "facts": {"location": "norwayeast", "tags": {"ümlaut": ""}}}
        fleet.set_vm(rig.service, SYSTEM, "db", msgspec.convert(changes, VmChange))
        rig.guests.heard({"vm:db": datetime(2026, 3, 9, 12, 0, 0, 123456, tzinfo=UTC)})
        rig.schedule(Kind.HOST_UPDATE, "host-a")
        rig.schedule(Kind.EVICTION, "batch")
        rig.schedule(Kind.RESTART, "web-1")
        rig.tick()
        yield published(rig)


def test_everything_that_the_demo_fleet_publishes_survives_encoding(sent: list[Publication]) -> None:
    assert [scope.key for scope in sent if scope.document is None] == ["group:none"]
    documents = [scope.document for scope in sent if scope.document]
    assert sum(len(document.events) for document in documents) > 3
    assert publication.decode(publication.encode(sent)) == sent
    assert publication.decode_documents(publication.encode_documents(documents)) == documents


def test_an_endpoint_serves_the_same_bytes_from_what_was_encoded(sent: list[Publication]) -> None:
    ours, theirs = PublishedFleet(), PublishedFleet()
    ours.put_everything(sent)
    theirs.put_everything(publication.decode(publication.encode(sent)))
    assert list(theirs.by_address) == list(ours.by_address)
    for key, scope in ours.scopes.items():
        for version in versions.ALL:
            assert theirs.scopes[key].render(version) == scope.render(version)
