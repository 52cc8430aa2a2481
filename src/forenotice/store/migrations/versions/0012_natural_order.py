"""Documents in the order of creation, then of first resource, and resources in the order people count.

A document that looks different because of it has a new incarnation, so that no guest takes it for the former one.
"""

import json
import re
from collections import defaultdict
from operator import itemgetter

from alembic import op
from sqlalchemy import BigInteger, Column, MetaData, Table, Text, select, update

revision = "0012"
down_revision = "0011"

metadata = MetaData()
scopes = Table("scopes", metadata, Column("key", Text), Column("incarnation", BigInteger))
operations = Table("operations", metadata, *(Column(name, Text) for name in ("id", "vms", "status")))
events = Table(
    "events",
    metadata,
    *(Column(name, Text) for name in ("id", "scope", "resources", "status")),
    Column("created_at", BigInteger),
)


def upgrade() -> None:
    connection = op.get_bind()
    live = select(operations.c.id, operations.c.vms).where(operations.c.status.in_(("Planned", "Scheduled", "Started")))
    for key, vms in connection.execute(live).all():
        if (ordered := _ordered(vms)) != vms:
            connection.execute(update(operations).where(operations.c.id == key).values(vms=ordered))
    documents = defaultdict(list)
    told = select(events.c.scope, events.c.created_at, events.c.id, events.c.resources).where(
        events.c.status.in_(("Scheduled", "Started"))
    )
    for scope, created_at, key, resources in connection.execute(told).all():
        if (ordered := _ordered(resources)) != resources:
            connection.execute(update(events).where(events.c.id == key).values(resources=ordered))
        first = [_natural_key(name) for name in json.loads(ordered)[:1]]
        documents[scope].append(((created_at, key), (created_at, first, key), ordered != resources))
    for scope, shown in documents.items():
        before, after = sorted(shown, key=itemgetter(0)), sorted(shown, key=itemgetter(1))
        if before != after or any(reordered for *_, reordered in shown):
            raised = scopes.c.incarnation + 1
            connection.execute(update(scopes).where(scopes.c.key == scope).values(incarnation=raised))


def _ordered(names: str) -> str:
    known = json.loads(names)
    ordered = sorted(known, key=_natural_key)
    return names if ordered == known else json.dumps(ordered, separators=(",", ":"))


def _natural_key(name: str) -> tuple[list[tuple[str, int, str]], str]:
    texts_and_digits = (*re.split(r"([0-9]+)", name), "")
    pairs = zip(texts_and_digits[::2], texts_and_digits[1::2], strict=True)
    counted = [(text, digits.lstrip("0")) for text, digits in pairs]
    return [(text, len(number), number) for text, number in counted], name
