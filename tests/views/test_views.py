"""Views: what is wrong with a request is told in a sentence, and every example is what its struct takes."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from forenotice.core import errors
from forenotice.core.fleet import IS_NAME
from forenotice.views import base, fleet, history, maintenance, rollouts, subscriptions, tokens

MODULES = (base, fleet, history, maintenance, rollouts, subscriptions, tokens)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(base.Request):
    colour: Colour = Colour.RED
    shape: Literal["round", "flat"] = "flat"


class Sent(base.Request):
    name: base.Name
    note: base.Text = ""
    number: Annotated[int, Meta(ge=1, le=5)] = 1
    names: Annotated[list[base.Name], Meta(min_length=1, max_length=2)] = []
    inner: Inner = Inner()
    many: dict[str, Inner] = {}
    at: base.Moment | None = None
    flag: bool | msgspec.UnsetType = msgspec.UNSET


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"{}", "name in the body is missing"),
        (b'{"name": "a", "nmae": 1}', "nmae in the body is not known"),
        (b'{"name": "a", "inner": {"x": 1}}', "inner.x in the body is not known"),
        (b'{"name": "a", "auto_approve": true}', "auto_approve in the body is not known any more: give "),
        (b'{"name": "a b"}', f"name in the body {IS_NAME}"),
        (b'{"name": "a\\n"}', f"name in the body {IS_NAME}"),
        (b'{"name": "a", "note": "\\n"}', "note in the body must not hold control characters"),
        (b'{"name": "a", "note": 5}', "note in the body must be a string, not an integer"),
        (b'{"name": "a", "flag": null}', "flag in the body must be true or false, not null"),
        (b'{"name": "a", "number": 0}', "number in the body must be at least 1"),
        (b'{"name": "a", "number": 9}', "number in the body must be at most 5"),
        (b'{"name": "a", "number": 1.5}', "number in the body must be an integer, not a number"),
        (b'{"name": "a", "names": []}', "names in the body must have at least 1 items"),
        (b'{"name": "a", "names": ["a", "!"]}', f"names[1] in the body {IS_NAME}"),
        (b'{"name": "a", "inner": {"colour": "green"}}', "inner.colour in the body must be one of red, blue"),
        (b'{"name": "a", "many": {"k": {"shape": "x"}}}', "many[...].shape in the body must be one of round, flat"),
        (b'{"name": "a", "at": "2026-01-31"}', "at in the body must be a time such as 2026-01-31T12:00:00Z"),
        (b'{"name": "a", "at": "2026-01-31T12:00:00"}', "at in the body must be a time such as"),
        (b"[]", "the body must be an object, not a list"),
        (b'{"name": ', "the body is not JSON"),
        (b'{"name": "\\ud800"}', "the body is not JSON"),
        (b"[" * 5000, "the body"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(sent: bytes, sentence: str) -> None:
    with pytest.raises(errors.RefusedError) as caught:
        base.decode(sent, Sent)
    assert caught.value.message.startswith(sentence)


def test_what_was_given_is_told_from_what_was_left_out() -> None:
    assert base.decode(b'{"name": "a"}', Sent).flag is msgspec.UNSET
    changed = base.decode(b'{"capacity": null, "labels": {"rack": null}}', fleet.HostChange)
    assert changed.given() == {"capacity": None, "labels": {"rack": None}}


def test_every_request_has_an_example() -> None:
    found = {each for module in MODULES for each in vars(module).values() if isinstance(each, type)}
    requests = {each for each in found if issubclass(each, base.Request) and each is not base.Request}
    assert requests <= base.EXAMPLES.keys()


@pytest.mark.parametrize("kind", list(base.EXAMPLES), ids=lambda kind: kind.__name__)
def test_examples_are_what_the_structs_take(kind: Any) -> None:
    value = base.EXAMPLES[kind]
    assert msgspec.json.decode(msgspec.json.encode(value), type=kind) == value


def test_a_policy_is_the_same_there_and_back() -> None:
    assert fleet.Policy.of(fleet.POLICY.policy()) == fleet.POLICY
    changed = fleet.PolicyChange(max_unavailable=2).of(fleet.POLICY.policy())
    assert fleet.Policy.of(changed) == msgspec.structs.replace(fleet.POLICY, max_unavailable=2)
