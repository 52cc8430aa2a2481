"""The handlers of a configuration."""

import msgspec

from forenotice.agent.handlers.tables import Command, File
from forenotice.agent.workers import JOINED, HandlerSet
from forenotice.settings.spans import Span

DRAIN = Command(name="drain", prepare=("true",))
FLAG = File(name="flag", path="/run/flag")


def test_those_that_prepared_come_back_from_the_journal() -> None:
    written = HandlerSet([DRAIN, FLAG]).written(["drain", "flag"])
    handlers = HandlerSet([FLAG]).joined_by(written)
    assert [rule.name for rule in handlers.rules] == ["flag", "drain"]
    assert handlers.handler("drain") is handlers.handler("drain")


def test_as_a_handler_began_so_it_ends() -> None:
    written = HandlerSet([DRAIN, FLAG]).written(["drain", "flag"])
    handlers = HandlerSet([FLAG, File(name="drain", path="/run/other")])
    joined = handlers.joined_by(written)
    assert joined._configs == {"flag": FLAG, "drain": DRAIN}
    assert handlers.joined_by(dict(written)) is joined
    assert HandlerSet([DRAIN]).joined_by(HandlerSet([DRAIN]).written(["drain"])).rules == [DRAIN.rule]


def test_how_it_is_run_is_said_by_the_present_configuration() -> None:
    how = {"stage": 3, "timeout": Span(seconds=7), "retries": 0, "on_failure": "continue"}
    now = Command(name="drain", prepare=("false",), types=("Freeze",))
    handlers = HandlerSet([msgspec.structs.replace(now, **how)])
    joined = handlers.joined_by(HandlerSet([DRAIN]).written(["drain"]))
    assert joined._configs == {"drain": msgspec.structs.replace(DRAIN, **how)}


def test_what_has_not_changed_is_not_made_again() -> None:
    handlers = HandlerSet([DRAIN, FLAG])
    assert handlers.joined_by(handlers.written(["drain"])) is handlers
    flag = handlers.handler("flag")
    joined = handlers.joined_by(HandlerSet([Command(name="drain", prepare=("false",))]).written(["drain"]))
    assert joined.handler("flag") is flag
    assert joined.handler("drain") is not handlers.handler("drain")


def test_only_so_many_crews_are_kept() -> None:
    handlers = HandlerSet([])
    for number in range(JOINED + 5):
        handlers.joined_by(HandlerSet([File(name="flag", path=f"/run/{number}")]).written(["flag"]))
    assert len(handlers._joined) == JOINED


def test_what_cannot_be_read_any_more_is_left_out() -> None:
    handlers = HandlerSet([FLAG])
    assert handlers.joined_by({"drain": '{"type": "of the future"}', "other": "{"}) is handlers
