"""The event loop of whatever answers guests."""

import asyncio


def new() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed; it does not exist for Windows, and a test does without."""
    try:
        import uvloop
    except ImportError:
        # Not the one that Windows has by default, which cannot watch a listening socket.
        return asyncio.SelectorEventLoop()
    return uvloop.new_event_loop()
