"""The whole fleet in place of the little that an explanation loads."""

from typing import Any

from forenotice.core.draft import World
from forenotice.store.worlds import Worlds


def load(worlds: Worlds, **_: Any) -> World:
    """For `Worlds.to_explain`, of which it keeps the order."""
    world = worlds.fleet()
    for event in sorted(world.events.values(), key=lambda event: (event.scope, event.created_at, event.id)):
        world.events[event.id] = world.events.pop(event.id)
    return world
