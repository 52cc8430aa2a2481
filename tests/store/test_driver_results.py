"""What drivers were told by callback, on both databases."""

from tests.store.samples import MINUTE, NOW

from forenotice.core.driver_calls import Finished
from forenotice.store.database import Store
from forenotice.store.operations import DriverResult

FIRST = DriverResult(operation="o1", attempt=1, outcome=Finished(done=("a",), failures={"b": "no"}), at=NOW)
SECOND = DriverResult(operation="o1", attempt=2, outcome=Finished(done=("b",), failures={}), at=NOW + MINUTE)
OTHER = DriverResult(operation="o2", attempt=1, outcome=Finished(failures={"c": "no"}), at=NOW)


def test_an_answer_comes_back_as_it_was_put(store: Store) -> None:
    with store.write() as transaction:
        for answer in (FIRST, SECOND, OTHER):
            transaction.driver_results.put(answer)
    with store.read() as reader:
        assert sorted(reader.driver_results.of(["o1", "o3"]), key=lambda answer: answer.attempt) == [FIRST, SECOND]
        assert reader.driver_results.of([]) == []


def test_old_ones_of_what_is_over_are_forgotten(store: Store) -> None:
    with store.write() as transaction:
        for answer in (FIRST, SECOND, OTHER):
            transaction.driver_results.put(answer)
        transaction.driver_results.delete_before(NOW + MINUTE)
    with store.read() as reader:
        assert reader.driver_results.of(["o1", "o2"]) == [SECOND]
