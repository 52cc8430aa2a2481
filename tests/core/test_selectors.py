"""Selectors: whom a text means, and what is not one."""

from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forenotice.core import errors, selectors
from forenotice.core.fleet import Host
from forenotice.core.selectors import Selector

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


@pytest.mark.parametrize(
    "part",
    [
        "label:",
        "label:rack",
        "label:rack=",
        "label:=r1",
        "label:ra*=r1",
        "label:a=b c",
        "label:a=b=c",
        "!label:a",
        "label:a=" + "x" * 65,
    ],
)
def test_what_is_no_label_is_refused(part: str) -> None:
    with pytest.raises(errors.RefusedError, match="is not a label: give one such as label:rack=r1, label:rack=r"):
        selectors.of_hosts(f"ok,{part}")


@pytest.mark.parametrize("read", [selectors.of_names, selectors.of_scopes])
def test_only_hosts_have_labels(read: Callable[[str], Selector]) -> None:
    with pytest.raises(errors.RefusedError, match="'label:rack=r1' is a label, which only hosts have: give a name"):
        read("label:rack=r1")


def test_wildcards_of_labels_are_bounded_like_those_of_names() -> None:
    with pytest.raises(errors.RefusedError, match="101 patterns with"):
        selectors.of_hosts(",".join(f"label:rack=r{number}*" for number in range(101)))


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


def test_only_a_name_can_be_meant() -> None:
    assert None not in selectors.of_hosts("*")
    assert 1 not in selectors.of_hosts("*")


@pytest.mark.parametrize("text", ["", " ", ",", ", ,", ",".join("a" * 1001)])
def test_somebody_must_be_named_but_not_endlessly_many(text: str) -> None:
    with pytest.raises(errors.RefusedError, match=r"name from 1 to 1000 with commas between them; \* stands for all"):
        selectors.of_hosts(text)


def test_wildcards_are_bounded() -> None:
    names = ",".join(f"a{number}" for number in range(900))
    most = ",".join(f"b{number}-*?*?*?*?" for number in range(100))
    assert "b99-xyz-and-so-on" in selectors.of_hosts(f"{names},{most}")
    for text, said in (
        (f"{most},!c*", "101 patterns with \\* or \\? are too many: give at most 100, and names for the others"),
        ("a,!*?*?*?*?*", "'!\\*\\?\\*.* has too many of \\* and \\?: give at most 8 in one pattern"),
    ):
        with pytest.raises(errors.RefusedError, match=said):
            selectors.of_hosts(text)


@pytest.mark.parametrize("part", ["a b", "!", "!!a", "[ab]", "ä", "a/b", "x" * 65, "host:a", "vm:", "a\n*"])
def test_what_is_no_name_is_refused(part: str) -> None:
    for read in (selectors.of_hosts, selectors.of_scopes):
        with pytest.raises(errors.RefusedError, match="is not a name or pattern: give one such as a-1, a-"):
            read(f"ok,{part}")


def test_hosts_have_no_scopes() -> None:
    with pytest.raises(errors.RefusedError, match="'vm:a' is not a name or pattern"):
        selectors.of_hosts("vm:a")


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
