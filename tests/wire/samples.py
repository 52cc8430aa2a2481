"""The documents of the golden files, and strategies for any document.

After a wanted change of the wire, `python -m tests.wire.samples` at the root of the project writes the golden files
anew; read the difference against docs/guests.md before committing it. Each line: a name, a blank, a body.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import strategies as st

from forenotice.core import documents
from forenotice.core.documents import Document
from forenotice.core.fleet import Scope, ScopeKind
from forenotice.core.operations import FAILURE, HOST_MAINTENANCE, USER_RESTART, Event, EventType, Source, Status
from forenotice.wire import document, versions

GOLDEN = Path(__file__).parent / "golden"
NOON = datetime(2026, 3, 9, 12, 0, 0, tzinfo=UTC)


def event(
    number: int,
    type_: EventType,
    *resources: str,
    status: Status = Status.SCHEDULED,
    source: Source = Source.PLATFORM,
    description: str = "",
    duration: int = -1,
    not_before: datetime = NOON,
) -> Event:
    return Event(
        id=f"00000000-0000-4000-8000-{number:012X}",
        operation=f"op-{number}",
        scope="group:web",
        resources=resources,
        update_domain=0,
        type=type_,
        source=source,
        description=description,
        duration=duration,
        status=status,
        created_at=NOON - timedelta(hours=1),
        not_before=not_before,
    )


def of(*events: Event, kind: ScopeKind = ScopeKind.AVAILABILITY_SET, incarnation: int = 7) -> Document:
    return Document(scope="group:web", tag="k3x9", kind=kind, incarnation=incarnation, events=events)


SCHEDULED = event(0xA1, EventType.FREEZE, "web-0", "web-1", description=HOST_MAINTENANCE, duration=9)
STARTED = event(0xB2, EventType.REBOOT, "web-2", status=Status.STARTED, source=Source.USER, description=USER_RESTART)

DOCUMENTS = {
    "empty": of(incarnation=1),
    "scheduled": of(SCHEDULED),
    "started": of(STARTED, incarnation=8),
    "all-types": of(
        SCHEDULED,
        STARTED,
        event(0xC3, EventType.REDEPLOY, "web-3", description=FAILURE, not_before=NOON + timedelta(days=7, seconds=5)),
        event(0xD4, EventType.PREEMPT, "web-4", not_before=NOON + timedelta(seconds=30)),
        event(0xE5, EventType.TERMINATE, "web-5", source=Source.USER, not_before=NOON + timedelta(minutes=5)),
        incarnation=12,
    ),
    "counted": documents.document(
        Scope(key="group:ss", kind=ScopeKind.PLACEMENT_GROUP, tag="k3x9", incarnation=4),
        [
            event(0xA8, EventType.REBOOT, "ss_10"),
            event(0xB9, EventType.REBOOT, "ss_9"),
            event(0xCA, EventType.FREEZE, "ss_2", "ss_3", "ss_11"),
        ],
    ),
    "standalone": of(event(0xF6, EventType.REBOOT, "db"), kind=ScopeKind.STANDALONE),
    "cloud-service": of(event(0xA7, EventType.REDEPLOY, "FrontEnd_IN_0"), kind=ScopeKind.CLOUD_SERVICE),
}


def golden(version: versions.Version) -> bytes:
    return b"".join(
        name.encode() + b" " + document.render(sample, version) + b"\n" for name, sample in DOCUMENTS.items()
    )


GOLDEN_FILES = {
    **{GOLDEN / f"{version.name}.txt": version for version in versions.ALL},
    GOLDEN / f"{versions.FIRST_AS_SEEN.name}-as-seen.txt": versions.FIRST_AS_SEEN,
}


EVENTS = st.builds(
    Event,
    id=st.uuids().map(lambda guid: str(guid).upper()),
    operation=st.just("op"),
    scope=st.just("group:web"),
    resources=st.lists(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True), min_size=1, max_size=3).map(tuple),
    update_domain=st.integers(0, 999),
    type=st.sampled_from(EventType),
    source=st.sampled_from(Source),
    description=st.text(max_size=40),
    duration=st.integers(-1, 10_000),
    status=st.sampled_from([Status.SCHEDULED, Status.STARTED]),
    created_at=st.just(NOON),
    not_before=st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(microsecond=0)),
)

ANY_DOCUMENT = st.builds(
    Document,
    scope=st.just("group:web"),
    tag=st.from_regex(r"[a-z0-9]{4,12}", fullmatch=True),
    kind=st.sampled_from(ScopeKind),
    incarnation=st.integers(1, 2**53),
    events=st.lists(EVENTS, max_size=4).map(tuple),
)


if __name__ == "__main__":
    for path, each in GOLDEN_FILES.items():
        path.write_bytes(golden(each))
