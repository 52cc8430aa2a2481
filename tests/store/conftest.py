"""One transaction, which is rolled back in the end: for tests that need no second one."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from forenotice.store.database import Store
from forenotice.store.transaction import Transaction


class _EnoughError(Exception):
    """Rolls back."""


@pytest.fixture
def tx(store: Store) -> Iterator[Transaction]:
    with suppress(_EnoughError), store.write() as transaction:
        yield transaction
        raise _EnoughError
