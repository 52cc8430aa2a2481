"""The file of rules: what it says of domains, and what is wrong with it."""

from pathlib import Path

import pytest

from forenotice.core.fleet import ScopeKind
from forenotice.core.inventory import DomainFacts, Rule
from forenotice.drivers.inventory_rules import RulesFileError, load

RULES = """
[[rules]]
name = "infra-*"
ignore = true

[[rules]]
name = "web-*"
host = "rack1-*"
group = "web"
kind = "placement-group"
update_domain = 1
fault_domain = 2
spot = true
addresses = ["10.0.0.4"]
size = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rules.toml"


def test_rules_are_read_in_their_order(file: Path) -> None:
    file.write_text(RULES)
    facts = DomainFacts(
        group="web",
        kind=ScopeKind.PLACEMENT_GROUP,
        update_domain=1,
        fault_domain=2,
        spot=True,
        addresses=("10.0.0.4",),
        size=2,
    )
    assert load(file) == [Rule(name="infra-*", ignore=True), Rule(name="web-*", host="rack1-*", facts=facts)]
    file.write_text("")
    assert load(file) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[rules]]\ngroup = 'web'\n", "name"),
        ("[[rules]]\nname = ''\n", "name"),
        ("[[rules]]\nname = 'x'\ngrop = 'web'\n", "grop"),
        ("[[rules]]\nname = 'x'\nkind = 'standalone'\n", "a group is an availability-set"),
        ("[[rules]]\nname = 'x'\nupdate_domain = 1000\n", "999"),
        ("[rules]\n", "rules"),
        ("[[rules\n", "rules.toml"),
    ],
)
def test_what_is_wrong_is_said(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(RulesFileError, match=said):
        load(file)


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(RulesFileError, match="the file of inventory rules"):
        load(file)
