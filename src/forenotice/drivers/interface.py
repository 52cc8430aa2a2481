"""What every driver promises."""

from datetime import datetime
from typing import Protocol

from forenotice.core.driver_calls import Outcome, Task


class Driver(Protocol):
    def carry_out(self, task: Task, now: datetime) -> Outcome:
        """Do what the task says to its VMs, or say when to ask again.

        May block; runs in a thread of its own, in its turn, for one VM or for all of an operation (see Terms).
        After a crash, or when it answered NotYet, it is asked again with the same operation id and attempt, so it
        looks first whether the thing has happened. A VM that could not be served is a failure with a reason; an
        exception fails all of them. What failed is asked for again, with a higher attempt, as long as tries are left.
        """
