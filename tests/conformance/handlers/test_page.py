"""docs/conformance.md says what is judged, and its agent.toml is the one that is judged."""

import re
from pathlib import Path

from forenotice.conformance.handlers import clauses, trial

HERE = Path(__file__)
PAGE = (HERE.parents[3] / "docs" / "conformance.md").read_text().partition("# Judging a handler")[2]


def test_every_clause_is_in_the_table() -> None:
    rows = re.findall(r"^\| `([a-z-]+\.[a-z-]+)` \| (.+?) \| (.+?) \|", PAGE, re.MULTILINE)
    assert rows == [(clause.id, clause.short, clause.says) for clause in clauses.ALL]


def test_every_variable_is_in_the_table() -> None:
    (table,) = re.findall(r"\| variable \|.*?\n\n", PAGE, re.DOTALL)
    given = re.findall(r'"(FORENOTICE_\w+)"', Path(trial.__file__).read_text())
    assert sorted(re.findall(r"FORENOTICE_\w+", table)) == sorted(given)


def test_the_hooks_are_those_of_the_agent_that_is_judged() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert HERE.with_name("agent.toml").read_text().endswith(shown)
