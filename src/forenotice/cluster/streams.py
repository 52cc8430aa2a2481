"""The streams in NATS that edges live by, and the subjects of each host."""

import re

from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import NotFoundError

DOCS, UP = "NB_DOCS", "NB_UP"
CONSUMER = "centre"
REPLICAS = 3
UP_BYTES = 1 << 30
"""Approvals that wait for the service; beyond it edges answer 503."""
ACK_SECONDS = 30.0
EDGE_INBOX = "_INBOX_"
"""With the host's token behind it: credentials allow each edge its own."""
CENTRE_INBOX = "_CENTRE"

_ESCAPED = re.compile(rb"[^A-Za-z0-9_-]")


def token(host: str) -> str:
    """A host's name as one token of a subject; different names have different tokens."""
    return _ESCAPED.sub(lambda found: b"=%02X" % found[0][0], host.encode()).decode()


def host_of(subject: str) -> str:
    """The host that a subject of an edge names as its third token."""
    escaped = subject.split(".")[2]
    return re.sub(r"=([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), escaped)


def docs(host: str) -> str:
    return f"nb.docs.{token(host)}"


def live(host: str) -> str:
    return f"nb.live.{token(host)}"


def approve(host: str) -> str:
    return f"nb.up.{token(host)}.approve"


def heard(host: str) -> str:
    return f"nb.up.{token(host)}.heard"


def beat(host: str) -> str:
    return f"nb.beat.{token(host)}"


def ask(host: str) -> str:
    return f"nb.ask.{token(host)}"


def configurations(replicas: int = REPLICAS) -> tuple[StreamConfig, ...]:
    return (
        StreamConfig(
            name=DOCS,
            description="The state of each host for its edge",
            subjects=["nb.docs.*"],
            num_replicas=replicas,
            storage=StorageType.FILE,
            max_msgs_per_subject=1,
            allow_direct=True,
            republish=RePublish(src="nb.docs.*", dest="nb.live.{{wildcard(1)}}"),
        ),
        StreamConfig(
            name=UP,
            description="Approvals of guests behind edges, and who was heard",
            subjects=["nb.up.*.approve", "nb.up.*.heard"],
            num_replicas=replicas,
            storage=StorageType.FILE,
            retention=RetentionPolicy.WORK_QUEUE,
            discard=DiscardPolicy.NEW,
            max_bytes=UP_BYTES,
        ),
    )


def consumer() -> ConsumerConfig:
    return ConsumerConfig(
        durable_name=CONSUMER,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_SECONDS,
        max_ack_pending=10_000,
    )


async def ensure(js: JetStreamContext, replicas: int) -> None:
    """Make what is missing; what is there stays as it is (`forenotice cluster check` judges it)."""
    for wanted in configurations(replicas):
        try:
            await js.stream_info(wanted.name or "")
        except NotFoundError:
            await js.add_stream(wanted)
    try:
        await js.consumer_info(UP, CONSUMER)
    except NotFoundError:
        await js.add_consumer(UP, consumer())
