"""What happens next in a saga: tables."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.agent.rules.builders import ME, T0, Story, after, event, rule, started

from forenotice.agent.rules import transitions
from forenotice.agent.rules.policy import Match, Phase, Policy, Rule
from forenotice.agent.rules.saga import ProcessGroup, Progress, SagaIndex, State, memo
from forenotice.agent.rules.transitions import Approve, Displace, Stop

PREPARE, ON_STARTED, RECOVER, UNDO = Phase
UNPREPARED = Policy(unprepared=True)
NEVER = Policy(approves=False)
PEERS = Policy(peer_timeout=timedelta(seconds=30))
THERE_AND_BACK = frozenset({PREPARE, RECOVER, UNDO})
ONLY_FREEZES = rule(match=Match(types=frozenset({"Freeze"})))
ONLY_RECOVERS = rule(phases=frozenset({RECOVER}))


def preparing(*rules: Rule, boot: str = "", **more: Any) -> Story:
    story = Story(*rules, **more)
    story.boot = boot
    story.turn()
    return story


def ready(*rules: Rule, **more: Any) -> Story:
    """Prepared, and approved where the policy allows it."""
    story = preparing(*rules, **more)
    while story.saga.running:
        for step in story.saga.running:
            story.end(PREPARE, step.handler)
        story.turn()
    return story


def failed(seconds: float = 0, **more: Any) -> Story:
    """So long after a preparation failed."""
    story = preparing(**more)
    story.end(PREPARE, ok=False)
    story.wait(seconds)
    return story


def gone(*rules: Rule) -> Story:
    """Prepared, and then the event is gone."""
    story = ready(*rules)
    story.turn(None)
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
    story.saga = replace(story.saga, configs={"drain": "{}"})
    assert (story.begun(None), story.state) == (["recover drain"], State.RECOVERING)
    assert story.saga.configs
    assert story.finish(RECOVER) == []
    assert (story.state, story.saga.why, story.saga.configs) == (State.DONE, "recovered", {})
    assert story.turn() == []


@pytest.mark.parametrize("only", [ONLY_FREEZES, ONLY_RECOVERS])
def test_an_event_that_no_handler_prepares_for_is_approved_only_where_the_policy_allows_it(only: Rule) -> None:
    assert Story(only, policy=UNPREPARED).turn() == [Approve()]
    story = Story(only)
    assert story.turn() == []
    why = 'not approved, because no handler prepares for it and approve = "always" is not set'
    assert (story.state, story.saga.ready_at, story.saga.why) == (State.SEEN, None, why)
    story.policy = UNPREPARED
    assert story.turn() == [Approve()]
    never = preparing(only, policy=NEVER)
    assert (never.state, never.saga.why) == (State.PREPARED, "ready; agent.toml says never to approve")


def test_an_event_that_needs_no_preparation_is_approved_at_once_and_the_vm_keeps_its_work() -> None:
    policy = Policy(at_once=(Match(sources=frozenset({"User"})),))
    story = Story(rule(phases=THERE_AND_BACK), policy=policy)
    assert story.turn() == [Approve()]
    for listed in (event(), started(), None):
        story.turn(listed)
        assert not story.saga.out
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


def test_a_failure_is_retried_then_blocks_and_is_recovered_from() -> None:
    story = Story(rule(retries=1), rule("later", stage=1), policy=UNPREPARED)
    story.turn()
    assert story.finish(PREPARE, ok=False, message="exit code 1") == []
    assert "retried" in story.saga.why
    story.wait(1)
    assert story.begin().step.attempt == 2
    story.end(PREPARE, ok=False, message="exit code 1")
    story.wait(60)
    assert story.turn() == []
    assert story.saga.why == "not approved, because preparation failed: drain (exit code 1)"
    assert story.state == State.PREPARING
    story.turn(started())
    for name in ("drain", "later"):
        story.finish(ON_STARTED, name)
    assert story.begun(None) == ["recover drain"], "it may have got half way, and the other did not prepare"


def test_a_failure_that_does_not_block() -> None:
    story = preparing(rule(retries=0, blocks=False), rule("later", stage=1))
    story.end(PREPARE, ok=False)
    assert story.begun() == ["prepare later"]
    assert story.finish(PREPARE, "later") == [Approve()]


def test_pauses_between_attempts_grow_up_to_a_limit() -> None:
    story = Story(rule(retries=9))
    pauses = []
    for _ in range(8):
        story.turn()
        story.end(PREPARE, ok=False)
        retry_at = story.step(PREPARE).retry_at
        assert retry_at is not None
        pauses.append((retry_at - story.now).total_seconds())
        story.now = retry_at
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_lead_time_is_waited_for_and_preparing_began_with_the_first_handler() -> None:
    story = Story(rule(lead=timedelta(minutes=5)), rule("now", stage=1))
    assert story.turn() == []
    assert (story.state, story.saga.why) == (State.SEEN, "drain begins at 2026-01-01 12:10:00 UTC")
    assert story.saga.since == T0
    story.wait(600)
    assert story.begun() == ["prepare drain"]
    story.wait(30)
    story.end(PREPARE, ok=False)
    story.wait(1)
    story.turn()
    assert (story.state, story.saga.since) == (State.PREPARING, after(600))
    story.finish(PREPARE)
    story.finish(PREPARE, "now")
    assert (story.state, story.saga.since) == (State.PREPARED, after(631))
    assert Story(rule(lead=timedelta(hours=1))).begun() == ["prepare drain"], "longer than the notice"


@pytest.mark.parametrize(
    ("not_before", "seconds"),
    [(after(900), 60), (after(30), 28), (after(2), 60), (after(-5), 60), (None, 60)],
)
def test_preparation_leaves_time_for_the_approval(not_before: object, seconds: float) -> None:
    assert Story(at=event(not_before=not_before)).begin().deadline == after(seconds)


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


def test_cancel_in_the_middle_of_preparing_undoes_what_has_begun() -> None:
    story = preparing(rule(), rule("later", stage=1))
    assert story.turn(None) == [Stop(story.step(PREPARE))]
    assert story.turn() == []
    assert story.saga.why == "waits until drain has stopped"
    story.end(PREPARE, ok=False, message="stopped")
    assert story.begun() == ["undo drain"]
    story.finish(UNDO)
    assert (story.state, story.saga.why) == (State.DONE, "cancelled before its start, and undone")


def test_a_start_in_the_middle_of_preparing_stops_it() -> None:
    story = preparing()
    assert story.turn(started()) == [Stop(story.step(PREPARE))]
    assert (story.state, story.turn()) == (State.STARTED, [])
    story.end(PREPARE, ok=False)
    assert story.begun() == ["on_started drain"]


def test_a_handler_that_never_prepares_recovers_but_does_not_undo() -> None:
    only_after = rule("warm", phases=frozenset({RECOVER, UNDO}))
    story = preparing(only_after)
    story.turn(started())
    assert story.begun(None) == ["recover warm"]
    cancelled = preparing(only_after, policy=NEVER)
    assert (cancelled.begun(None), cancelled.state) == ([], State.DONE)
    not_meant = replace(ONLY_FREEZES, phases=frozenset({RECOVER})), replace(ONLY_FREEZES, always_recover=True)
    for each in not_meant:
        assert preparing(each, at=started()).begun(None) == [], "neither prepared nor meant for a reboot"


def test_an_event_that_was_started_when_it_appeared_is_never_prepared_for() -> None:
    story = Story(at=started())
    assert story.begun() == ["on_started drain"]
    assert story.turn(event()) == [], "a stale document does not take the start back"
    assert story.state == State.STARTED
    story.end(ON_STARTED)
    assert (story.begun(None), story.state) == ([], State.DONE)
    assert not transitions.reopened(story.saga)


def test_recovery_is_tried_for_a_while() -> None:
    story = gone(rule(retries=0))
    attempts = 0
    while story.saga.live:
        attempts += 1
        story.end(RECOVER, ok=False, message="exit code 2")
        story.wait(30)
        story.turn()
    assert (story.now - T0, attempts) == (timedelta(minutes=15, seconds=30), 31)
    assert story.saga.why == "gone without a visible start, and recovered, except for drain (exit code 2)"
    optional = gone(rule(retries=0, blocks=False))
    optional.finish(RECOVER, ok=False)
    assert not optional.saga.live, "a handler that does not block is not worth so much"


def test_a_recovery_whose_retries_are_used_up_holds_up_no_other() -> None:
    story = gone(rule("late", stage=1, retries=1), rule("early"))
    story.end(RECOVER, "late", ok=False)
    assert story.begun() == []
    story.wait(1)
    story.turn()
    story.end(RECOVER, "late", ok=False)
    assert story.begun() == ["recover early"]
    story.finish(RECOVER, "early")
    assert story.saga.out


def test_a_clock_that_was_ahead_for_a_while_does_not_put_a_retry_off() -> None:
    story = preparing()
    story.wait(7200)
    story.end(PREPARE, ok=False)
    story.wait(-7200)
    assert story.begun() == ["prepare drain"]


def test_the_vm_gets_no_work_from_the_start_of_preparing_until_recovered() -> None:
    story = Story(rule(lead=timedelta(minutes=5), phases=THERE_AND_BACK))
    seen = [story.saga.out]
    story.wait(600)
    for listed in (event(), started(), None):
        story.turn(listed)
        seen.append(story.saga.out)
        if listed is None or not listed.started:
            story.finish(PREPARE if listed else RECOVER)
    assert [*seen, story.saga.out] == [False, True, True, True, False]


# The agent dies and comes back


@pytest.mark.parametrize("phase", list(Phase))
def test_an_interrupted_step_is_done_again(phase: Phase) -> None:
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
    step = story.begin().step
    assert (step.phase, step.attempt, step.failures) == (phase, 2, 0)


def test_a_handler_that_is_no_longer_configured_is_not_retried() -> None:
    story = preparing()
    story.rules = (rule("other", phases=frozenset({RECOVER}), match=Match(types=frozenset({"Freeze"}))),)
    story.end(PREPARE, ok=False)
    assert story.step(PREPARE).progress is Progress.FAILED


def test_after_a_loss_only_handlers_that_always_recover_do() -> None:
    story = Story(rule(always_recover=True), rule("other"), rule("warm", phases=frozenset({RECOVER})))
    story.saga = transitions.after_loss(T0)
    assert story.begun(None) == ["recover drain"]
    both = (rule(always_recover=True, phases=THERE_AND_BACK), rule("other", phases=THERE_AND_BACK))
    assert preparing(*both, at=started(), lost=True).begun(None) == ["recover drain"], "a start under way"


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


# Several events


def test_the_index_tells_what_other_events_mean_for_the_handlers_of_one() -> None:
    first, second = Story(rule(), rule("mount")), Story(rule(), rule("mount"), at=event(id="E2"))
    others = SagaIndex([first.saga, second.saga])
    assert others.busy(second.saga) == others.held(second.saga) == frozenset()
    first.turn()
    others.update(first.saga)
    assert others.busy(second.saga) == others.held(second.saga) == {"drain", "mount"}
    assert others.busy(first.saga) == others.held(first.saga) == frozenset()
    first.end(PREPARE)
    others.update(first.saga)
    assert others.busy(second.saga) == {"mount"}
    assert others.held(second.saga) == {"drain", "mount"}
    first.end(PREPARE, "mount")
    first.turn(started())
    others.update(first.saga)
    assert others.busy(second.saga) == {"drain", "mount"}
    assert others.less_urgent(second.saga) == frozenset(), "no handler prepares"
    for name in ("drain", "mount"):
        first.end(ON_STARTED, name)
    first.turn(None, held={"drain"})
    others.update(first.saga)
    assert (first.state, others.held(second.saga)) == (State.RECOVERING, frozenset())
    assert others.owed(second.saga) == {"drain"}
    assert others.owed(first.saga) == frozenset()


def test_a_handler_works_for_one_event_at_a_time() -> None:
    story = Story()
    assert story.begun(busy={"drain"}) == []
    assert story.saga.why == "drain runs for another event"
    assert story.begun() == ["prepare drain"]


def test_what_another_event_still_needs_is_left_as_it_is() -> None:
    story = ready(rule(), rule("other"))
    assert story.begun(None, held={"drain"}) == ["recover other"]
    story.end(RECOVER, "other")
    story.turn(held={"drain"})
    assert (story.state, story.step(RECOVER).progress) == (State.DONE, Progress.PASSED_ON)
    story = gone(rule(retries=5))
    story.end(RECOVER, ok=False)
    story.wait(60)
    assert (story.begun(held={"drain"}), story.state) == ([], State.DONE), "not tried again either"
    story = gone(rule(), rule("last"))
    story.turn(held={"drain"})
    assert story.step(RECOVER).progress is Progress.RUNNING, "what runs already is not passed on"
    story.end(RECOVER)
    story.turn(held={"drain"})
    assert story.step(RECOVER).progress is Progress.DONE, "nor what is done"


def test_a_handler_leaves_an_event_that_comes_later_for_one_that_is_near() -> None:
    later, sooner = preparing(), Story(at=event(id="E2", not_before=after(30)))
    both = SagaIndex([later.saga, sooner.saga])
    near = {"busy": both.busy(sooner.saga), "less_urgent": both.less_urgent(sooner.saga)}
    assert sooner.turn(**near) == [Displace("drain")]
    assert both.less_urgent(later.saga) == frozenset()
    later.saga = transitions.interrupted(later.saga, later.step(PREPARE))
    assert sooner.begun() == ["prepare drain"]
    assert later.begun(busy={"drain"}) == []
    step = later.begin().step
    assert (step.attempt, step.failures) == (2, 0)


def test_a_handler_is_left_alone_as_long_as_there_is_time() -> None:
    sooner = Story(at=event(id="E2", not_before=after(600)))
    assert sooner.turn(busy={"drain"}, less_urgent={"drain"}) == []
    assert SagaIndex([preparing().saga]).less_urgent(Story(at=started()).saga) == frozenset()


@pytest.mark.parametrize("phases", [THERE_AND_BACK, frozenset({PREPARE, RECOVER})])
def test_an_event_that_takes_over_recovers_although_it_is_cancelled(phases: frozenset[Phase]) -> None:
    first, second = (preparing(rule(phases=phases), at=event(id=name)) for name in ("E1", "E2"))
    for story in (first, second):
        story.end(PREPARE)
        story.policy = NEVER
    first.turn(started())
    assert first.begun(None, held={"drain"}) == []
    assert first.saga.why == "recovered; drain when another event is over"
    second.listed = None
    owed = SagaIndex([first.saga, second.saga]).owed(second.saga)
    assert second.begun(owed=owed) == ["recover drain"]
    second.end(RECOVER)
    second.turn(owed=owed)
    assert not second.saga.live


def test_a_handler_that_cannot_recover_undoes_although_another_event_happened() -> None:
    story = ready(rule(phases=frozenset({PREPARE, UNDO})), policy=NEVER)
    assert story.begun(None, owed={"drain"}) == ["undo drain"]


def test_a_handler_gets_the_memo_of_another_event_until_that_is_taken_back() -> None:
    first, second = preparing(rule(), rule("other")), Story(at=event(id="E2"))
    assert memo(second.saga, "drain", [first.saga, second.saga]) == ""
    first.saga = replace(first.saga, memos={"drain": "a b"})
    assert memo(second.saga, "drain", [first.saga, second.saga]) == "a b"
    second.saga = replace(second.saga, memos={"drain": "c"})
    assert memo(second.saga, "drain", [first.saga, second.saga]) == "c", "its own first"
    second.saga = replace(second.saga, memos={})
    first.end(PREPARE)
    first.end(PREPARE, "other")
    first.turn(None)
    assert memo(second.saga, "drain", [first.saga]) == "a b"
    first.end(UNDO)
    assert (first.saga.live, memo(second.saga, "drain", [first.saga])) == (True, "")


def test_an_event_that_took_over_gets_the_memo_when_the_other_is_long_over() -> None:
    first, second = gone(rule()), Story(at=event(id="E2"))
    first.die()
    first.saga = replace(first.saga, memos={"drain": "a b"})
    first.turn(held={"drain"})
    assert not first.saga.live
    assert memo(second.saga, "drain", [first.saga]) == "a b"
    assert memo(transitions.appeared(event(id="E3"), after(1)), "drain", [first.saga]) == ""


@pytest.mark.parametrize("changed", [{"policy": Policy(at_once=(Match(),))}, {"rules": (ONLY_FREEZES,)}])
def test_nothing_is_approved_while_a_handler_prepares_whatever_is_configured_now(changed: dict[str, Any]) -> None:
    story = preparing()
    vars(story).update(changed)
    assert (story.turn(), story.state) == ([], State.PREPARING)
    assert story.finish(PREPARE) == [Approve()]


# Approvals


def test_one_approval_at_a_time_until_there_is_a_response() -> None:
    story = Story(ONLY_RECOVERS, policy=UNPREPARED)
    assert story.turn() == [Approve()]
    assert story.turn(may_approve=False) == []
    story.wait(5)
    assert story.turn() == [Approve(first=False)]
    assert story.saga.approving_at == T0


def test_an_approval_that_was_refused_before_a_cancellation_leads_to_undo() -> None:
    story = ready()
    story.saga = transitions.refused(story.saga)
    assert story.turn() == [Approve()], "tried again, in case it was only refused for now"
    story.saga = transitions.refused(story.saga)
    assert (story.begun(None), story.state) == (["undo drain"], State.UNDOING)


def test_the_response_may_come_after_the_start() -> None:
    story = preparing(at=started())
    for _ in range(2):
        story.approve()
        assert (story.state, story.saga.approved_at) == (State.STARTED, T0)
        story.wait(1)


def test_an_event_that_was_only_missing_begins_again() -> None:
    """Back as Scheduled or as Started, before its time or after it."""
    story = gone(rule())
    assert not transitions.reopened(story.saga)
    story.finish(RECOVER)
    assert transitions.reopened(story.saga)
    again = transitions.again(story.saga, event(), after(5))
    assert (again.state, again.seen_at, again.steps) == (State.SEEN, after(5), ())
    assert again.approving_at == T0, "the approval may have arrived"


def test_ids_are_compared_without_regard_to_case() -> None:
    assert Story(at=event(id="c7061bac")).saga.id == "C7061BAC"


# Which reboot it was


def test_a_machine_that_rebooted_before_the_start_prepares_again() -> None:
    story = ready(boot="first")
    story.approve()
    story.boot = "second"
    step = story.begin().step
    assert (step.phase, step.attempt, story.state) == (PREPARE, 2, State.PREPARING)
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


def test_a_preparation_that_failed_has_its_attempts_again_after_a_reboot() -> None:
    story = preparing(rule(retries=0), rule("later", stage=1), boot="first")
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
    story = ready(boot="first", policy=NEVER)
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
    ("resources", "phase", "why"),
    [
        (("web-7",), RECOVER, "gone without a visible start, and recovered"),
        (("web-7", ME), UNDO, "cancelled before its start, and undone"),
    ],
)
def test_the_reboot_of_another_vm_leaves_this_machine_as_it_is(
    resources: tuple[str, ...], phase: Phase, why: str
) -> None:
    """The agent acts for both."""
    story = Story(at=event(resources=resources))
    story.boot, story.more = "first", {"names": (ME, "web-7")}
    story.saga = replace(story.saga, names=(ME, "web-7"))
    story.turn()
    assert story.finish(PREPARE) == [Approve()]
    assert story.begun(None) == [f"{phase} drain"]
    story.finish(phase)
    assert story.saga.why == why


# Only observing


def observe(story: Story, phase: Phase, *listed: Any) -> str:
    """Its step is observed, and the next turn; what it says then."""
    story.saga = transitions.ended(
        story.saga, story.step(phase), rule(), ok=True, message="", now=story.now, observed=True
    )
    story.turn(*listed)
    return story.saga.why


def test_an_agent_that_observes_tells_what_it_would_do() -> None:
    story = Story(rule())
    story.more = {"observes": True}
    assert story.begun() == ["prepare drain"]
    assert story.saga.why == "only observed: drain would run (prepare, attempt 1)"
    approval = "only observed: would have approved at 2026-01-01 12:00:00 UTC"
    assert (observe(story, PREPARE), story.state) == (approval, State.PREPARED)
    story.wait(60)
    assert (story.turn(), story.saga.why, story.saga.approving_at) == ([], approval, None)
    assert story.begun(None) == ["undo drain"], "no agent has approved it"
    assert observe(story, UNDO) == f"{approval}; cancelled before its start, and would have been undone"
    assert {step.progress for step in story.saga.steps} == {Progress.OBSERVED}


def test_an_agent_that_observes_tells_that_it_would_not_have_approved() -> None:
    story = Story(rule(), policy=NEVER)
    story.more = {"observes": True}
    story.turn()
    assert observe(story, PREPARE) == "only observed: ready; agent.toml says never to approve"
    story.turn(started())
    observe(story, ON_STARTED, None)
    assert observe(story, RECOVER) == "only observed: would not have approved; would have been recovered from"


def test_a_real_approval_is_not_told_as_only_observed() -> None:
    story = ready(rule())
    story.approve()
    story.more = {"observes": True}
    story.turn()
    assert story.saga.why == "approved; waits for the start"
    story.turn(None)
    why = "only observed: gone without a visible start, and would have been recovered from"
    assert observe(story, RECOVER) == why


def test_what_is_over_or_alone_means_nothing_for_other_events() -> None:
    first, second = gone(), Story(at=event(id="E2"))
    assert SagaIndex([first.saga]).less_urgent(second.saga) == frozenset(), "it recovers, and prepares no longer"
    first.finish(RECOVER)
    assert (first.state, SagaIndex([first.saga]).held(second.saga)) == (State.DONE, frozenset())
    alone = ready(rule(), policy=PEERS)
    alone.saga = replace(alone.saga, approving_at=None)
    assert alone.begun(None) == ["undo drain"], "no peer can have approved it"
