"""`forenotice cluster check`: what is right with NATS, what is wrong, and what to do about it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from forenotice.clock import Clock
from forenotice.cluster import connection, monitoring, streams
from forenotice.cluster.connection import Servers
from forenotice.cluster.monitoring import Group, Seen, SeenServers, Server, Stream
from forenotice.cluster.subjects import CENTRE_INBOX, CONSUMER, DOCS, UP
from forenotice.core import errors

OLDEST = (2, 12, 6)
"""Of the servers' versions that are supported: older ones publish traces wherever an edge says (CVE-2026-33249)."""
PAYLOAD = 1 << 20
"""Bytes: the state of a host with some 9,000 VMs, each with an event."""
LEAST_LEFT = 0.1
"""Of the space for streams."""
LONGEST_WAIT = timedelta(minutes=1)
CLOCKS = timedelta(seconds=1)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    ok: bool | None
    """None: it could not be looked at."""
    sentence: str
    remedy: str = ""
    """What to do, unless it is right."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    """Nothing is wrong, as far as it could be looked at."""
    findings: Sequence[Finding]


async def check(servers: Servers, system: Path | None, clock: Clock) -> Checked:
    """`system`: credentials of the system account, which alone can look at the servers themselves."""
    findings = [*await _of_service(servers, clock), *await _of_servers(servers, system, clock)]
    return Checked(ok=all(finding.ok is not False for finding in findings), findings=findings)


async def _of_service(servers: Servers, clock: Clock) -> list[Finding]:
    place = ""
    try:
        async with connection.once(servers, CENTRE_INBOX) as client:
            place = client.connected_url.netloc.rpartition("@")[2] if client.connected_url else ""
            seen = await monitoring.look(client, clock)
    except errors.UnavailableError as error:
        if place:
            return [
                _judged("connection", True, f"The server at {place} answers."),
                _judged(
                    "jetstream",
                    False,
                    f"JetStream does not answer the service: {error.message}.",
                    "more than half of the servers must be up with `jetstream` in their configuration; the credentials "
                    "must be those that `forenotice cluster init` made for the service (centre.creds)",
                ),
            ]
        return [
            _judged(
                "connection",
                False,
                f"No NATS server could be reached at {', '.join(servers.urls)}: {error.message}.",
                "start the servers, or give their addresses with --nats (tls://HOST:PORT for servers with TLS, with "
                "--nats-ca, --nats-certificate and --nats-key), and the service's credentials (centre.creds) with "
                "--nats-credentials",
            )
        ]
    return [_judged("connection", True, f"The server at {place} answers."), *judge(seen)]


async def _of_servers(servers: Servers, system: Path | None, clock: Clock) -> list[Finding]:
    if system is None:
        return [
            Finding(
                id="servers",
                ok=None,
                sentence="The servers themselves were not checked: whether all are up, sync each write "
                "(`sync_interval: always`) and have space left.",
                remedy="give --system-credentials FILE (system.creds of `forenotice cluster init`)",
            )
        ]
    try:
        async with connection.once(msgspec.structs.replace(servers, credentials=system)) as client:
            seen = await monitoring.look_at_servers(client, clock)
            if not seen.servers:
                # We are connected to one of them.
                raise errors.UnavailableError("no server answers these credentials")
            return list(judge_servers(seen))
    except errors.UnavailableError as error:
        return [
            _judged(
                "servers",
                False,
                f"The servers could not be checked with {system}: {error.message}.",
                "give the credentials of the system account (system.creds of `forenotice cluster init`)",
            )
        ]


# What the service can see


UPGRADE = f"upgrade every server to {'.'.join(map(str, OLDEST))} or newer"
ENLARGE = "set `max_payload: 1MB` or more in the configuration of every server"
MAKE_ROOM = "raise the limit, or use a larger disk: once it is full, the approvals of guests are refused"
SET_CLOCKS = "let NTP set the clocks of all machines"
MAKE = "start `forenotice serve` with --nats and --nats-credentials, which makes it"


def judge(seen: Seen) -> Iterator[Finding]:
    yield _judged("version", _is_supported(seen.version), f"The server has version {seen.version}.", UPGRADE)
    said = f"The server takes messages of up to {seen.max_payload} bytes."
    yield _judged("max_payload", seen.max_payload >= PAYLOAD, said, ENLARGE)
    yield _space_of_account(seen)
    for wanted in streams.configurations():
        name = wanted.name or ""
        stream = seen.streams[name]
        if stream is None:
            yield _judged(name, False, f"Stream {name} does not exist.", MAKE)
            continue
        leader = _leader(stream.cluster)
        yield _judged(name, True, f"Stream {name} exists{leader and f'; its leader is {leader}'}.")
        anew = f"delete it while nothing waits in it (`nats stream rm {name}`), and start `forenotice serve` again"
        yield from _compare(name, STREAMS[name], wanted.as_dict(), stream.config, f"nats stream edit {name}", anew)
        yield from _group(name, stream.cluster)
    if up := seen.streams[UP]:
        yield from _consumed(seen, up)
    clocks = {_leader(stream.cluster) or "a server": stream.ts for stream in seen.streams.values() if stream}
    if clocks:
        yield _clocks("clock", clocks, seen.asked, seen.answered)


def _judged(name: str, ok: bool, sentence: str, remedy: str = "") -> Finding:
    return Finding(id=name, ok=ok, sentence=sentence, remedy="" if ok else remedy)


def _is_supported(version: str) -> bool:
    return tuple(int(part) for part in version.partition("-")[0].split(".")) >= OLDEST


def _has_room(used: int, most: int) -> bool:
    return most - used >= LEAST_LEFT * most


def _space_of_account(seen: Seen) -> Finding:
    of = seen.account.tiers.get(f"R{streams.REPLICAS}", seen.account)
    used, most = of.storage, of.limits.max_storage
    if most < 0:
        return _judged("account", True, "The account may use all the space that the servers have.")
    return _judged("account", _has_room(used, most), f"The account uses {used} of {most} bytes.", MAKE_ROOM)


class Aspect(NamedTuple):
    """One thing that a configuration says."""

    id: str
    key: str
    usual: object
    """What NATS takes where nothing is said."""
    what: str
    why: str
    flag: str = ""
    """Which changes it; empty: nothing does."""


SUBJECTS = Aspect("subjects", "subjects", [], "subjects", "others are not stored", "--subjects={}")
REPLICAS = Aspect("replicas", "num_replicas", 1, "replicas", "what is stored must survive a server", "--replicas={}")
STORAGE = Aspect("storage", "storage", "file", "storage", "what is stored must survive a restart")
RETENTION = Aspect("retention", "retention", "limits", "retention", "what is stored must stay as long as it is needed")
DISCARD = Aspect("discard", "discard", "old", "discard", "what was acknowledged must not be dropped", "--discard={}")
PER_SUBJECT = Aspect(
    "per_subject",
    "max_msgs_per_subject",
    -1,
    "most messages per subject",
    "each host has one state, and any number of approvals",
    "--max-msgs-per-subject={}",
)
MAX_MESSAGES = Aspect(
    "max_messages", "max_msgs", -1, "most messages", "there is a state for each host", "--max-msgs={}"
)
MAX_AGE = Aspect("max_age", "max_age", 0, "longest age", "nothing that is stored may expire", "--max-age={}")
DIRECT_GET = Aspect("direct_get", "allow_direct", False, "direct get", "edges read states with it", "--allow-direct")
REPUBLISH = Aspect(
    "republish",
    "republish",
    None,
    "republishing",
    "it brings new states to edges",
    "--republish-source='{src}' --republish-destination='{dest}'",
)
ROLLUP = Aspect(
    "rollup", "allow_rollup_hdrs", False, "rollup", "edges could purge approvals with it", "--no-allow-rollup"
)
ALL = (SUBJECTS, REPLICAS, STORAGE, RETENTION, PER_SUBJECT, MAX_MESSAGES, MAX_AGE)
STREAMS = {DOCS: (*ALL, DIRECT_GET, REPUBLISH), UP: (*ALL, DISCARD, ROLLUP)}
CONSUMED = (
    Aspect("acknowledgement", "ack_policy", "none", "acknowledgement", "approvals stay until the service has them"),
    Aspect("deliveries", "max_deliver", -1, "most deliveries", "approvals come again until the service has them"),
    Aspect("filter", "filter_subject", "", "filter", "the service takes in everything"),
)


def _compare(
    name: str, aspects: Sequence[Aspect], wanted: Mapping[str, Any], found: Mapping[str, Any], edit: str, anew: str
) -> Iterator[Finding]:
    """`edit` is the command that changes what can be changed; `anew` says what to do about the rest."""
    wanted = msgspec.json.decode(msgspec.json.encode(wanted))
    for aspect in aspects:
        right, is_now = (each.get(aspect.key, aspect.usual) for each in (wanted, found))
        said = f"{name}: {aspect.what}: {_shown(is_now)}"
        flag = aspect.flag.format(_shown(right), **(right if isinstance(right, dict) else {}))
        yield _judged(
            f"{name}.{aspect.id}",
            right == is_now,
            f"{said}." if right == is_now else f"{said}, and should be {_shown(right)}: {aspect.why}.",
            f"{edit} {flag}" if flag else anew,
        )


def _shown(value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case list():
            return ",".join(map(str, value))
        case dict():
            return " to ".join(map(str, value.values()))
    return str(value or "none") if value != 0 else "0"


def _leader(group: Group | None) -> str:
    return (group.leader or "") if group else "the server"


def _group(name: str, group: Group | None) -> Iterator[Finding]:
    """Those who hold it; a single server has none."""
    if group is None:
        return
    behind = [f"{each.name} {each.trouble}" for each in group.replicas if each.trouble]
    yield _judged(
        f"{name}.leader",
        bool(group.leader),
        f"The leader of {name} is {group.leader}." if group.leader else f"{name} has no leader.",
        "start the servers that are down: nothing can be stored before more than half are up",
    )
    yield _judged(
        f"{name}.followers",
        not behind,
        f"{name}: {', '.join(behind)}." if behind else f"{name} has {len(group.replicas)} followers; all are current.",
        "start the servers that are down, and look into their logs if they do not catch up: if one more fails, nothing "
        "can be stored",
    )


def _consumed(seen: Seen, up: Stream) -> Iterator[Finding]:
    name = f"{UP}.{CONSUMER}"
    if seen.consumer is None:
        yield _judged(name, False, f"Stream {UP} lacks the consumer {CONSUMER}: no approval reaches the service.", MAKE)
    else:
        yield _judged(name, True, f"Stream {UP} has the consumer {CONSUMER}.")
        anew = f"remove it (`nats consumer rm {UP} {CONSUMER}`), and start `forenotice serve` again"
        yield from _compare(name, CONSUMED, streams.consumer().as_dict(), seen.consumer.config, "", anew)
        yield from _group(name, seen.consumer.cluster)
    state, most = up.state, up.config.get("max_bytes", -1)
    waited = up.ts - state.first_ts if state.messages else timedelta(0)
    yield _judged(
        "waiting",
        waited <= LONGEST_WAIT and (most < 0 or state.bytes <= most / 2),
        f"{state.messages} messages ({state.bytes} bytes) wait for the service"
        + (f", the oldest for {waited.total_seconds():.0f} s." if state.messages else "."),
        "start `forenotice serve` with --nats, or look into its log for cluster.intake",
    )


def _clocks(name: str, clocks: Mapping[str, datetime], asked: datetime, answered: datetime) -> Finding:
    wrong = [
        f"{server}'s is {abs(ahead).total_seconds():.1f} s {'ahead' if ahead > timedelta(0) else 'behind'}"
        for server, now in clocks.items()
        if (ahead := max(now - answered, timedelta(0)) or min(now - asked, timedelta(0)))
        and not -CLOCKS <= ahead <= CLOCKS
    ]
    said = (
        f"Clocks differ from this machine's: {', '.join(wrong)}." if wrong else "The clocks agree with this machine's."
    )
    return _judged(name, not wrong, said, SET_CLOCKS)


# What the system account can see


def judge_servers(seen: SeenServers) -> Iterator[Finding]:
    names = ", ".join(server.server_name for server in seen.servers)
    wanted = max(seen.expected, streams.REPLICAS)
    yield _judged(
        "servers",
        len(seen.servers) >= wanted,
        f"{len(seen.servers)} of {wanted} servers answer: {names or 'none'}.",
        "start the others; one that is gone for good is removed with `nats server cluster peer-remove NAME`",
    )

    def every(name: str, right: str, trouble: Callable[[Server], str], remedy: str) -> Finding:
        wrong = [f"{each.server_name} {said}" for each in seen.servers if (said := trouble(each))]
        return _judged(f"servers.{name}", not wrong, f"{'; '.join(wrong)}." if wrong else right, remedy)

    yield every(
        "version",
        f"All have version {'.'.join(map(str, OLDEST))} or newer.",
        lambda each: "" if _is_supported(each.version) else f"has version {each.version}",
        UPGRADE,
    )
    yield every(
        "jetstream",
        "All have JetStream.",
        lambda each: "" if each.jetstream.config else "has no JetStream",
        "put `jetstream { store_dir: DIR, sync_interval: always }` into their configuration, and restart them",
    )
    yield every(
        "sync",
        "All sync each write.",
        lambda each: "does not sync each write" if (store := each.jetstream.config) and not store.sync_always else "",
        "put `sync_interval: always` into `jetstream { ... }` of their configuration, and restart them one by one; "
        "without it, approvals that were acknowledged are lost when machines lose their power",
    )
    yield every(
        "max_payload",
        f"All take messages of {PAYLOAD} bytes or more.",
        lambda each: "" if each.max_payload >= PAYLOAD else f"takes messages of up to {each.max_payload} bytes only",
        ENLARGE,
    )
    yield every("space", "All have space left for streams.", _fullness, MAKE_ROOM)
    clocks = {server.server_name: server.now for server in seen.servers}
    yield _clocks("servers.clock", clocks, seen.asked, seen.answered)


def _fullness(server: Server) -> str:
    store, stats = server.jetstream.config, server.jetstream.stats
    used = max(stats.storage, stats.reserved_storage)
    return f"uses {used} of {store.max_storage} bytes" if store and not _has_room(used, store.max_storage) else ""
