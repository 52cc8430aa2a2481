"""docs/scenarios.md has every key with its default and every scenario that there is, and its examples can be played."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from forenotice.emulator.scenarios import catalogue, preview, reader
from forenotice.emulator.scenarios.format import ACTIONS, NESTING, Action, Header, ScenarioError, Table

PAGE = (Path(__file__).parents[3] / "docs" / "scenarios.md").read_text()
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
KEY = re.compile(r"^\| `(\w+)` \| (.+?) \| .*\|$", re.MULTILINE)
ELSEWHERE = re.compile(r"(all of|the|those of|that of|what the|10m, or) ?.*")
"""Defaults that depend on other things."""


def section(heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def defaults(table: type[Table]) -> dict[str, str]:
    inherited = {field.name for field in msgspec.structs.fields(Action)} if table is not Action else set[str]()
    found = {
        field.encode_name: default(field) for field in msgspec.structs.fields(table) if field.name not in inherited
    }
    return found | ({"step": "required"} if table in (*NESTING, Header) else {})


def default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    return "none" if field.default in (None, "", ()) else f"`{json.dumps(field.default)}`"


@pytest.mark.parametrize(
    ("heading", "table"),
    [("The file", Header), ("Steps", Action), *((f"`{act.verb}`", act) for act in ACTIONS)],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_table_has_the_keys_of_its_part(heading: str, table: type[Table]) -> None:
    written = dict(KEY.findall(section(heading)))
    assert {key: "none" if ELSEWHERE.fullmatch(said) else said for key, said in written.items()} == defaults(table)


def test_it_has_the_catalogue() -> None:
    scenarios = [catalogue.load(name) for name in catalogue.names()]
    assert re.findall(r"^\| `(\S+)` \| (.+) \| (\w+) \|$", section("The catalogue"), re.MULTILINE) == [
        (scenario.name, scenario.description, scenario.timing) for scenario in scenarios
    ]


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.split('"')[1])
def test_an_example_can_be_played(text: str) -> None:
    preview.check(reader.read(text, "my-scenario.toml"))


def test_the_picture_is_that_of_the_first_example() -> None:
    picture = [line.removeprefix("  ") for line in re.findall(r"^    .*\S", PAGE, re.MULTILINE)[:4]]
    assert picture == preview.timeline(reader.read(EXAMPLES[0], "my-scenario.toml"))


REFUSED = {
    "typo": ("wait = ", "wiat = "),
    "duration": ('wait = "8m"', 'wait = "8 minutes"'),
    "label": ('wait_for = "second"', 'wait_for = "third"'),
    "late": ('wait = "8m"', 'wait = "20m"'),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_it_shows_what_is_refused(mistake: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        preview.check(reader.read(EXAMPLES[0].replace(*REFUSED[mistake], 1), "my-scenario.toml"))
    assert f"\n    {refused.value.message}\n" in PAGE
