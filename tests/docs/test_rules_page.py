"""docs/dev/rules.md names files and functions that exist."""

import ast
import re

import pytest
from tests.docs.test_snippets import ROOT

SOURCES = ROOT / "src" / "forenotice"
ROW = re.compile(r"\| (.+) \| (.+) \| (.+) \|")
CODE = re.compile(r"`([^`]+)`")
ROWS = [
    pytest.param(CODE.findall(found[2]), CODE.findall(found[3]), id=found[1])
    for line in (ROOT / "docs" / "dev" / "rules.md").read_text().splitlines()
    if (found := ROW.fullmatch(line)) and found[1] != "rule"
]


def names_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """What a module defines: functions, classes with their methods, and constants."""
    names: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(prefix + name)
            case ast.ClassDef(name=name):
                names |= {prefix + name, *names_in(node.body, f"{name}.")}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(prefix + name)
    return names


def test_the_protocol_is_covered() -> None:
    assert len(ROWS) >= 35


@pytest.mark.parametrize(("files", "names"), ROWS)
def test_a_rule_is_where_the_page_says(files: list[str], names: list[str]) -> None:
    defined = [names_in(ast.parse((SOURCES / file).read_text()).body) for file in files]
    assert files
    assert names
    assert [name for name in names if not any(name in each for each in defined)] == []
    assert [file for file, each in zip(files, defined, strict=True) if not each & set(names)] == []
