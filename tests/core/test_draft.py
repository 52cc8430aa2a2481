"""A draft: what is not there is said, what was put is read again, and the difference is told."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.core.builders import Site, row

from forenotice.core import errors
from forenotice.core.draft import Draft
from forenotice.core.operations import Kind, Status


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda draft: draft.host("x"), "there is no host 'x'"),
        (lambda draft: draft.vm("x"), "there is no VM 'x'"),
        (lambda draft: draft.scope("group:x"), "there is no group 'x'"),
        (lambda draft: draft.scope("vm:x"), "there is no vm 'x'"),
        (lambda draft: draft.operation("x"), "there is no operation 'x'"),
        (lambda draft: draft.rollout("x"), "there is no rollout 'x'"),
        (lambda draft: draft.event("x"), "there is no event 'x'"),
    ],
)
def test_what_is_not_there(ask: Callable[[Draft], object], said: str) -> None:
    with pytest.raises(errors.NotFoundError, match=said) as missing:
        ask(Site().look())
    assert "x" in missing.value.facts.values()


def test_event_ids_are_compared_without_regard_to_case() -> None:
    site = row()
    event = site.event(site.schedule(Kind.RESTART, "web-0"))
    draft = site.look(events=[event.id.lower()])
    assert draft.event(event.id.lower()) is draft.event(event.id)


def test_the_incarnation_grows_once_however_much_changes() -> None:
    site = row()
    site.add_vm("web-3", "a", group="web", update_domain=0, fault_domain=0)
    before = site.scope("group:web").incarnation
    site.schedule(Kind.RESTART, "web-0", "web-3")
    assert site.scope("group:web").incarnation == before + 1
    draft = site.look(scopes=["group:web"])
    event = site.listed("group:web")[0]
    draft.put_event(replace(event, status=Status.STARTED))
    (document,) = draft.changes().documents
    assert document.incarnation == before + 2
    assert [listed.status for listed in document.events] == [Status.STARTED, Status.SCHEDULED]
    # Asked again, it has not grown again.
    assert not draft.changes().documents
    assert draft.scope("group:web").incarnation == before + 2


def test_what_is_not_shown_yet_raises_the_incarnation_later() -> None:
    site = row()
    site.schedule(Kind.RESTART, "web-0")
    draft = site.look(scopes=["group:web"])
    before = draft.scope("group:web").incarnation
    draft.put_event(replace(site.listed("group:web")[0], status=Status.STARTED))
    assert not draft.changes(shown=False).documents
    assert draft.scope("group:web").incarnation == before
    assert [document.incarnation for document in draft.changes().documents] == [before + 1]


def test_members_are_told_anew_when_vms_or_policy_differ() -> None:
    site = row()
    draft = site.look(vms=["web-0"])
    draft.put_vm(replace(site.vm("web-0"), host="d"))
    assert not draft.changes().members
    draft.put_vm(replace(site.vm("web-0"), addresses=("10.0.0.4",)))
    assert list(draft.changes().members) == ["group:web"]
    draft = site.look(vms=["web-0"])
    draft.put_vm(replace(site.vm("web-0"), scope="vm:web-0"))
    assert set(draft.changes().members) == {"group:web", "vm:web-0"}
    draft = site.look(vms=["web-0"])
    draft.remove_vm("web-0")
    changes = draft.changes()
    assert list(changes.members) == ["group:web"]
    assert changes.vms == {"web-0": None}
