"""The table of api-versions against PROTOCOL.md."""

import pytest

from forenotice.core.operations import EventType
from forenotice.wire import versions


def test_the_seven_are_there_oldest_first() -> None:
    assert [version.name for version in versions.ALL] == [
        "2017-03-01",
        "2017-08-01",
        "2017-11-01",
        "2019-01-01",
        "2019-04-01",
        "2019-08-01",
        "2020-07-01",
    ]
    assert versions.NEWEST.name == "2020-07-01"
    assert versions.NEWEST_THREE == ("2020-07-01", "2019-08-01", "2019-04-01")


@pytest.mark.parametrize("version", versions.ALL, ids=lambda version: version.name)
def test_each_is_found_by_its_name(version: versions.Version) -> None:
    assert versions.lookup(version.name) is version


@pytest.mark.parametrize("name", ["", "latest", "2017-03-02", "2020-07-01 ", "2021-01-01", "2020-7-1"])
def test_others_are_not_found(name: str) -> None:
    assert versions.lookup(name) is None


def test_only_the_first_has_its_peculiarities() -> None:
    first, *others = versions.ALL
    assert (first.iso_dates, first.underscore, first.header_enforced_on_post) == (True, True, False)
    assert all(
        (version.iso_dates, version.underscore, version.header_enforced_on_post) == (False, False, True)
        for version in others
    )


@pytest.mark.parametrize(
    ("key", "since"),
    [("Description", "2019-04-01"), ("EventSource", "2019-08-01"), ("DurationInSeconds", "2020-07-01")],
)
def test_keys_come_with_their_version(key: str, since: str) -> None:
    assert [version.name for version in versions.ALL if key in version.keys] == [
        version.name for version in versions.ALL if version.name >= since
    ]


@pytest.mark.parametrize(
    ("type_", "since"),
    [
        (EventType.FREEZE, "2017-03-01"),
        (EventType.REBOOT, "2017-03-01"),
        (EventType.REDEPLOY, "2017-03-01"),
        (EventType.PREEMPT, "2017-11-01"),
        (EventType.TERMINATE, "2019-01-01"),
    ],
)
def test_types_come_with_their_version(type_: EventType, since: str) -> None:
    assert [version.name for version in versions.ALL if type_ in version.types] == [
        version.name for version in versions.ALL if version.name >= since
    ]
