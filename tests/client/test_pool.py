"""Connections that are lent to one asker at a time, kept in small number, and all closed in the end."""

from contextlib import ExitStack

import pytest

from forenotice.client.http import KEPT, Pool


class Made:
    def __init__(self, host: str, port: int) -> None:
        self.place = (host, port)
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made() -> list[Made]:
    return []


@pytest.fixture
def pool(made: list[Made]) -> Pool[Made]:
    def make(host: str, port: int) -> Made:
        made.append(Made(host, port))
        return made[-1]

    return Pool(make)


def test_what_is_given_back_is_lent_again(pool: Pool[Made], made: list[Made]) -> None:
    for _ in range(3):
        with pool.lend("a", 1) as connection:
            assert connection.place == ("a", 1)
    assert len(made) == 1


def test_two_at_a_time_get_one_each(pool: Pool[Made], made: list[Made]) -> None:
    with pool.lend("a", 1) as one, pool.lend("a", 1) as other:
        assert one is not other
    assert len(made) == 2


def test_no_more_are_kept_than_are_needed(pool: Pool[Made], made: list[Made]) -> None:
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(pool.lend("a", 1))
    assert sum(not each.closed for each in made) == KEPT


def test_another_place_has_others_and_old_ones_go(pool: Pool[Made], made: list[Made]) -> None:
    for port in range(4):
        with pool.lend("a", port) as connection:
            assert connection.place == ("a", port)
    assert [each.closed for each in made] == [True, True, False, False]


def test_what_failed_is_given_back_too(pool: Pool[Made], made: list[Made]) -> None:
    with pytest.raises(OSError, match="broken"), pool.lend("a", 1):
        raise OSError("broken")
    with pool.lend("a", 1):
        assert len(made) == 1


def test_the_end_is_for_all_and_for_good(pool: Pool[Made], made: list[Made]) -> None:
    with pool.lend("a", 1), pool.lend("a", 1):
        pass
    with pool.lend("a", 1):
        pool.close()
        assert [each.closed for each in made] == [True, True]
        made[0].closed = made[1].closed = False
    assert sum(each.closed for each in made) == 1
    with pytest.raises(ConnectionAbortedError), pool.lend("a", 1):
        pass
