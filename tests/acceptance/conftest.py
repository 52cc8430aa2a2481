"""What the tests of agents share: starting a server takes longer than most of them."""

from collections.abc import Iterator

import pytest
from tests.acceptance.guests import Fleet, a_fleet


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with a_fleet(tmp_path_factory.mktemp("fleet")) as found:
        yield found
