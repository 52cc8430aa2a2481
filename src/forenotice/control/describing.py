"""The API's description, completed with what no single route can tell: examples, and how requests are refused."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from forenotice.control import examples
from forenotice.control.documented import CODES

Schema = dict[str, Any]

CHANGING = frozenset({"post", "patch", "delete"})
ERROR = {"$ref": "#/components/schemas/Error"}
ABOUT = """\
A request carries a token: `Authorization: Bearer TOKEN`. What a token may do is decided by its role, and by its scopes
where it has some.

Every write takes an `Idempotency-Key`: under the same key the same request takes effect once in 24 hours, and is
answered as it was.

Lists come page by page: give `next` of one page as `after` of the following one, with the same `sort` and filters.

Whatever is refused is answered in one shape, `{"error": {"code", "message", "facts"}}`. The codes stay as they are:

"""


class Described(FastAPI):
    def openapi(self) -> Schema:
        if self.openapi_schema is None:
            self.openapi_schema = _completed(super().openapi())
        return self.openapi_schema


def _completed(schema: Schema) -> Schema:
    schema["info"]["description"] = ABOUT + "\n".join(
        f"- `{code}` ({status}): {meaning}" for code, (status, meaning) in CODES.items()
    )
    models = schema["components"]["schemas"]
    for name, model in models.items():
        if example := _example(name):
            model["examples"] = [example]
    schema["components"]["responses"] = {str(status): _refusal(status) for status in _statuses()}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            _refuse(operation["responses"], set(_possible(path, method)))
    return schema


def _example(name: str) -> examples.Example | None:
    """By the model's name, which says `Page_Host_` for a page of hosts, and `-Input` where both ways have the same."""
    if name.startswith("Page_"):
        item = examples.ANSWERED.get(name.removeprefix("Page_").removesuffix("_"))
        return item and {"items": [item], "next": None}
    plain, _, way = name.partition("-")
    return (examples.ANSWERED if way == "Output" else examples.ASKED).get(plain) or examples.ANSWERED.get(plain)


def _statuses() -> list[int]:
    return sorted({status for status, _ in CODES.values()})


def _refusal(status: int) -> Schema:
    meant = {code: meaning for code, (each, meaning) in CODES.items() if each == status}
    shown = {
        code: {"value": {"error": {"code": code, "message": meaning, "facts": {}}}} for code, meaning in meant.items()
    }
    return {
        "description": " ".join(meant.values()),
        "content": {"application/json": {"schema": ERROR, "examples": shown}},
    }


def _possible(path: str, method: str) -> Iterator[int]:
    """How a request may be refused once its path and method are right."""
    yield from (400, 401, 403, 408, 413, 500, 503)
    if method in CHANGING or "{" in path:
        yield 404
    if method in CHANGING or path.endswith("/stream"):
        yield 409


def _refuse(responses: Schema, statuses: set[int]) -> None:
    for default in ("4XX", "5XX"):
        responses.pop(default, None)
    responses |= {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}
