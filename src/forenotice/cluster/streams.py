"""The streams in NATS that edges live by."""

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

from forenotice.cluster.subjects import CONSUMER, DOCS, UP

REPLICAS = 3
UP_BYTES = 1 << 30
"""Approvals that wait for the service; beyond it edges answer 503."""
ACK_SECONDS = 10.0
"""After which another process gets what one has taken and not acknowledged."""


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
            description="Approvals and polls of guests behind edges",
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
