"""The API's description, OpenAPI 3.1, written from the table of routes and the views."""

import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from forenotice import __version__
from forenotice.control.router import Content, Route
from forenotice.views import base

Schema = dict[str, Any]

ABOUT = """\
A request carries a token: `Authorization: Bearer TOKEN`. What a token may do is decided by its role, and by its scopes
where it has some.

Every write takes an `Idempotency-Key`: under the same key the same request takes effect once in 24 hours, and is
answered as it was.

Lists come page by page: give `next` of one page as `after` of the following one, with the same `sort` and filters.

Every error has one shape, `{"error": {"code", "message", "facts"}}`. The codes stay as they are:

"""
SCHEMES = {
    "HTTPBearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token that `forenotice token create` made.",
    }
}
KEY_PATTERN = "[!-~]{1,200}"
CHANGE_HEADERS: Sequence[Mapping[str, Any]] = (
    {
        "name": "idempotency-key",
        "description": "Under the same key the same request takes effect once in 24 hours.",
        "schema": {"anyOf": [{"type": "string", "pattern": f"^{KEY_PATTERN}$"}, {"type": "null"}]},
    },
    {
        "name": "forenotice-reason",
        "description": "Why, for the history: percent-encoded UTF-8.",
        "schema": {"type": "string", "default": "", "examples": ["disk%20swap"]},
    },
)
TAGS = {"stream": "history"}
NOTHING: Schema = {}


def describe(routes: Sequence[Route], *, title: str, summary: str, about: str = "", token: bool = True) -> Schema:
    described = [route for route in routes if route.described]
    components = _components(described)
    parameters = {route.query.__name__ for route in described if route.query}
    statuses = sorted({status for status, _ in base.CODES.values()})
    paths: dict[str, Schema] = {}
    for route in described:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, token=token)
    info = {"title": title, "summary": summary, "version": __version__}
    return {
        "openapi": "3.1.0",
        "info": info | {"description": about} if about else info,
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in parameters},
            "responses": {str(status): _refusal(status) for status in statuses},
            **({"securitySchemes": SCHEMES} if token else {}),
        },
    }


def about() -> str:
    return ABOUT + "\n".join(f"- `{code}` ({status}): {meaning}" for code, (status, meaning) in base.CODES.items())


def _components(routes: Sequence[Route]) -> dict[str, Schema]:
    sent = [kind for route in routes for kind in (route.query, route.body) if kind is not None]
    given = [base.Error, *(route.gives for route in routes if _is_struct(route.gives))]
    requests, responses = _schemas(sent), _schemas(given)
    for name in responses.keys() - requests.keys():
        _require_all(responses[name])
    for schema in requests.values():
        _leave_out_null(schema)
    found = dict(sorted((responses | requests).items()))
    for name, value in _examples().items():
        if name in found:
            found[name]["examples"] = [value]
    return found


def _schemas(kinds: Sequence[Any]) -> dict[str, Schema]:
    _, found = msgspec.json.schema_components(kinds, schema_hook=_hook, ref_template="#/components/schemas/{name}")
    return {name: _portable(schema) for name, schema in found.items()}


def _hook(_: type) -> Schema:
    # Types of our own are read from text.
    return {"type": "string"}


def _is_struct(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, msgspec.Struct)


def _portable(schema: Any) -> Any:
    r"""Without what only Python writes, `\Z` in patterns, and with the type of enumerations."""
    if isinstance(schema, list):
        return [_portable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _portable(value) for key, value in schema.items()}
    if "enum" in found:
        found["type"] = "string"
    if isinstance(found.get("pattern"), str):
        found["pattern"] = found["pattern"].replace(r"\Z", "$")
    return found


def _require_all(schema: Schema) -> None:
    """A response has all fields and no others; one that may be left out has no default."""
    if "properties" in schema:
        required = schema.get("required", [])
        schema["required"] = [
            name for name, field in schema["properties"].items() if name in required or "default" in field
        ]
        schema["additionalProperties"] = False
    for field in schema.get("properties", {}).values():
        field.pop("default", None)


def _leave_out_null(schema: Schema) -> None:
    """That a field is null when it is left out says nothing."""
    for field in schema.get("properties", {}).values():
        if field.get("default", ...) is None:
            del field["default"]


def _examples() -> dict[str, Any]:
    found = {kind.__name__: msgspec.to_builtins(value, str_keys=True) for kind, value in base.EXAMPLES.items()}
    return found | {f"Page_{name}_": {"items": [value], "next": None} for name, value in found.items()}


def _operation(route: Route, *, token: bool) -> Schema:
    noun = route.path.split("/")[2]
    operation: Schema = {
        "tags": [TAGS.get(noun, noun)],
        "summary": route.name.replace("_", " ").title(),
        "operationId": route.name,
    }
    if route.about:
        operation["description"] = route.about
    if token:
        operation["security"] = [{"HTTPBearer": []}]
    if parameters := list(_parameters(route)):
        operation["parameters"] = parameters
    if route.accepts is not None:
        operation["requestBody"] = {"required": True, "content": route.accepts}
    elif route.body is not None:
        operation["requestBody"] = {"required": not route.may_lack_body, "content": _json(route.body)}
    content: Content = route.sends or (_json(route.gives) if _is_struct(route.gives) else NOTHING)
    # How a request may be refused once its path and method are right.
    refusals = {400, 401, 403, 408, 413, 500, 503}
    refusals |= {404} if route.method != "GET" or "{" in route.path else set()
    refusals |= {409} if route.method != "GET" or route.path.endswith("/stream") else set()
    operation["responses"] = {str(route.status): {"description": "Successful Response", "content": content}} | {
        str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(refusals)
    }
    return operation


def _json(kind: Any) -> Content:
    [schema], _ = msgspec.json.schema_components([kind], schema_hook=_hook, ref_template="#/components/schemas/{name}")
    return {"application/json": {"schema": schema}}


def _parameters(route: Route) -> Iterator[Schema]:
    for where, kind in (("path", route.parts), ("query", route.query)):
        if kind is None:
            continue
        schema = _schemas([kind])[kind.__name__]
        _leave_out_null(schema)
        for name, each in schema.get("properties", {}).items():
            about = {"description": each.pop("description")} if "description" in each else {}
            yield {"name": name, "in": where, "required": name in schema.get("required", ()), **about, "schema": each}
    for header in (*(CHANGE_HEADERS if route.changes else ()), *route.headers):
        yield {"in": "header", "required": False, **header}


def _refusal(status: int) -> Schema:
    meant = {code: meaning for code, (each, meaning) in base.CODES.items() if each == status}
    shown = {
        code: {"value": {"error": {"code": code, "message": meaning, "facts": {}}}} for code, meaning in meant.items()
    }
    schema = {"$ref": "#/components/schemas/Error"}
    return {
        "description": " ".join(meant.values()),
        "content": {"application/json": {"schema": schema, "examples": shown}},
    }
