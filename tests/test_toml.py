"""Every key has a place, and it is the right one: compared with what tomllib reads."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forenotice.toml import Path, Place, nearest_place, places

SCALARS = (
    "1",
    "-0.5e3",
    "true",
    "1979-05-27 07:32:00Z",
    "1979-05-27",
    '"plain"',
    r'"a \"quoted\" # [[step]] = \\"',
    "'C:\\temp # ]'",
    '"""\n[[step]]\nx = "y" # no\n"""',
    r'"""a\"""b"""',
    '"""two""at the end"""""',
    "'''\n[step]\n''quoted'''''",
    '""',
    "''",
    '""""""',
)
KEYS = ("step", "vms", "a-b", "1", '"dotted.key"', "'single ] quoted'", r'"tab\tkey = #"', '""')

gaps = st.sampled_from(["", " ", "\t"])
breaks = st.sampled_from(["", " ", "\n  ", ' # a ] comment [ = "\n', "\r\n"])
scalars = st.sampled_from(SCALARS)
one_line = scalars.filter(lambda each: "\n" not in each)


@st.composite
def arrays(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    elements = draw(st.lists(values, max_size=3))
    inside = "".join(draw(breaks) + each + draw(breaks) + "," for each in elements)
    return f"[{inside if draw(st.booleans()) else inside.removesuffix(',')}{draw(breaks)}]"


@st.composite
def inline(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
    return "{" + ",".join(f"{draw(gaps)}{key}{draw(gaps)}={draw(gaps)}{draw(values)}{draw(gaps)}" for key in keys) + "}"


values = st.recursive(scalars, lambda inner: arrays(inner) | inline(inner), max_leaves=6)


@st.composite
def dotted(draw: st.DrawFn) -> str:
    parts = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3))
    return f"{draw(gaps)}.{draw(gaps)}".join(parts)


@st.composite
def lines(draw: st.DrawFn) -> str:
    match draw(st.integers(0, 5)):
        case 0:
            return f"{draw(gaps)}[{draw(gaps)}{draw(dotted())}{draw(gaps)}]"
        case 1:
            return f"{draw(gaps)}[[{draw(gaps)}{draw(dotted())}{draw(gaps)}]] # [[not.this]]"
        case 2:
            return '# a "comment'
        case _:
            return f"{draw(gaps)}{draw(dotted())}{draw(gaps)}={draw(gaps)}{draw(values)}{draw(gaps)}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Line by line; what would make it wrong is left out."""
    text = ""
    for line in draw(st.lists(lines(), max_size=12)):
        longer = text + line + draw(st.sampled_from(["\n", "\r\n", "\n\n"]))
        try:
            tomllib.loads(longer)
        except ValueError:
            continue
        text = longer
    return text


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*at, key)
        yield from paths(child, (*at, key))


def inside(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def begins_with(text: str, before: str, after: str, value: Any) -> bool:
    """Whether some beginning of the text, put between these, is TOML for the value."""
    for end in range(1, len(text) + 1):
        try:
            if tomllib.loads(before + text[:end] + after) == value:
                return True
        except ValueError:
            continue
    return False


@settings(deadline=None)
@given(documents())
def test_every_path_that_tomllib_finds_has_its_place(text: str) -> None:
    content = tomllib.loads(text)
    found = places(text)
    assert set(found) == set(paths(content))
    rows = text.replace("\r\n", "\n").split("\n")
    for path, (line, column) in found.items():
        rest = "\n".join([rows[line - 1][column - 1 :], *rows[line:]])
        if rest.startswith("[") and not isinstance(inside(content, path), list):
            header = tomllib.loads(rest.split("\n")[0])
            assert path[-1] in [*paths(header)][-1] or isinstance(path[-1], int)
        elif isinstance(path[-1], int) and not rest.startswith("[["):
            assert begins_with(rest, "x = ", "", {"x": inside(content, path)})
        elif isinstance(path[-1], str) and not rest.startswith("["):
            assert begins_with(rest, "", " = 0", {path[-1]: 0})


def test_the_places_of_a_scenario() -> None:
    text = """\
title = \"\"\"
[[step]]\"\"\"   # not a step
vms = [ "a",
        { name = "b", update_domain = 1 } ]

[[step]]
announce = "restart"
  notice = "15m"

[[step]]
repeat = 3
    [[step.step]]
    wait.least = "1m"
    [[step.step]]
    "cancel" = 'x'
"""
    assert places(text) == {
        ("title",): (1, 1),
        ("vms",): (3, 1),
        ("vms", 0): (3, 9),
        ("vms", 1): (4, 9),
        ("vms", 1, "name"): (4, 11),
        ("vms", 1, "update_domain"): (4, 23),
        ("step",): (6, 1),
        ("step", 0): (6, 1),
        ("step", 0, "announce"): (7, 1),
        ("step", 0, "notice"): (8, 3),
        ("step", 1): (10, 1),
        ("step", 1, "repeat"): (11, 1),
        ("step", 1, "step"): (12, 5),
        ("step", 1, "step", 0): (12, 5),
        ("step", 1, "step", 0, "wait"): (13, 5),
        ("step", 1, "step", 0, "wait", "least"): (13, 10),
        ("step", 1, "step", 1): (14, 5),
        ("step", 1, "step", 1, "cancel"): (15, 5),
    }


@pytest.mark.parametrize(
    ("path", "place"),
    [(("a", "b"), (2, 1)), (("a", "c"), (1, 1)), (("a", "b", 0, "x"), (2, 6)), (("z",), (1, 1)), ((), (1, 1))],
)
def test_what_is_missing_is_placed_where_it_would_be(path: Path, place: Place) -> None:
    assert nearest_place(places("[a]\nb = [1]\n"), path) == place
