"""The handlers of a configuration."""

from notbefore.agent.config.handlers import Command, File
from notbefore.agent.crew import Crew

DRAIN = Command(name="drain", prepare=("true",))
FLAG = File(name="flag", path="/run/flag")


def test_those_that_prepared_come_back_from_the_journal() -> None:
    written = Crew([DRAIN, FLAG]).written(["drain", "flag"])
    crew = Crew([FLAG]).joined_by(written)
    assert [rule.name for rule in crew.rules] == ["flag", "drain"]
    assert crew.handler("drain") is crew.handler("drain")


def test_the_present_configuration_comes_first() -> None:
    crew = Crew([Command(name="drain", prepare=("false",))])
    assert crew.joined_by(Crew([DRAIN]).written(["drain"])) is crew


def test_what_cannot_be_read_any_more_is_left_out() -> None:
    crew = Crew([FLAG])
    assert crew.joined_by({"drain": '{"type": "of the future"}', "other": "{"}) is crew
