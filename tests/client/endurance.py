"""Polls many times without a pause, and says how much memory it had after 2,000 and after all: as a process."""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from forenotice import AsyncClient, Client, News, Pace

SETTLED = 2_000
RESTLESS = Pace(
    interval=0, first_pause=0, longest_pause=0, longest_retry_after=0, timeout=5, first_timeout=5, at_once=0
)


def own_memory(process: int | str = "self") -> int:
    """KiB, without pages of files: the system takes those and brings them back as it likes."""
    status = Path(f"/proc/{process}/status").read_text()
    return sum(int(found) for found in re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+) kB$", status, re.MULTILINE))


def count(polls: int) -> Iterator[None]:
    """One step for each piece of news."""
    for number in range(1, polls + 1):
        if number in (SETTLED, polls):
            sys.stdout.write(f"{own_memory()}\n")
        yield


def blocking(url: str, polls: int) -> None:
    with Client(url, pace=RESTLESS) as client:
        for news, _ in zip(client.follow(), count(polls), strict=False):
            note(news)


async def asynchronous(url: str, polls: int) -> None:
    async with AsyncClient(url, pace=RESTLESS) as client:
        counted = count(polls)
        async for news in client.follow():
            note(news)
            if next(counted, "ended") == "ended":
                return


seen: dict[str, int] = {}


def note(news: News) -> None:
    what = news.error.cause if news.error else "changed" if news.changed else "same"
    seen[what] = seen.get(what, 0) + 1


if __name__ == "__main__":
    _, kind, url, polls = sys.argv
    if kind == "sync":
        blocking(url, int(polls))
    else:
        asyncio.run(asynchronous(url, int(polls)))
    sys.stdout.writelines(f"{times} {what}\n" for what, times in seen.items())
