"""A function of somebody else's, called with the phase, the facts and its options. Runs only in a child process."""

import importlib
import importlib.metadata
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from forenotice.agent.config.handlers import Python
from forenotice.agent.handlers.interface import Outcome

GROUP = "forenotice.handlers"

Function = Callable[[str, Mapping[str, Any], Mapping[str, object]], object]


def run(config: Python, facts: Mapping[str, Any]) -> Outcome:
    try:
        answer = _find(config.entry_point)(facts["phase"], facts, config.options)
    except Exception as error:
        return Outcome(ok=False, said=_last_line(error))
    match answer:
        case None | True:
            return Outcome(ok=True)
        case str():
            return Outcome(ok=True, said=answer)
        case False:
            return Outcome(ok=False, said=f"{config.entry_point} returned False")
    return Outcome(
        ok=False, said=f"{config.entry_point} returned a {type(answer).__name__}: give None, True, False or a text"
    )


def rehearse(config: Python) -> Outcome:
    try:
        _find(config.entry_point)
    except Exception as error:
        return Outcome(ok=False, said=_last_line(error))
    return Outcome(ok=True, said=f"would call {config.entry_point}")


def _find(name: str) -> Function:
    module, colon, path = name.partition(":")
    if colon:
        found: Any = importlib.import_module(module)
        for attribute in path.split("."):
            found = getattr(found, attribute)
    else:
        points = importlib.metadata.entry_points(group=GROUP, name=name)
        if not points:
            raise LookupError(f"there is no entry point {name!r} in the group {GROUP}: is its package installed?")
        found = next(iter(points)).load()
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__} and cannot be called")
    function: Function = found
    return function


def _last_line(error: Exception) -> str:
    return " ".join(traceback.format_exception_only(error)[-1].split())
