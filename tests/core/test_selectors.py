"""Selectors: whom a text means, and what is not one."""

from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forenotice.core import errors, selectors
from forenotice.core.fleet import Host
from forenotice.core.selectors import Selector

ALL = (selectors.of_hosts, selectors.of_names, selectors.of_scopes)
HOSTS = ("rack1-01", "rack1-07", "rack2-01", "Rack1-09", "spare")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("*", HOSTS),
        ("rack1-*", ("rack1-01", "rack1-07")),
        ("rack1-*,!rack1-07", ("rack1-01",)),
        ("!rack1-07, rack1-*", ("rack1-01",)),
        ("!rack?-*", ("Rack1-09", "spare")),
        ("spare,,rack2-01,", ("rack2-01", "spare")),
        ("rack?-01", ("rack1-01", "rack2-01")),
        ("rack", ()),
    ],
)
def test_hosts(text: str, meant: tuple[str, ...]) -> None:
    selector = selectors.of_hosts(text)
    assert selector.text == text
    assert sorted(name for name in HOSTS if name in selector) == sorted(meant)


LABELLED = (
    Host(name="rack1-01", labels={"rack": "r1", "disk": "old"}),
    Host(name="rack1-07", labels={"rack": "r1"}),
    Host(name="r1", labels={"rack": "r10", "example.org/zone": "a_b"}),
    Host(name="spare"),
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("label:rack=r1", "rack1-01 rack1-07"),
        ("label:rack=r1*", "rack1-01 rack1-07 r1"),
        ("label:rack=r1?", "r1"),
        ("label:rack=r1,spare", "rack1-01 rack1-07 spare"),
        ("label:rack=r1, !label:disk=old", "rack1-07"),
        ("!label:rack=*", "spare"),
        ("*,!label:rack=r1", "r1 spare"),
        ("label:rack=r1,!rack1-07", "rack1-01"),
        ("label:example.org/zone=a_b", "r1"),
        ("label:example.org/zone=a?b,label:rack=none", "r1"),
        ("label:rack=R1", ""),
        ("label:ack=r1", ""),
        # Names are never taken for labels, nor labels for names.
        ("*old,*-r1*", ""),
        ("!*old", "rack1-01 rack1-07 r1 spare"),
        ("r1", "r1"),
    ],
)
def test_hosts_by_label(text: str, meant: str) -> None:
    selector = selectors.of_hosts(text)
    assert [host.name for host in LABELLED if selector.selects(host)] == meant.split()


SCOPES = ("group:web-1", "group:web-2", "group:db", "vm:web-1", "vm:db")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("web-*", ("group:web-1", "group:web-2")),
        ("web-1,vm:db", ("group:web-1", "vm:db")),
        ("vm:*", ("vm:db", "vm:web-1")),
        ("group:*,!web-*", ("group:db",)),
        ("!web-1", ("group:db", "group:web-2")),
        ("*,vm:*", SCOPES),
        ("*", ("group:db", "group:web-1", "group:web-2")),
    ],
)
def test_scopes(text: str, meant: tuple[str, ...]) -> None:
    selector = selectors.of_scopes(text)
    assert sorted(key for key in SCOPES if key in selector) == sorted(meant)


def test_names_without_wildcards_are_known() -> None:
    assert selectors.of_hosts("b,rack1-*,!c,a,r?").named == ("b", "a")
    assert selectors.of_hosts("!a").named == ()
    assert None not in selectors.of_hosts("*")


def test_wildcards_are_bounded() -> None:
    names = ",".join(f"a{number}" for number in range(900))
    most = ",".join(f"b{number}-*?*?*?*?" for number in range(100))
    assert "b99-xyz-and-so-on" in selectors.of_hosts(f"{names},{most}")


LABELS = ["", "rack", "rack=", "=r1", "ra*=r1", "a=b c", "a=b=c", "a=" + "x" * 65]
NO_NAMES = ["a b", "!", "!!a", "[ab]", "ä", "a/b", "x" * 65, "host:a", "vm:", "a\n*"]
TOO_MANY = r"101 patterns with \* or \? are too many: give at most 100, and names for the others"


@pytest.mark.parametrize(
    ("read", "texts", "said"),
    [
        *((read, [f"ok,{part}" for part in NO_NAMES], "is not a name or pattern: give one such as") for read in ALL),
        *((read, ["", " ", ",", ", ,", ",".join("a" * 1001)], "name from 1 to 1000 with commas") for read in ALL),
        (selectors.of_hosts, ["vm:a"], "'vm:a' is not a name or pattern"),
        (selectors.of_hosts, [f"ok,label:{part}" for part in LABELS] + ["!label:a"], "is not a label: give one such"),
        *((read, ["label:rack=r1"], "'label:rack=r1' is a label, which only hosts have: give") for read in ALL[1:]),
        (selectors.of_hosts, [",".join(f"label:rack=r{number}*" for number in range(101))], TOO_MANY),
        (selectors.of_hosts, [",".join(f"b{number}-*?" for number in range(100)) + ",!c*"], TOO_MANY),
        (selectors.of_hosts, ["a,!*?*?*?*?*"], r"'!\*\?\*.* has too many of \* and \?: give at most 8 in one pattern"),
    ],
)
def test_what_is_refused(read: Callable[[str], Selector], texts: list[str], said: str) -> None:
    for text in texts:
        with pytest.raises(errors.RefusedError, match=said):
            read(text)


NAMES = st.text("ab-1", min_size=1, max_size=4)
PATTERNS = st.text("ab-1*?", min_size=1, max_size=4)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), PATTERNS), min_size=1, max_size=5), NAMES)
def test_exceptions_come_last_whatever_their_place(parts: list[tuple[bool, str]], name: str) -> None:
    text = ",".join(f"!{pattern}" if unwanted else pattern for unwanted, pattern in parts)
    wanted = [pattern for unwanted, pattern in parts if not unwanted] or ["*"]
    excepted = any(fnmatchcase(name, pattern) for unwanted, pattern in parts if unwanted)
    meant = any(fnmatchcase(name, pattern) for pattern in wanted) and not excepted
    assert (name in selectors.of_hosts(text)) is meant
    assert (f"group:{name}" in selectors.of_scopes(text)) is meant
