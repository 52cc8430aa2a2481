"""The handlers of a configuration."""

import msgspec

from forenotice.agent.config.handlers import Command, File
from forenotice.agent.crew import JOINED, Crew
from forenotice.settings.spans import Span

DRAIN = Command(name="drain", prepare=("true",))
FLAG = File(name="flag", path="/run/flag")


def test_those_that_prepared_come_back_from_the_journal() -> None:
    written = Crew([DRAIN, FLAG]).written(["drain", "flag"])
    crew = Crew([FLAG]).joined_by(written)
    assert [rule.name for rule in crew.rules] == ["flag", "drain"]
    assert crew.handler("drain") is crew.handler("drain")


def test_as_a_handler_began_so_it_ends() -> None:
    written = Crew([DRAIN, FLAG]).written(["drain", "flag"])
    crew = Crew([FLAG, File(name="drain", path="/run/other")])
    joined = crew.joined_by(written)
    assert joined._configs == {"flag": FLAG, "drain": DRAIN}
    assert crew.joined_by(dict(written)) is joined
    assert Crew([DRAIN]).joined_by(Crew([DRAIN]).written(["drain"])).rules == [DRAIN.rule]


def test_how_it_is_run_is_said_by_the_present_configuration() -> None:
    how = {"stage": 3, "timeout": Span(seconds=7), "retries": 0, "on_failure": "continue"}
    now = Command(name="drain", prepare=("false",), types=("Freeze",))
    crew = Crew([msgspec.structs.replace(now, **how)])
    joined = crew.joined_by(Crew([DRAIN]).written(["drain"]))
    assert joined._configs == {"drain": msgspec.structs.replace(DRAIN, **how)}


def test_what_has_not_changed_is_not_made_again() -> None:
    crew = Crew([DRAIN, FLAG])
    assert crew.joined_by(crew.written(["drain"])) is crew
    flag = crew.handler("flag")
    joined = crew.joined_by(Crew([Command(name="drain", prepare=("false",))]).written(["drain"]))
    assert joined.handler("flag") is flag
    assert joined.handler("drain") is not crew.handler("drain")


def test_only_so_many_crews_are_kept() -> None:
    crew = Crew([])
    for number in range(JOINED + 5):
        crew.joined_by(Crew([File(name="flag", path=f"/run/{number}")]).written(["flag"]))
    assert len(crew._joined) == JOINED


def test_what_cannot_be_read_any_more_is_left_out() -> None:
    crew = Crew([FLAG])
    assert crew.joined_by({"drain": '{"type": "of the future"}', "other": "{"}) is crew
