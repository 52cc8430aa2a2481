"""The board: what replaces what, who is found by what, and how little a VM costs."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.metadata.running import DB, DB_VM, EVENT, FLEET, WEB, WEB_VMS

from forenotice.core.documents import Document
from forenotice.core.fleet import Facts, Scope, ScopeKind, Vm
from forenotice.metadata.board import Board
from forenotice.service.publishing import Members


@pytest.fixture
def board() -> Board:
    made = Board()
    made.put_members(FLEET)
    return made


def document(incarnation: int, tag: str = WEB.tag, scope: str = WEB.key) -> Document:
    return Document(scope=scope, tag=tag, kind=WEB.kind, incarnation=incarnation)


@pytest.mark.parametrize(
    ("published", "etag"),
    [
        (document(3), '"3-webtag"'),
        (document(2), '"2-webtag"'),
        (document(1), '"2-webtag"'),
        (document(1, tag="newtag"), '"1-newtag"'),
        (document(9, scope="group:other"), '"2-webtag"'),
    ],
)
def test_only_a_later_document_replaces_one(board: Board, published: Document, etag: str) -> None:
    board.put_documents([published])
    assert board.notices[WEB.key].etag == etag
    assert set(board.notices) == {WEB.key, DB.key}


def test_members_bring_their_document_unless_it_is_older(board: Board) -> None:
    board.put_documents([document(5)])
    board.put_members([Members(key=WEB.key, scope=WEB, vms=WEB_VMS, events=(EVENT,))])
    assert board.notices[WEB.key].etag == '"5-webtag"'
    board.put_members([Members(key=WEB.key, scope=replace(WEB, incarnation=6), vms=WEB_VMS, events=(EVENT,))])
    assert board.notices[WEB.key].document.events == (EVENT,)


def test_vms_are_found_by_name_id_and_address(board: Board) -> None:
    guest = board.by_name["web-1"]
    assert board.by_address["127.1.0.22"] is guest
    assert board.by_vm_id[WEB_VMS[1].vm_id.lower()] is guest
    assert guest.notice is board.notices[WEB.key]


def test_what_a_vm_no_longer_has_does_not_lead_to_it(board: Board) -> None:
    changed = replace(WEB_VMS[1], addresses=("127.1.0.99",), vm_id="8a506c35-679a-4f78-9d76-0000000000ff")
    board.put_members([Members(key=WEB.key, scope=WEB, vms=(WEB_VMS[0], changed))])
    assert "127.1.0.22" not in board.by_address
    assert WEB_VMS[1].vm_id.lower() not in board.by_vm_id
    assert board.by_address["127.1.0.99"] is board.by_name["web-1"] is board.by_vm_id[changed.vm_id]


@pytest.mark.parametrize("taken_first", [True, False])
def test_an_address_can_change_hands(board: Board, taken_first: bool) -> None:
    giving = Members(key=WEB.key, scope=WEB, vms=(WEB_VMS[0], replace(WEB_VMS[1], addresses=())))
    taking = Members(key=DB.key, scope=DB, vms=(replace(DB_VM, addresses=("127.1.0.22",)),))
    board.put_members([taking, giving] if taken_first else [giving, taking])
    assert board.by_address["127.1.0.22"].name == "db"


@pytest.mark.parametrize("taken_first", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_a_vm_can_change_scope(board: Board, taken_first: bool, gone: bool) -> None:
    leaving = Members(key=DB.key, scope=None if gone else DB)
    taking = Members(key=WEB.key, scope=WEB, vms=(*WEB_VMS, replace(DB_VM, scope=WEB.key)))
    board.put_members([taking, leaving] if taken_first else [leaving, taking])
    assert board.by_name["db"].notice is board.notices[WEB.key]
    assert board.by_address["127.1.0.31"] is board.by_name["db"]
    assert (DB.key in board.notices) is not gone


def test_a_removed_scope_takes_its_vms_along(board: Board) -> None:
    generation, guest = board.generation, board.by_name["db"]
    board.put_members([Members(key=DB.key, scope=None), Members(key="vm:other", scope=None)])
    assert board.generation > generation
    assert guest.notice is None
    assert set(board.by_name) == set(board.by_name.keys() - {"db"}) == {"web-0", "web-1"}
    assert set(board.by_address) == {"127.1.0.21", "127.1.0.22"}


def test_everything_leaves_nothing_else(board: Board) -> None:
    board.put_everything([Members(key=DB.key, scope=DB, vms=(DB_VM,))])
    assert set(board.notices) == {DB.key}
    assert set(board.by_name) == {DB_VM.name}


@pytest.mark.parametrize("facts_shared", [2, 100])
def test_equal_facts_are_kept_once(facts_shared: int) -> None:
    board = Board(facts_shared)

    def put(name: str, **facts: str) -> None:
        scope = Scope(key=f"vm:{name}", kind=ScopeKind.STANDALONE, tag="t")
        vm = Vm(name=name, vm_id=name, host="h", scope=scope.key, facts=Facts(**facts, tags={"a": "b"}))
        board.put_members([Members(key=scope.key, scope=scope, vms=(vm,))])

    put("one", size="large")
    put("two", size="large")
    put("three", size="small")
    assert board.by_name["one"].facts is board.by_name["two"].facts
    assert board.by_name["three"].facts.size == "small"
    put("four", size="large")
    assert board.by_name["four"].facts == board.by_name["one"].facts


def test_a_large_fleet_fits() -> None:
    """150 MiB for 100,000 VMs in 20,000 scopes is 1,570 bytes each; half of it leaves room for what serves them."""
    count = 10_000

    def fleet() -> Iterator[Members]:
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
            yield Members(key=key, scope=scope, vms=vms)

    tracemalloc.start()
    try:
        board = Board()
        board.put_members(fleet())
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(board.by_address) == count
    assert size / count < 785
