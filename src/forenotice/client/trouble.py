"""Failures that repeat are told when they change and when their number has doubled, not each time."""

from forenotice.client.errors import EndpointError

LOGGER = "forenotice.client"


class Trouble:
    def __init__(self) -> None:
        self._cause = ""
        self._times = 0

    def met(self, error: EndpointError) -> None:
        self._times = self._times + 1 if error.cause == self._cause else 1
        self._cause = error.cause
        if self._times & (self._times - 1) == 0:
            # Imported only now: most processes never need it, and it is not small.
            import logging

            logging.getLogger(LOGGER).warning(
                "the metadata endpoint cannot be used: %s",
                error.message,
                extra={"action": "watch.failed", "times": self._times},
            )

    def over(self) -> None:
        if self._times:
            import logging

            logging.getLogger(LOGGER).info(
                "the metadata endpoint answers again", extra={"action": "watch.recovered", "times": self._times}
            )
        self._cause, self._times = "", 0
