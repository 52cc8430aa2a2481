"""Selectors: names with wildcards, such as `rack1-*,!rack1-07`, by which an operator says whom he means."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from forenotice.core import errors

PATTERN = re.compile(r"!?(?:(?:group|vm):)?[A-Za-z0-9._*?-]{1,64}")
WILDCARD = re.compile(r"[*?]")
NOTHING = "(?!)"
MOST = 1000
"""Names and patterns of one selector."""
MOST_PATTERNS = 100
"""Of those, with wildcards: each is tried on each name."""
MOST_WILDCARDS = 8
"""In one pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    text: str
    """As it was written."""
    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """What is wanted by its very name."""
        return tuple(pattern for pattern in self.wanted if not WILDCARD.search(pattern))

    def __contains__(self, name: object) -> bool:
        return (
            isinstance(name, str)
            and _one_of(self.wanted).match(name) is not None
            and _one_of(self.unwanted).match(name) is None
        )


def of_hosts(text: str) -> Selector:
    """`*`, `host-a,host-b`, `rack1-*,!rack1-07`."""
    return _selector(text, prefix="")


def of_scopes(text: str) -> Selector:
    """`web-*`, `group:web-*,vm:db`: keys of scopes, where a name alone is that of a group."""
    return _selector(text, prefix="group:")


def _selector(text: str, prefix: str) -> Selector:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or len(parts) > MOST:
        raise errors.RefusedError(f"name from 1 to {MOST} with commas between them; * stands for all")
    for part in parts:
        if not PATTERN.fullmatch(part) or (":" in part and not prefix):
            raise errors.RefusedError(f"{part[:80]!r} is not a name or pattern: give one such as a-1, a-* or !a-1")
    _require_bounded([part for part in parts if WILDCARD.search(part)])
    patterns = [(part.startswith("!"), part.removeprefix("!")) for part in parts]
    named = [(unwanted, name if ":" in name or not prefix else prefix + name) for unwanted, name in patterns]
    wanted = tuple(name for unwanted, name in named if not unwanted)
    # With exceptions alone, all the others are meant.
    return Selector(
        text=text,
        wanted=wanted or (prefix + "*",),
        unwanted=tuple(name for unwanted, name in named if unwanted),
    )


def _require_bounded(patterns: Sequence[str]) -> None:
    if len(patterns) > MOST_PATTERNS:
        raise errors.RefusedError(
            f"{len(patterns)} patterns with * or ? are too many: give at most {MOST_PATTERNS}, and names for the others"
        )
    for pattern in patterns:
        if len(WILDCARD.findall(pattern)) > MOST_WILDCARDS:
            raise errors.RefusedError(
                f"{pattern!r} has too many of * and ?: give at most {MOST_WILDCARDS} in one pattern"
            )


@lru_cache(maxsize=256)
def _one_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or NOTHING)
