"""What other events mean for the handlers of one."""

from tests.agent.rules.builders import Story, event, rule, started

from forenotice.agent.rules.policy import Phase
from forenotice.agent.rules.saga import SagaIndex, State


def test_the_index_is_as_if_it_had_been_made_anew() -> None:
    first, second = Story(rule(), rule("mount")), Story(rule(), rule("mount"), at=event(id="E2"))
    others = SagaIndex([first.saga, second.saga])
    assert (others.busy(second.saga), others.held(second.saga)) == (frozenset(), frozenset())
    first.turn()
    others.update(first.saga)
    assert others.busy(second.saga) == others.held(second.saga) == {"drain", "mount"}
    assert (others.busy(first.saga), others.held(first.saga)) == (frozenset(), frozenset())
    first.end(Phase.PREPARE)
    others.update(first.saga)
    assert others.busy(second.saga) == {"mount"}
    assert others.held(second.saga) == {"drain", "mount"}
    first.end(Phase.PREPARE, "mount")
    first.turn(started())
    others.update(first.saga)
    assert others.less_urgent(second.saga) == frozenset(), "nobody prepares"
    for name in ("drain", "mount"):
        first.end(Phase.ON_STARTED, name)
    first.turn(None, held={"drain"})
    others.update(first.saga)
    assert (first.state, others.held(second.saga)) == (State.RECOVERING, frozenset())
    assert others.owed(second.saga) == {"drain"}
    assert others.owed(first.saga) == frozenset()
    assert vars(others) == vars(SagaIndex([first.saga, second.saga]))


def test_how_long_a_saga_has_been_where_it_is() -> None:
    story = Story()
    assert story.saga.since == story.saga.seen_at
    story.turn()
    story.wait(5)
    story.finish(Phase.PREPARE)
    assert story.saga.since == story.now
