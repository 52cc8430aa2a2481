"""What whoever drives the emulator sends: each request as a model that takes nothing it does not know."""

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictInt, WithJsonSchema

from forenotice.control.models import LongText, Request, Text, VmName
from forenotice.core.operations import Kind
from forenotice.emulator import words
from forenotice.emulator.faults.table import On
from forenotice.emulator.scenarios.format import MOST_TIMES, Amount
from forenotice.emulator.scenarios.reading import LARGEST
from forenotice.settings.spans import Span

MOST_RESOURCES = 1000


def _kind(word: object) -> Kind:
    if not isinstance(word, str):
        raise ValueError("is a word, such as reboot")
    return words.kind(word)


Duration = Annotated[timedelta, BeforeValidator(Span.read), WithJsonSchema({"type": "string", "example": "15m"})]
Signed = Annotated[timedelta, BeforeValidator(Amount.read), WithJsonSchema({"type": "string", "example": "-5m"})]
Word = Annotated[Kind, BeforeValidator(_kind), WithJsonSchema({"type": "string", "enum": list(words.WORDS)})]
Resources = Annotated[tuple[VmName, ...], Field(max_length=MOST_RESOURCES)]


class NewEvent(Request):
    kind: Word
    resources: Resources = ()
    """None: the VM that callers are."""
    notice: Duration | None = None
    takes: Duration | None = None
    description: LongText | None = None
    duration_seconds: Annotated[StrictInt, Field(ge=-1, le=2**31 - 1)] | None = None


class Play(Request):
    scenario: Annotated[str, Field(min_length=1, max_length=LARGEST)]
    """One of the catalogue, or the TOML of another."""
    source: Text = "scenario.toml"
    """The file that complaints about the TOML speak of."""
    resources: Resources = ()
    seed: StrictInt | None = None


class Advance(Request):
    by: Duration


class NewFault(Request):
    name: Text
    amount: Signed | None = None
    on: On | None = None
    times: Annotated[StrictInt, Field(ge=1, le=MOST_TIMES)] | None = None
    lasts: Duration | None = None


class NewEndpoint(Request):
    vm: VmName
