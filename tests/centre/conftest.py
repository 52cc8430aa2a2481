"""The demo fleet in a service."""

import pytest
from tests.service.rig import Rig

from forenotice.store.database import Store


@pytest.fixture
def rig(store: Store) -> Rig:
    """Every scope listens."""
    return Rig(store).settle_demo()
