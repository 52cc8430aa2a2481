"""The store of a service that has not reached its database yet."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forenotice.core import errors
from forenotice.store.contract import Reader, Transaction
from forenotice.store.mark import Mark


class Away:
    @contextmanager
    def read(self) -> Iterator[Reader]:
        raise _unreached()
        yield

    @contextmanager
    def write(self, check: Callable[[], None] = lambda: None) -> Iterator[Transaction]:  # noqa: ARG002
        raise _unreached()
        yield

    def backup(self, path: Path) -> None:  # noqa: ARG002
        raise _unreached()

    def mark(self) -> Mark | None:
        return None

    def settle(self) -> None: ...

    def changes(self, stop: threading.Event) -> Iterator[int]:  # noqa: ARG002
        return iter(())

    def close(self) -> None: ...


def _unreached() -> errors.UnavailableError:
    return errors.UnavailableError("the database has not been reached since the start; try again")
