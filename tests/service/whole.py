"""The whole fleet in place of the little that an explanation loads."""

from typing import Any

from forenotice.core.draft import World
from forenotice.store import loading
from forenotice.store.session import Session


def load(session: Session, named: Any, told: Any) -> World:
    """For `loading.load_to_explain`, of which it keeps the order."""
    world = loading.load_fleet(session)
    for event in sorted(world.events.values(), key=lambda event: (event.scope, event.created_at, event.id)):
        world.events[event.id] = world.events.pop(event.id)
    return world
