"""Approvals: whose, for what, how often, and what refuses them."""

from datetime import timedelta

import pytest
from tests.core.builders import HOUR, MINUTE, SECOND, Site, is_nothing, row

from forenotice.core import errors, lifecycle
from forenotice.core.fleet import Listening
from forenotice.core.lifecycle import Approval
from forenotice.core.operations import Kind, Status


def pair() -> Site:
    """`db` and `www`, standalone, both on host a."""
    site = Site()
    site.add_hosts("ab")
    site.add_vm("db", "a")
    site.add_vm("www", "a")
    return site


def test_a_guest_approves_for_its_whole_scope() -> None:
    site = row()
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    event = site.event(operation)
    site.wait(MINUTE)
    site.approve("group:web", event.id.lower(), by="web-2")
    event = site.event(operation)
    assert (event.approved_at, event.approved_by, event.implied) == (site.now, "web-2", False)
    assert event.status is Status.SCHEDULED
    assert site.operation(operation).due_at == site.now
    site.tick()
    assert site.event(operation).status is Status.STARTED


def test_all_scopes_must_approve() -> None:
    site = pair()
    operation = site.schedule(Kind.HOST_REBOOT, "a")
    mine, other = site.events(operation)
    site.approve(mine.scope, mine.id)
    assert site.operation(operation).due_at == operation.not_before
    site.tick()
    assert site.operation(operation).status is Status.SCHEDULED
    site.approve(other.scope, other.id)
    site.tick()
    assert site.operation(operation).status is Status.STARTED


def test_approving_is_not_visible_to_guests() -> None:
    site = pair()
    event = site.event(site.schedule(Kind.RESTART, "db"))
    before = site.scope("vm:db").incarnation
    assert site.approve("vm:db", event.id).documents == []
    assert site.scope("vm:db").incarnation == before


def test_another_scopes_event_and_none_at_all_are_refused_alike() -> None:
    site = pair()
    own = site.event(site.schedule(Kind.RESTART, "db"))
    other = site.event(site.schedule(Kind.RESTART, "www"))
    said = []
    for stranger in (other.id, "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(errors.RefusedError) as refused:
            site.approve("vm:db", own.id, stranger)
        said.append((refused.value.message, refused.value.facts))
    assert said[0] == said[1]
    assert not any(event.approved for event in site.state.events.values())


def test_what_else_was_loaded_does_not_help_a_guest() -> None:
    """Approvals of several guests are decided together."""
    site = pair()
    other = site.event(site.schedule(Kind.RESTART, "www"))
    over = site.event(site.schedule(Kind.RESTART, "db"))
    site.cancel(over.operation)
    site.wait(2 * HOUR)
    draft = site.look(scopes=["vm:db", "vm:www"], events=[over.id])
    for stranger in (other, over):
        with pytest.raises(errors.RefusedError):
            lifecycle.approve_as_guest(draft, Approval(vm="db", scope="vm:db", event_ids=(stranger.id,)))
    assert is_nothing(draft.changes())


def test_approving_twice_is_approving_once() -> None:
    site = pair()
    operation = site.schedule(Kind.RESTART, "db")
    event = site.event(operation)
    site.approve("vm:db", event.id, event.id.lower())
    assert site.actions(event=event.id).count("event.approved") == 1
    site.wait(SECOND)
    again = site.approve("vm:db", event.id)
    assert is_nothing(again)


def test_a_started_event_can_be_approved_without_effect() -> None:
    site = pair()
    failure = site.schedule(Kind.HARDWARE_FAILURE, "a")
    event = site.events(failure)[0]
    changes = site.approve(event.scope, event.id)
    assert is_nothing(changes)


@pytest.mark.parametrize(("ago", "fine"), [(timedelta(0), True), (HOUR, True), (HOUR + SECOND, False)])
def test_an_event_that_ended_within_the_last_hour_still_answers(ago: timedelta, fine: bool) -> None:
    site = pair()
    operation = site.schedule(Kind.RESTART, "db")
    site.cancel(operation.id)
    site.wait(ago)
    if fine:
        changes = site.approve("vm:db", site.event(operation).id)
        assert is_nothing(changes)
    else:
        with pytest.raises(errors.RefusedError):
            site.approve("vm:db", site.event(operation).id)


def test_an_approval_after_its_time_is_recorded_without_effect() -> None:
    site = row(hosts="abc")
    operation = site.schedule(Kind.LIVE_MIGRATION, "a")
    site.wait(20 * MINUTE)
    site.tick()
    site.approve("group:web", site.event(operation).id)
    assert site.event(operation).approved
    assert site.journal[-1].data["late"] is True
    site.tick()
    assert site.operation(operation).status is Status.SCHEDULED


def test_an_approval_before_its_time_is_not_late() -> None:
    site = pair()
    site.approve("vm:db", site.event(site.schedule(Kind.RESTART, "db")).id)
    assert site.journal[-1].data["late"] is False


def test_an_operators_word_counts_as_much() -> None:
    site = pair()
    operation = site.schedule(Kind.RESTART, "db")
    site.approve_as_operator(site.event(operation).id, by="ann")
    assert site.event(operation).approved_by == "ann"
    site.tick()
    assert site.operation(operation).status is Status.STARTED


def test_an_explicit_approval_takes_the_place_of_silence() -> None:
    site = row(listening=Listening.AUTO)
    operation = site.schedule(Kind.HOST_UPDATE, "a")
    site.approve("group:web", site.event(operation).id, by="web-0")
    event = site.event(operation)
    assert (event.approved_by, event.implied) == ("web-0", False)
    site.hear("group:web")
    assert site.event(operation).approved


def test_a_vm_added_later_may_approve_for_the_scope() -> None:
    site = row()
    event = site.event(site.schedule(Kind.HOST_UPDATE, "a"))
    vm = site.add_vm("web-3", "d", group="web", update_domain=3)
    site.approve(vm.scope, event.id, by=vm.name)
    assert site.state.events[event.id].approved_by == "web-3"
