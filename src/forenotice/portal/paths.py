"""Which function answers which path, and what whoever asks must be granted."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response

from forenotice.core.roles import Need
from forenotice.portal.visiting import Visit

Answering = Callable[[Visit], Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    method: str
    path: str
    needs: Need
    answer: Answering
    in_turn: bool
    """Heavy: one at a time, with those of the API."""


class Pages:
    def __init__(self) -> None:
        self.declared: list[Declared] = []

    def get(self, path: str, *, needs: Need, in_turn: bool = False) -> Callable[[Answering], Answering]:
        return self._declare("GET", path, needs, in_turn=in_turn)

    def post(self, path: str, *, needs: Need) -> Callable[[Answering], Answering]:
        """Only with a form that one of our own pages had."""
        return self._declare("POST", path, needs)

    def _declare(
        self, method: str, path: str, needs: Need, *, in_turn: bool = False
    ) -> Callable[[Answering], Answering]:
        def declare(answer: Answering) -> Answering:
            self.declared.append(Declared(method=method, path=path, needs=needs, answer=answer, in_turn=in_turn))
            return answer

        return declare
