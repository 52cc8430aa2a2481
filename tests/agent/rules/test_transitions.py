"""What happens next in a saga: tables."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.agent.rules.builders import ME, T0, Story, after, event, rule, started

from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Match, Phase, Policy, Rule
from forenotice.agent.rules.saga import ProcessGroup, Progress, SagaIndex, State, memo
from forenotice.agent.rules.transitions import Approve, Begin, Displace, Stop

PREPARE, ON_STARTED, RECOVER, UNDO = Phase
UNPREPARED = Policy(unprepared=True)
PEERS = Policy(peer_timeout=timedelta(seconds=30))
THERE_AND_BACK = frozenset({PREPARE, RECOVER, UNDO})


def ready(*rules: Rule, boot: str = "", **more: Any) -> Story:
    """Prepared, and approved where the policy allows it."""
    story = Story(*rules, **more)
    story.boot = boot
    story.turn()
    story.finish(PREPARE)
    return story


def failed(seconds: float = 0, **more: Any) -> Story:
    """So long after a preparation failed."""
    story = Story(**more)
    story.turn()
    story.end(PREPARE, ok=False)
    story.wait(seconds)
    return story


def preparing(**more: Any) -> Story:
    story = Story(**more)
    story.turn()
    return story


def test_the_whole_way() -> None:
    story = Story()
    assert (story.begun(), story.state) == (["prepare drain"], State.PREPARING)
    assert story.finish(PREPARE) == [Approve()]
    assert (story.state, story.saga.approving_at) == (State.PREPARED, T0)
    story.approve()
    assert (story.state, story.turn()) == (State.APPROVED, [])
    assert story.begun(started()) == ["on_started drain"]
    story.end(ON_STARTED)
    assert (story.state, story.turn()) == (State.STARTED, [])
    assert (story.begun(None), story.state) == (["recover drain"], State.RECOVERING)
    assert story.finish(RECOVER) == []
    assert (story.state, story.saga.why) == (State.DONE, "recovered")
    assert story.turn() == []


@pytest.mark.parametrize("only", [rule(match=Match(types=frozenset({"Freeze"}))), rule(phases=frozenset({RECOVER}))])
def test_an_event_that_no_handler_prepares_for_is_approved_only_where_that_is_said(only: Rule) -> None:
    story = Story(only, policy=UNPREPARED)
    assert story.turn() == [Approve()]
    story = Story(only)
    assert story.turn() == []
    said = 'not approved, because no handler prepares for it and approve = "always" is not set'
    assert (story.state, story.saga.ready_at, story.saga.why) == (State.SEEN, None, said)
    story.policy = UNPREPARED
    assert story.turn() == [Approve()]


@pytest.mark.parametrize("handled", [True, False])
def test_an_agent_that_never_approves_says_so(handled: bool) -> None:
    only = rule() if handled else rule(match=Match(types=frozenset({"Freeze"})))
    story = Story(only, policy=Policy(approves=False))
    story.turn()
    if handled:
        assert story.finish(PREPARE) == []
    assert (story.state, story.saga.why) == (State.PREPARED, "ready; agent.toml says never to approve")


def test_a_failed_preparation_is_not_approved_either_where_all_else_is() -> None:
    story = Story(rule(retries=0), policy=UNPREPARED)
    story.turn()
    assert story.finish(PREPARE, ok=False, message="no") == []
    assert story.saga.why == "not approved, because preparation failed: drain (no)"


def test_what_needs_no_preparation_is_approved_at_once() -> None:
    policy = Policy(at_once=(Match(sources=frozenset({"User"})),))
    assert Story(policy=policy).turn() == [Approve()]
    assert Story(policy=policy, at=event(source="Platform")).begun() == ["prepare drain"]


def test_stages_one_after_the_other_and_back_in_reverse() -> None:
    story = Story(rule("b", stage=2), rule("a1", stage=1), rule("a2", stage=1))
    assert story.begun() == ["prepare a1", "prepare a2"]
    story.end(PREPARE, "a1")
    assert story.begun() == []
    story.end(PREPARE, "a2")
    assert story.begun() == ["prepare b"]
    story.finish(PREPARE, "b")
    assert story.begun(None) == ["recover b"]
    story.end(RECOVER, "b")
    assert story.begun() == ["recover a1", "recover a2"]


def test_a_failure_is_retried_then_blocks() -> None:
    story = Story(rule(retries=1), rule("later", stage=1))
    story.turn()
    assert story.finish(PREPARE, ok=False, message="exit code 1") == []
    assert "retried" in story.saga.why
    story.wait(1)
    begin = story.begin()
    assert begin.step.attempt == 2
    story.end(PREPARE, ok=False, message="exit code 1")
    story.wait(60)
    assert story.turn() == []
    assert story.saga.why == "not approved, because preparation failed: drain (exit code 1)"
    assert story.state == State.PREPARING


def test_a_failure_that_does_not_block() -> None:
    story = Story(rule(retries=0, blocks=False), rule("later", stage=1))
    story.turn()
    story.end(PREPARE, ok=False)
    assert story.begun() == ["prepare later"]
    assert story.finish(PREPARE, "later") == [Approve()]


def test_a_failed_preparation_is_recovered_from() -> None:
    """It may have got half way."""
    story = Story(rule(retries=0))
    story.turn()
    story.end(PREPARE, ok=False)
    story.turn(started())
    story.end(ON_STARTED)
    assert story.begun(None) == ["recover drain"]


def test_pauses_between_tries_grow_up_to_a_limit() -> None:
    story = Story(rule(retries=9))
    pauses = []
    for _ in range(8):
        story.turn()
        story.end(PREPARE, ok=False)
        step = story.saga.step(PREPARE, "drain")
        assert step is not None
        assert step.retry_at is not None
        pauses.append((step.retry_at - story.now).total_seconds())
        story.now = step.retry_at
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_lead_time_is_waited_for() -> None:
    story = Story(rule(lead=timedelta(minutes=5)), rule("now", stage=1))
    assert story.turn() == []
    assert (story.state, story.saga.why) == (State.SEEN, "drain begins at 2026-01-01 12:10:00 UTC")
    story.wait(600)
    assert story.begun() == ["prepare drain"]


def test_a_lead_longer_than_the_notice_begins_at_once() -> None:
    assert Story(rule(lead=timedelta(hours=1))).begun() == ["prepare drain"]


@pytest.mark.parametrize(
    ("not_before", "deadline"),
    [
        (after(900), after(60)),
        (after(30), after(28)),
        (after(2), after(60)),
        (after(-5), after(60)),
        (None, after(60)),
    ],
)
def test_preparation_leaves_time_for_the_approval(not_before: object, deadline: object) -> None:
    [begin] = Story(at=event(not_before=not_before)).turn()
    assert isinstance(begin, Begin)
    assert begin.deadline == deadline


def test_recovery_has_its_own_time() -> None:
    story = ready(rule(timeout=timedelta(seconds=7)))
    story.listed = None
    story.wait(800)
    begin = story.begin()
    assert begin.deadline == after(807)


# Gone without Started seen

BOTH = event(resources=("web-0", "web-1"))


@pytest.mark.parametrize(
    ("story", "phase"),
    [
        (failed(), "undo"),
        (failed(899), "undo"),
        (failed(900), "recover"),
        (failed(at=event(not_before=None)), "recover"),
        (ready(), "recover"),
        (preparing(policy=PEERS, at=BOTH), "undo"),
        (ready(policy=PEERS, at=BOTH), "recover"),
        (ready(policy=PEERS), "recover"),
        (ready(policy=replace(PEERS, approves=False), at=BOTH), "undo"),
        (ready(at=BOTH), "undo"),
    ],
)
def test_an_event_that_disappears_is_undone_unless_it_may_have_started(story: Story, phase: str) -> None:
    """It may have started at its NotBefore, or once this agent or a peer may have approved it."""
    story.die()
    assert story.begun(None) == [f"{phase} drain"]


def test_cancel_in_the_middle_of_preparing_undoes() -> None:
    story = preparing()
    assert story.turn(None) == [Stop(phase=PREPARE, handler="drain")]
    assert story.turn() == []
    assert story.saga.why == "waits until drain has stopped"
    story.end(PREPARE, ok=False, message="stopped")
    assert story.begun() == ["undo drain"]
    story.finish(UNDO)
    assert (story.state, story.saga.why) == (State.DONE, "cancelled before its start, and undone")


def test_a_start_in_the_middle_of_preparing_stops_it() -> None:
    story = preparing()
    assert story.turn(started()) == [Stop(phase=PREPARE, handler="drain")]
    assert story.state == State.STARTED
    assert story.turn() == []
    story.end(PREPARE, ok=False)
    assert story.begun() == ["on_started drain"]


def test_what_did_not_prepare_is_not_taken_back() -> None:
    story = Story(rule(), rule("later", stage=1))
    story.turn()
    story.turn(None)
    story.end(PREPARE, ok=False)
    assert story.begun() == ["undo drain"]
    story.end(UNDO)
    assert (story.begun(), story.state) == ([], State.DONE)


def test_what_never_prepares_recovers_but_does_not_undo() -> None:
    only_after = rule("warm", phases=frozenset({RECOVER, UNDO}))
    story = Story(only_after)
    story.turn()
    story.turn(started())
    assert story.begun(None) == ["recover warm"]
    cancelled = Story(only_after, policy=Policy(approves=False))
    cancelled.turn()
    assert (cancelled.begun(None), cancelled.saga.state) == ([], State.DONE)


def test_born_started() -> None:
    story = Story(at=started())
    assert story.begun() == ["on_started drain"]
    story.end(ON_STARTED)
    assert (story.begun(None), story.state) == ([], State.DONE)


def test_a_stale_document_does_not_take_the_start_back() -> None:
    story = Story(at=started())
    story.turn()
    assert story.turn(event()) == []
    assert story.state == State.STARTED


def gone(*rules: Rule) -> Story:
    """Prepared, and then the event is gone."""
    story = Story(*rules)
    story.turn()
    while story.saga.running:
        for step in story.saga.running:
            story.end(PREPARE, step.handler)
        story.turn()
    story.turn(None)
    return story


def test_what_was_prepared_is_tried_to_be_taken_back_for_a_while() -> None:
    story = gone(rule(retries=0))
    tries = 0
    while story.saga.live:
        tries += 1
        story.end(RECOVER, ok=False, message="exit code 2")
        story.wait(30)
        story.turn()
    assert (story.now - T0, tries) == (timedelta(minutes=15, seconds=30), 31)
    assert story.saga.why == "gone without a visible start, and recovered, except for drain (exit code 2)"


def test_a_recovery_that_only_goes_on_trying_holds_up_nobody() -> None:
    story = gone(rule("late", stage=1, retries=1), rule("early"))
    story.end(RECOVER, "late", ok=False)
    assert story.begun() == []
    story.wait(1)
    story.turn()
    story.end(RECOVER, "late", ok=False)
    assert story.begun() == ["recover early"]
    story.finish(RECOVER, "early")
    assert story.saga.out


def test_what_does_not_block_is_not_worth_so_much() -> None:
    story = gone(rule(retries=0, blocks=False))
    story.finish(RECOVER, ok=False, message="no answer")
    assert not story.saga.live


def test_a_clock_that_was_ahead_for_a_while_does_not_put_a_retry_off() -> None:
    story = preparing()
    story.wait(7200)
    story.end(PREPARE, ok=False)
    story.wait(-7200)
    assert story.begun() == ["prepare drain"]


def test_no_work_from_the_start_of_preparing_until_recovered() -> None:
    story = Story(rule(lead=timedelta(minutes=5), phases=THERE_AND_BACK))
    seen = [story.saga.out]
    story.wait(600)
    for listed in (event(), started(), None):
        story.turn(listed)
        seen.append(story.saga.out)
        if listed is None or not listed.started:
            story.finish(PREPARE if listed else RECOVER)
    assert [*seen, story.saga.out] == [False, True, True, True, False]


def test_what_needs_no_preparation_keeps_its_work() -> None:
    story = Story(rule(phases=THERE_AND_BACK), policy=Policy(at_once=(Match(),)))
    for listed in (event(), started(), None):
        story.turn(listed)
        assert not story.saga.out


# The agent dies and comes back


@pytest.mark.parametrize("phase", [PREPARE, ON_STARTED, RECOVER, UNDO])
def test_what_was_interrupted_is_done_again(phase: Phase) -> None:
    story = preparing()
    if phase in (ON_STARTED, RECOVER):
        story.end(PREPARE)
        story.turn(started())
    if phase is RECOVER:
        story.end(ON_STARTED)
    if phase in (RECOVER, UNDO):
        story.turn(None)
    if phase is UNDO:
        story.finish(PREPARE, ok=False)
    story.die()
    assert story.step(phase).progress is Progress.INTERRUPTED
    begin = story.begin()
    assert (begin.step.phase, begin.step.attempt, begin.step.failures) == (phase, 2, 0)


def test_a_handler_that_is_no_longer_configured_does_not_come_back() -> None:
    story = preparing()
    story.rules = (rule("other", phases=frozenset({RECOVER}), match=Match(types=frozenset({"Freeze"}))),)
    story.end(PREPARE, ok=False)
    assert story.step(PREPARE).progress is Progress.FAILED


def test_after_a_loss_only_who_wants_it_recovers() -> None:
    story = Story(rule(always_recover=True), rule("other"), rule("warm", phases=frozenset({RECOVER})))
    story.saga = transitions.after_loss(T0)
    assert story.begun(None) == ["recover drain"]


def test_a_start_under_way_after_a_loss() -> None:
    story = Story(
        rule(always_recover=True, phases=THERE_AND_BACK), rule("other", phases=THERE_AND_BACK), at=started(), lost=True
    )
    story.turn()
    assert story.begun(None) == ["recover drain"]


# Several events


def test_a_handler_works_for_one_event_at_a_time() -> None:
    story = Story()
    assert story.begun(busy={"drain"}) == []
    assert story.saga.why == "drain runs for another event"
    assert story.begun() == ["prepare drain"]


def test_what_another_event_still_needs_is_left_as_it_is() -> None:
    story = Story(rule(), rule("other"))
    story.turn()
    story.end(PREPARE)
    story.finish(PREPARE, "other")
    assert story.begun(None, held={"drain"}) == ["recover other"]
    story.end(RECOVER, "other")
    story.turn(held={"drain"})
    step = story.step(RECOVER)
    assert (story.state, step.progress) == (State.DONE, Progress.PASSED_ON)


def test_what_another_event_has_begun_to_need_meanwhile_is_not_tried_again() -> None:
    story = ready(rule(retries=5))
    story.turn(None)
    story.end(RECOVER, ok=False)
    story.wait(60)
    assert story.begun(held={"drain"}) == []
    assert story.state == State.DONE


def test_a_handler_leaves_an_event_that_comes_later_for_one_that_is_near() -> None:
    later, sooner = Story(), Story(at=event(id="E2", not_before=after(30)))
    later.turn()
    both = SagaIndex([later.saga, sooner.saga])
    near = {"busy": both.busy(sooner.saga), "less_urgent": both.less_urgent(sooner.saga)}
    assert sooner.turn(**near) == [Displace("drain")]
    assert both.less_urgent(later.saga) == frozenset()
    step = later.step(PREPARE)
    later.saga = transitions.interrupted(later.saga, step)
    assert sooner.begun() == ["prepare drain"]
    assert later.begun(busy={"drain"}) == []
    begin = later.begin()
    assert (begin.step.attempt, begin.step.failures) == (2, 0)


def test_a_handler_is_left_alone_as_long_as_there_is_time() -> None:
    later, sooner = Story(), Story(at=event(id="E2", not_before=after(600)))
    later.turn()
    assert sooner.turn(busy={"drain"}, less_urgent={"drain"}) == []
    assert SagaIndex([later.saga]).less_urgent(Story(at=started()).saga) == frozenset()


@pytest.mark.parametrize("undo", [True, False])
def test_who_takes_over_recovers_although_its_own_event_is_cancelled(undo: bool) -> None:
    phases = THERE_AND_BACK if undo else frozenset({PREPARE, RECOVER})
    first, second = Story(rule(phases=phases)), Story(rule(phases=phases), at=event(id="E2"))
    for story in (first, second):
        story.turn()
        story.end(PREPARE)
        story.policy = Policy(approves=False)
    first.turn(started())
    assert first.begun(None, held={"drain"}) == []
    assert first.saga.why == "recovered; drain when another event is over"
    second.listed = None
    owes = SagaIndex([first.saga, second.saga]).owed(second.saga)
    assert second.begun(owed=owes) == ["recover drain"]
    second.end(RECOVER)
    second.turn(owed=owes)
    assert not second.saga.live


def test_who_prepares_on_top_of_another_event_is_reminded_of_what_that_found() -> None:
    first, second = Story(), Story(at=event(id="E2"))
    first.turn()
    assert memo(second.saga, "drain", [first.saga, second.saga]) == ""
    first.saga = replace(first.saga, memos={"drain": "a b"})
    assert memo(second.saga, "drain", [first.saga, second.saga]) == "a b"
    second.saga = replace(second.saga, memos={"drain": "c"})
    assert memo(second.saga, "drain", [first.saga, second.saga]) == "c"


def test_what_was_taken_back_is_no_reminder() -> None:
    first, second = Story(rule(), rule("other")), Story(at=event(id="E2"))
    first.turn()
    first.end(PREPARE)
    first.end(PREPARE, "other")
    first.saga = replace(first.saga, memos={"drain": "a b"})
    first.turn(None)
    assert memo(second.saga, "drain", [first.saga]) == "a b"
    first.end(UNDO)
    assert first.saga.live
    assert memo(second.saga, "drain", [first.saga]) == ""


def test_who_took_over_is_reminded_when_the_other_is_long_over() -> None:
    first, second = gone(rule()), Story(at=event(id="E2"))
    first.die()
    first.saga = replace(first.saga, memos={"drain": "a b"})
    first.turn(held={"drain"})
    assert not first.saga.live
    assert memo(second.saga, "drain", [first.saga]) == "a b"
    assert memo(transitions.appeared(event(id="E3"), after(1)), "drain", [first.saga]) == ""


# The configuration changes in the middle


def test_nothing_is_approved_while_somebody_prepares() -> None:
    for changed in (
        {"policy": Policy(at_once=(Match(),))},
        {"rules": (rule(match=Match(types=frozenset({"Freeze"}))),)},
    ):
        story = Story()
        story.turn()
        vars(story).update(changed)
        assert story.turn() == []
        assert story.state == State.PREPARING
        assert story.finish(PREPARE) == [Approve()]


# Approvals


def test_one_approval_at_a_time_until_it_is_answered() -> None:
    story = Story(rule(phases=frozenset({RECOVER})), policy=UNPREPARED)
    assert story.turn() == [Approve()]
    assert story.turn(may_approve=False) == []
    story.wait(5)
    assert story.turn() == [Approve(first=False)]
    assert story.saga.approving_at == T0


def test_only_a_program_of_the_same_boot_may_still_run_after_a_restart() -> None:
    group = ProcessGroup(number=7, started=1, boot="this")
    story = preparing()
    assert transitions.with_group(story.saga, ON_STARTED, "drain", 1, group) is None
    assert transitions.with_group(story.saga, PREPARE, "drain", 2, group) is None
    running = transitions.with_group(story.saga, PREPARE, "drain", 1, group)
    assert running is not None
    assert transitions.resumed(running, "this") == running
    assert [step.progress for step in transitions.resumed(running, "another").steps] == [Progress.INTERRUPTED]
    story.saga = running
    assert story.turn() == [], "it is ended first"
    story.end(PREPARE)
    assert [step.group for step in story.saga.steps] == [None]
    assert transitions.with_group(story.saga, PREPARE, "drain", 1, group) is None


# Which reboot it was


def test_a_machine_that_rebooted_before_the_start_prepares_again() -> None:
    story = ready(boot="first")
    story.approve()
    story.boot = "second"
    begin = story.begin()
    assert (begin.step.phase, begin.step.attempt, story.state) == (PREPARE, 2, State.PREPARING)
    assert (story.saga.ready_at, story.saga.boot) == (None, "second")
    assert story.turn() == [], "once"
    assert story.finish(PREPARE) == [Approve(first=False)]
    assert story.begun(started()) == ["on_started drain"]
    story.boot = "third"
    assert story.turn() == [], "this is what was announced"
    story.end(ON_STARTED)
    assert story.begun(None) == ["recover drain"]
    story.finish(RECOVER)
    assert story.saga.why == "recovered"


def test_a_preparation_that_failed_has_its_tries_again_after_a_reboot() -> None:
    story = Story(rule(retries=0), rule("later", stage=1))
    story.boot = "first"
    story.turn()
    assert story.finish(PREPARE, ok=False) == []
    story.boot = "second"
    assert story.begun() == ["prepare drain"]
    assert story.step(PREPARE).failures == 0


@pytest.mark.parametrize(
    ("before", "now", "kind", "ends"),
    [
        ("first", "first", "Reboot", State.UNDOING),
        ("first", "second", "Reboot", State.RECOVERING),
        ("", "", "Reboot", State.RECOVERING),
        ("first", "", "Reboot", State.RECOVERING),
        ("first", "first", "Redeploy", State.RECOVERING),
        ("first", "first", "Freeze", State.RECOVERING),
    ],
)
def test_a_machine_that_did_not_reboot_had_no_reboot(before: str, now: str, kind: str, ends: State) -> None:
    """Gone without a start seen, after the approval."""
    story = ready(boot=before, at=event(type=kind))
    story.boot = now
    story.turn(None)
    assert story.state == ends


def test_a_reboot_before_the_approval_was_not_the_announced_one() -> None:
    story = ready(boot="first", policy=Policy(approves=False))
    story.boot = "second"
    assert (story.begun(None), story.state) == (["undo drain"], State.UNDOING)


def test_a_reboot_that_was_started_and_never_came_is_told() -> None:
    story = ready(boot="first")
    story.turn(started())
    story.end(ON_STARTED)
    story.turn(None)
    story.finish(RECOVER)
    assert story.saga.why == "recovered, although this machine did not reboot"


@pytest.mark.parametrize(
    ("resources", "ends", "outcome"),
    [
        (("web-7",), State.RECOVERING, "gone without a visible start, and recovered"),
        (("web-7", ME), State.UNDOING, "cancelled before its start, and undone"),
    ],
)
def test_the_reboot_of_another_vm_leaves_this_machine_as_it_is(
    resources: tuple[str, ...], ends: State, outcome: str
) -> None:
    """The agent acts for both."""
    story = Story(at=event(resources=resources))
    story.boot, story.more = "first", {"names": (ME, "web-7")}
    story.saga = replace(story.saga, names=(ME, "web-7"))
    story.turn()
    assert story.finish(PREPARE) == [Approve()]
    story.turn(None)
    assert story.state == ends
    story.finish(RECOVER if ends is State.RECOVERING else UNDO)
    assert story.saga.why == outcome


def test_preparing_began_with_the_first_handler() -> None:
    story = Story(rule(lead=timedelta(minutes=5)))
    story.turn()
    assert story.saga.since == T0
    story.wait(700)
    story.turn()
    story.wait(30)
    story.end(PREPARE, ok=False)
    story.wait(1)
    story.turn()
    assert (story.state, story.saga.since) == (State.PREPARING, after(700))
    story.finish(PREPARE)
    assert (story.state, story.saga.since) == (State.PREPARED, after(731))


def test_an_approval_that_was_refused_before_a_cancellation_leads_to_undo() -> None:
    story = preparing()
    assert story.finish(PREPARE) == [Approve()]
    story.saga = transitions.refused(story.saga)
    assert story.turn() == [Approve()], "tried again, in case it was only refused for now"
    story.saga = transitions.refused(story.saga)
    assert (story.begun(None), story.state) == (["undo drain"], State.UNDOING)


def test_an_answer_may_come_after_the_start() -> None:
    story = Story(at=started())
    story.turn()
    story.approve()
    assert (story.state, story.saga.approved_at) == (State.STARTED, T0)
    story.wait(1)
    story.approve()
    assert story.saga.approved_at == T0


def test_an_event_that_was_only_missing() -> None:
    """Back as Scheduled or as Started, before its time or after it."""
    story = Story()
    assert not transitions.reopened(story.saga)
    story.turn()
    story.finish(PREPARE)
    story.turn(None)
    story.finish(RECOVER)
    assert transitions.reopened(story.saga)
    once_more = transitions.again(story.saga, event(), after(5))
    assert (once_more.state, once_more.seen_at, once_more.steps) == (State.SEEN, after(5), ())
    assert once_more.approving_at == T0, "the approval may have arrived"


def test_an_event_that_was_started_is_never_prepared_for_again() -> None:
    story = Story(at=started())
    story.turn()
    story.end(ON_STARTED)
    story.turn(None)
    assert not story.saga.live
    assert not transitions.reopened(story.saga)


def test_ids_are_compared_without_regard_to_case() -> None:
    assert Story(at=event(id="c7061bac")).saga.id == "C7061BAC"


# Only observing


def observed(story: Story, phase: Phase) -> None:
    step = story.step(phase)
    story.saga = transitions.ended(story.saga, step, rule(), ok=True, message="", now=story.now, observed=True)


def test_one_that_observes_says_what_it_would_do() -> None:
    story = Story(rule())
    story.more = {"observes": True}
    assert story.begun() == ["prepare drain"]
    assert story.saga.why == "only observed: drain would run (prepare, attempt 1)"
    observed(story, Phase.PREPARE)
    assert story.turn() == []
    at = "would have approved at 2026-01-01 12:00:00 UTC"
    assert (story.state, story.saga.why) == (State.PREPARED, f"only observed: {at}")
    story.wait(60)
    assert story.turn() == []
    assert (story.saga.why, story.saga.approving_at) == (f"only observed: {at}", None)
    assert story.begun(None) == ["undo drain"], "nobody has approved it"
    observed(story, Phase.UNDO)
    story.turn()
    assert story.saga.why == f"only observed: {at}; cancelled before its start, and would have been undone"
    assert {step.progress for step in story.saga.steps} == {Progress.OBSERVED}


def test_one_that_observes_says_that_it_would_not_have_approved() -> None:
    story = Story(rule(), policy=Policy(approves=False))
    story.more = {"observes": True}
    story.turn()
    observed(story, Phase.PREPARE)
    story.turn()
    assert story.saga.why == "only observed: ready; agent.toml says never to approve"
    story.turn(started())
    observed(story, Phase.ON_STARTED)
    story.turn(None)
    observed(story, Phase.RECOVER)
    story.turn()
    assert story.saga.why == "only observed: would not have approved; would have been recovered from"


def test_what_was_really_approved_is_not_said_to_be_only_observed() -> None:
    story = ready(rule())
    story.approve()
    story.more = {"observes": True}
    story.turn()
    assert story.saga.why == "approved; waits for the start"
    story.turn(None)
    observed(story, Phase.RECOVER)
    story.turn()
    assert story.saga.why == "only observed: gone without a visible start, and would have been recovered from"
