"""A service with a journal to tell of."""

import pytest
from tests.delivery.telling import Teller

from forenotice.store.database import Store


@pytest.fixture
def teller(store: Store) -> Teller:
    return Teller(store)
