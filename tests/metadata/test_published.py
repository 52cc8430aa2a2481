"""The published fleet: what replaces what, who is found by what, and how little a VM costs."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.metadata.running import DB, DB_VM, EVENT, FLEET, WEB, WEB_VMS

from forenotice import publication
from forenotice.core.documents import Document
from forenotice.core.fleet import Facts, Scope, ScopeKind, Vm
from forenotice.metadata.published import PublishedFleet
from forenotice.publication import Publication


@pytest.fixture
def published() -> PublishedFleet:
    made = PublishedFleet()
    made.put_scopes(FLEET)
    return made


def document(incarnation: int, tag: str = WEB.tag, scope: str = WEB.key) -> Document:
    return Document(scope=scope, tag=tag, kind=WEB.kind, incarnation=incarnation)


@pytest.mark.parametrize(
    ("newer", "etag"),
    [
        (document(3), '"3-webtag"'),
        (document(2), '"2-webtag"'),
        (document(1), '"2-webtag"'),
        (document(1, tag="newtag"), '"1-newtag"'),
        (document(9, scope="group:other"), '"2-webtag"'),
    ],
)
def test_only_a_later_document_replaces_one(published: PublishedFleet, newer: Document, etag: str) -> None:
    published.put_documents([newer])
    assert published.scopes[WEB.key].etag == etag
    assert set(published.scopes) == {WEB.key, DB.key}


def test_members_bring_their_document_unless_it_is_older(published: PublishedFleet) -> None:
    published.put_documents([document(5)])
    published.put_scopes([publication.of(WEB, vms=WEB_VMS, events=(EVENT,))])
    assert published.scopes[WEB.key].etag == '"5-webtag"'
    published.put_scopes([publication.of(replace(WEB, incarnation=6), vms=WEB_VMS, events=(EVENT,))])
    assert published.scopes[WEB.key].document.events == (EVENT,)


def test_vms_are_found_by_name_id_and_address(published: PublishedFleet) -> None:
    guest = published.by_name["web-1"]
    assert published.by_address["127.1.0.22"] is guest
    assert published.by_vm_id[WEB_VMS[1].vm_id.lower()] is guest
    assert guest.scope is published.scopes[WEB.key]


def test_what_a_vm_no_longer_has_does_not_lead_to_it(published: PublishedFleet) -> None:
    changed = replace(WEB_VMS[1], addresses=("127.1.0.99",), vm_id="8a506c35-679a-4f78-9d76-0000000000ff")
    published.put_scopes([publication.of(WEB, vms=(WEB_VMS[0], changed))])
    assert "127.1.0.22" not in published.by_address
    assert WEB_VMS[1].vm_id.lower() not in published.by_vm_id
    assert published.by_address["127.1.0.99"] is published.by_name["web-1"] is published.by_vm_id[changed.vm_id]


@pytest.mark.parametrize("taken_first", [True, False])
def test_an_address_can_change_hands(published: PublishedFleet, taken_first: bool) -> None:
    giving = publication.of(WEB, vms=(WEB_VMS[0], replace(WEB_VMS[1], addresses=())))
    taking = publication.of(DB, vms=(replace(DB_VM, addresses=("127.1.0.22",)),))
    published.put_scopes([taking, giving] if taken_first else [giving, taking])
    assert published.by_address["127.1.0.22"].name == "db"


@pytest.mark.parametrize("taken_first", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_a_vm_can_change_scope(published: PublishedFleet, taken_first: bool, gone: bool) -> None:
    leaving = Publication(key=DB.key) if gone else publication.of(DB)
    taking = publication.of(WEB, vms=(*WEB_VMS, replace(DB_VM, scope=WEB.key)))
    published.put_scopes([taking, leaving] if taken_first else [leaving, taking])
    assert published.by_name["db"].scope is published.scopes[WEB.key]
    assert published.by_address["127.1.0.31"] is published.by_name["db"]
    assert (DB.key in published.scopes) is not gone


def test_a_vm_that_is_arriving_is_known_and_told_nothing_yet(published: PublishedFleet) -> None:
    published.put_scopes([publication.of(WEB, vms=WEB_VMS[:1], arriving=WEB_VMS[1:])])
    guest = published.by_address["127.1.0.22"]
    assert guest.member.arriving
    assert guest.scope is None
    published.put_scopes([publication.of(WEB, vms=WEB_VMS)])
    assert published.by_address["127.1.0.22"] is guest
    assert guest.scope is published.scopes[WEB.key]
    published.put_scopes([publication.of(WEB, vms=WEB_VMS[:1], arriving=WEB_VMS[1:])])
    published.put_scopes([publication.of(WEB, vms=WEB_VMS[:1])])
    assert "127.1.0.22" not in published.by_address
    assert "web-1" not in published.by_name


def test_a_removed_scope_takes_its_vms_along(published: PublishedFleet) -> None:
    generation, guest = published.generation, published.by_name["db"]
    published.put_scopes([Publication(key=DB.key), Publication(key="vm:other")])
    assert published.generation > generation
    assert guest.scope is None
    assert set(published.by_name) == set(published.by_name.keys() - {"db"}) == {"web-0", "web-1"}
    assert set(published.by_address) == {"127.1.0.21", "127.1.0.22"}


def test_everything_leaves_nothing_else(published: PublishedFleet) -> None:
    published.put_everything([publication.of(DB, vms=(DB_VM,))])
    assert set(published.scopes) == {DB.key}
    assert set(published.by_name) == {DB_VM.name}


@pytest.mark.parametrize("facts_shared", [2, 100])
def test_equal_facts_are_kept_once(facts_shared: int) -> None:
    published = PublishedFleet(facts_shared)

    def put(name: str, **facts: str) -> None:
        scope = Scope(key=f"vm:{name}", kind=ScopeKind.STANDALONE, tag="t")
        vm = Vm(name=name, vm_id=name, host="h", scope=scope.key, facts=Facts(**facts, tags={"a": "b"}))
        published.put_scopes([publication.of(scope, vms=(vm,))])

    put("one", size="large")
    put("two", size="large")
    put("three", size="small")
    assert published.by_name["one"].member.facts is published.by_name["two"].member.facts
    assert published.by_name["three"].member.facts.size == "small"
    put("four", size="large")
    assert published.by_name["four"].member.facts == published.by_name["one"].member.facts


def test_a_large_fleet_fits() -> None:
    """150 MiB for 100,000 VMs in 20,000 scopes is 1,570 bytes each; half of it leaves room for what serves them."""
    count = 4_000

    def fleet() -> Iterator[Publication]:
        for number in range(count // 5):
            key = f"group:group-{number}"
            vms = tuple(
                Vm(
                    name=f"vm-{number}-{each}",
                    vm_id=f"8a506c35-679a-4f78-9d76-{number * 5 + each:012x}",
                    host=f"host-{number}",
                    scope=f"group:group-{number}",
                    addresses=(f"10.{number // 250}.{number % 250}.{each}",),
                    facts=Facts(location="norwayeast", tags={"team": "data"}),
                )
                for each in range(5)
            )
            scope = Scope(key=key, kind=ScopeKind.AVAILABILITY_SET, tag=f"{number:08x}")
            yield publication.of(scope, vms)

    tracemalloc.start()
    try:
        published = PublishedFleet()
        published.put_scopes(fleet())
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(published.by_address) == count
    assert size / count < 785
