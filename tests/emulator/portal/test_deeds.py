"""What forms have done is done once."""

import asyncio

import pytest

from forenotice.core import errors
from forenotice.emulator.portal import app
from forenotice.emulator.portal.app import FormResults


def test_the_oldest_are_forgotten() -> None:
    done: list[str] = []

    def do() -> str:
        done.append("it")
        return f"done {len(done)}"

    async def press() -> None:
        found = FormResults()
        assert await asyncio.gather(*(found.once("a", do) for _ in range(3))) == ["done 1"] * 3
        for number in range(app.MOST_FORMS):
            await found.once(str(number), do)
        assert await found.once("a", do) == f"done {app.MOST_FORMS + 2}"

    asyncio.run(press())


def test_a_refusal_is_told_each_time() -> None:
    def refuse() -> str:
        raise errors.RefusedError("no")

    async def press() -> None:
        found = FormResults()
        for _ in range(2):
            with pytest.raises(errors.RefusedError):
                await found.once("a", refuse)

    asyncio.run(press())
