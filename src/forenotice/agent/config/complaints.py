"""What is wrong with agent.toml, in the words of whoever wrote it: msgspec speaks of objects and their fields."""

import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from forenotice.agent.config import handlers
from forenotice.agent.rules.handling import Phase

Tables = Mapping[str, type[msgspec.Struct]]
"""By path, all but the handlers: `""`, `peers`, `approve.at_once`."""
KINDS: Tables = {str(kind.__struct_config__.tag): kind for kind in typing.get_args(handlers.Handler)}

_PLACED = re.compile(r"(?P<said>.*) - at `\$(?P<path>.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)(?:\[(\d+|\.\.\.)\])?")
_REPEATED = ("handler", "approve.at_once")
_WORDS = {
    "str": 'a text in quotes, such as "a"',
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": 'a list, such as ["a", "b"]',
    "object": "a table",
}
_GENERAL: Sequence[tuple[str, Callable[[re.Match[str]], str]]] = (
    (r"Object missing required field `type`", lambda _: f"the key 'type' is missing: give one of {', '.join(KINDS)}"),
    (r"Object missing required field `(.*)`", lambda found: f"the key {found[1]!r} is missing"),
    (r"Invalid value (.*)", lambda found: f"{found[1]} is not a type of handler: give one of {', '.join(KINDS)}"),
    (r"Invalid enum value (.*)", lambda found: f"{found[1]} is not a phase: give some of {', '.join(Phase)}"),
    (r"Expected `(\w+)( \| null)?`, got .*", lambda found: f"this must be {_WORDS.get(found[1], found[1])}"),
    (r"Expected `str` matching regex .*", lambda _: "this must be 1 to 64 letters, digits, '.', '_' or '-'"),
    (r"Expected `int` >= (.*)", lambda found: f"this must be at least {found[1]}"),
    (r"Expected `int` <= (.*)", lambda found: f"this must be at most {found[1]}"),
    (r"Expected `array` of length >= 1", lambda _: "this list must not be empty"),
)


def reworded(error: str, content: Mapping[str, object], tables: Tables) -> str:
    """`handler "drain": there is no key 'tiemout'; did you mean 'timeout'?`"""
    placed = _PLACED.fullmatch(error)
    said, path = (placed["said"], placed["path"]) if placed else (error, "")
    steps = _STEP.findall(path)
    table = ".".join(key for key, _ in steps)
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", said, re.DOTALL):
        message = _unknown(found[1], _keys(table, _handler(steps, content), tables))
    elif table in _REPEATED and said.startswith("Expected `array`"):
        message = f"begin it with [[{table}]], in two brackets"
    elif table == "approve" and said.startswith("Expected `object`"):
        message = 'this must be a text or a table, such as approve = "always"'
    else:
        message = _general(said)
    return ": ".join([*_place(steps, content), message])


def _general(said: str) -> str:
    for pattern, reword in _GENERAL:
        if found := re.fullmatch(pattern, said, re.DOTALL):
            return reword(found)
    return said


def _unknown(key: str, known: Sequence[str]) -> str:
    # Only for those who erred: it is not needed otherwise.
    from difflib import get_close_matches

    near = get_close_matches(key, known, 1)
    remedy = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return f"there is no key {key!r}; {remedy}"


def _keys(table: str, handler: Mapping[str, object], tables: Tables) -> Sequence[str]:
    if table == "handler":
        kind = KINDS.get(str(handler.get("type")), handlers.Common)
        return ("type", *kind.__struct_encode_fields__)
    return tables[table].__struct_encode_fields__


def _handler(steps: Sequence[tuple[str, str]], content: Mapping[str, object]) -> Mapping[str, object]:
    """That the complaint is about, if it is about one."""
    tables = content.get("handler")
    if steps and steps[0][0] == "handler" and steps[0][1] and isinstance(tables, list):
        found = tables[int(steps[0][1])]
        return found if isinstance(found, dict) else {}
    return {}


def _place(steps: Sequence[tuple[str, str]], content: Mapping[str, object]) -> Iterable[str]:
    keys = [key if not index.isdecimal() or key != "at_once" else f"{key} {int(index) + 1}" for key, index in steps]
    if steps and steps[0] != ("handler", "") and steps[0][0] == "handler":
        name = _handler(steps, content).get("name")
        yield f'handler "{name}"' if isinstance(name, str) else f"handler {int(steps[0][1]) + 1}"
        keys = keys[1:]
    if keys:
        yield ".".join(keys)
