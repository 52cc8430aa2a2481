"""The whole fleet in place of the little that an explanation loads."""

from typing import Any

from forenotice.core.draft import World
from forenotice.store import worlds
from forenotice.store.queries import Executor


def load(executor: Executor, named: Any, told: Any) -> World:
    """For `worlds.load_to_explain`, of which it keeps the order."""
    world = worlds.load_fleet(executor)
    for event in sorted(world.events.values(), key=lambda event: (event.scope, event.created_at, event.id)):
        world.events[event.id] = world.events.pop(event.id)
    return world
