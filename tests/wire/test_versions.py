"""The table of api-versions against docs/guests.md."""

import pytest

from forenotice.core.operations import EventType
from forenotice.wire import versions


def test_the_seven_are_there_oldest_first() -> None:
    names = "2017-03-01 2017-08-01 2017-11-01 2019-01-01 2019-04-01 2019-08-01 2020-07-01"
    assert [version.name for version in versions.ALL] == names.split()
    assert versions.NEWEST.name == "2020-07-01"
    assert versions.NEWEST_THREE == ("2020-07-01", "2019-08-01", "2019-04-01")


def test_each_is_found_by_its_name_and_no_other() -> None:
    assert [versions.lookup(version.name) for version in versions.ALL] == list(versions.ALL)
    assert not any(map(versions.lookup, ("", "latest", "2017-03-02", "2020-07-01 ", "2021-01-01", "2020-7-1")))


def test_only_the_first_has_its_peculiarities() -> None:
    first, *others = versions.ALL
    assert (first.iso_dates, first.underscore, first.header_enforced_on_post) == (True, True, False)
    assert all(
        (version.iso_dates, version.underscore, version.header_enforced_on_post) == (False, False, True)
        for version in others
    )


@pytest.mark.parametrize(
    ("new", "since"),
    [
        ("Description", "2019-04-01"),
        ("EventSource", "2019-08-01"),
        ("DurationInSeconds", "2020-07-01"),
        (EventType.FREEZE, "2017-03-01"),
        (EventType.REBOOT, "2017-03-01"),
        (EventType.REDEPLOY, "2017-03-01"),
        (EventType.PREEMPT, "2017-11-01"),
        (EventType.TERMINATE, "2019-01-01"),
    ],
)
def test_keys_and_types_come_with_their_version(new: str, since: str) -> None:
    knowing = [version.name for version in versions.ALL if new in (*version.keys, *version.types)]
    assert knowing == [version.name for version in versions.ALL if version.name >= since]
