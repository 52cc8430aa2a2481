"""Documents as bytes: properties over all versions, golden files, and what the real service was seen to send."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire import samples

from forenotice.core.documents import Document
from forenotice.core.fleet import ScopeKind
from forenotice.core.operations import Event, EventType, Source, Status
from forenotice.wire import dates, document, versions

CAPTURES = [json.loads(line) for line in (Path(__file__).parent / "captures.jsonl").read_text().splitlines()]
ANY_VERSION = st.sampled_from(versions.ALL)


@pytest.mark.parametrize("path", samples.GOLDEN_FILES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    assert samples.golden(samples.GOLDEN_FILES[path]).splitlines() == path.read_bytes().splitlines()


def test_each_golden_file_is_of_a_version() -> None:
    assert set(samples.GOLDEN.iterdir()) == samples.GOLDEN_FILES.keys()


def test_the_first_version_as_seen_differs_only_in_its_dates() -> None:
    published, seen = versions.ALL[0], versions.AS_SEEN["2017-03-01"]
    assert replace(seen, iso_dates=True) == published == versions.AS_PUBLISHED["2017-03-01"]
    assert b'"NotBefore":"2026-03-09T12:00:00Z"' in document.render(samples.of(samples.SCHEDULED), published)
    assert b'"NotBefore":"Mon, 09 Mar 2026 12:00:00 GMT"' in document.render(samples.of(samples.SCHEDULED), seen)
    assert [versions.AS_SEEN[version.name] for version in versions.ALL[1:]] == list(versions.ALL[1:])


def shown_in(body: str) -> Document:
    """The document that a captured body shows; what its version leaves out gets a value that must not show."""
    content = json.loads(body)
    return samples.of(*(event_in(entry) for entry in content["Events"]), incarnation=content["DocumentIncarnation"])


def event_in(entry: dict[str, Any]) -> Event:
    return Event(
        id=entry["EventId"].lower(),
        operation="op",
        scope="group:web",
        resources=tuple(entry["Resources"]),
        update_domain=3,
        type=EventType(entry["EventType"]),
        source=Source(entry.get("EventSource", "User")),
        description=entry.get("Description", "left out"),
        duration=entry.get("DurationInSeconds", 99),
        status=Status(entry["EventStatus"]),
        created_at=samples.NOON,
        not_before=dates.parse(entry["NotBefore"]) or samples.NOON,
    )


@pytest.mark.parametrize("capture", [capture for capture in CAPTURES if capture["body"]])
def test_captures_are_rendered_byte_for_byte(capture: dict[str, str]) -> None:
    version = versions.lookup(capture["api-version"])
    assert version is not None
    assert document.render(shown_in(capture["body"]), version) == capture["body"].encode()


def test_the_captures_are_all_there() -> None:
    assert [bool(capture["body"]) for capture in CAPTURES] == [True, False, True, True, True, True]


@given(samples.ANY_DOCUMENT, ANY_VERSION)
def test_every_version_is_json_with_just_its_keys(shown: Document, version: versions.Version) -> None:
    body = document.render(shown, version)
    content = json.loads(body)
    known = [event for event in shown.events if event.type in version.types]
    assert list(content) == ["DocumentIncarnation", "Events"]
    assert content["DocumentIncarnation"] == shown.incarnation
    assert [tuple(entry) for entry in content["Events"]] == [version.keys] * len(known)
    for entry, event in zip(content["Events"], known, strict=True):
        assert entry["EventId"] == event.id
        assert dates.parse(entry["NotBefore"]) == (event.not_before if event.status is Status.SCHEDULED else None)
        bare = shown.kind is ScopeKind.CLOUD_SERVICE or version.name != "2017-03-01"
        assert entry["Resources"] == [name if bare else f"_{name}" for name in event.resources]
    assert body == json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def test_an_id_is_shown_in_upper_case() -> None:
    lower = replace(samples.SCHEDULED, id=samples.SCHEDULED.id.lower())
    assert b"00000000-0000-4000-8000-0000000000A1" in document.render(samples.of(lower), versions.NEWEST)


def test_the_tag_is_of_incarnation_and_scope() -> None:
    first = samples.of(incarnation=7)
    assert document.etag(first) == '"7-k3x9"'
    assert document.etag(replace(first, incarnation=8)) != document.etag(first)
    assert document.etag(replace(first, tag="zz")) != document.etag(first)


LISTS = ['"1", "7-k3x9"', '"1","7-k3x9","2"', "1, 7-k3x9", 'W/"1", W/"7-k3x9"']


@pytest.mark.parametrize(
    "header", ['"7-k3x9"', "7-k3x9", 'W/"7-k3x9"', 'w/"7-k3x9"', "W/7-k3x9", ' "7-k3x9" ', *LISTS, "*"]
)
def test_a_tag_is_known_in_every_form(header: str) -> None:
    assert document.matches(header, '"7-k3x9"')


@pytest.mark.parametrize(
    "header",
    ["", '""', '"', ",", '"6-k3x9"', '"7-k3x8"', "7", "k3x9", '"7-K3X9"', '"*"', '"7-k3x9x"', '"a,7-k3x9,b"', "W/"],
)
def test_another_tag_is_not(header: str) -> None:
    assert not document.matches(header, '"7-k3x9"')
