"""Selectors: names and labels with wildcards, such as `rack1-*,!label:disk=old`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from forenotice.core import errors
from forenotice.core.fleet import Host

PATTERN = re.compile(r"!?(?:(?:group|vm):)?[A-Za-z0-9._*?-]{1,64}")
LABEL_PREFIX = "label:"
LABEL_PATTERN = re.compile(rf"!?{LABEL_PREFIX}[A-Za-z0-9._/-]{{1,64}}=[A-Za-z0-9._/*?-]{{1,64}}")
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
    wanted_labels: tuple[str, ...] = ()
    """Of hosts, such as `rack=r*`: a host that has one of them is wanted, too."""
    unwanted_labels: tuple[str, ...] = ()

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

    def selects(self, host: Host) -> bool:
        """By its name or by its labels."""
        labels = [f"{key}={value}" for key, value in host.labels.items()]

        def fits(names: tuple[str, ...], of_labels: tuple[str, ...]) -> bool:
            return _one_of(names).match(host.name) is not None or any(map(_one_of(of_labels).match, labels))

        return fits(self.wanted, self.wanted_labels) and not fits(self.unwanted, self.unwanted_labels)


def of_hosts(text: str) -> Selector:
    """`*`, `host-a,host-b`, `rack1-*,!rack1-07`, `label:rack=r1,!label:disk=old`."""
    return _selector(text, prefix="", labels=True)


def of_names(text: str) -> Selector:
    """The same of what has no labels, such as VMs."""
    return _selector(text, prefix="")


def of_scopes(text: str) -> Selector:
    """`web-*`, `group:web-*,vm:db`: keys of scopes, where a name alone is that of a group."""
    return _selector(text, prefix="group:")


def _selector(text: str, prefix: str, *, labels: bool = False) -> Selector:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or len(parts) > MOST:
        raise errors.RefusedError(f"name from 1 to {MOST} with commas between them; * stands for all")
    names: dict[bool, list[str]] = {True: [], False: []}
    of_labels: dict[bool, list[str]] = {True: [], False: []}
    for part in parts:
        wanted, pattern = not part.startswith("!"), part.removeprefix("!")
        if pattern.startswith(LABEL_PREFIX):
            if not labels:
                raise errors.RefusedError(
                    f"{part[:80]!r} is a label, which only hosts have: give a name such as a-1 or a-*"
                )
            if not LABEL_PATTERN.fullmatch(part):
                raise errors.RefusedError(
                    f"{part[:160]!r} is not a label: give one such as label:rack=r1, label:rack=r* or !label:rack=r1"
                )
            of_labels[wanted].append(pattern.removeprefix(LABEL_PREFIX))
        elif PATTERN.fullmatch(part) and (prefix or ":" not in part):
            names[wanted].append(pattern if ":" in pattern else prefix + pattern)
        else:
            raise errors.RefusedError(f"{part[:80]!r} is not a name or pattern: give one such as a-1, a-* or !a-1")
    _require_bounded([part for part in parts if WILDCARD.search(part)])
    if not names[True] and not of_labels[True]:
        # With exceptions alone, all the others are meant.
        names[True].append(prefix + "*")
    return Selector(
        text=text,
        wanted=tuple(names[True]),
        unwanted=tuple(names[False]),
        wanted_labels=tuple(of_labels[True]),
        unwanted_labels=tuple(of_labels[False]),
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
