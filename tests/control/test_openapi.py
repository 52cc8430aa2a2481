"""The API's description: complete, and true of every answer that schemathesis can provoke."""

import ast
import copy
import inspect
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_type_hints
from uuid import UUID

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.control.running import served

from forenotice.control import app, responses
from forenotice.control.api import ROUTES
from forenotice.control.metrics import Metrics
from forenotice.control.router import Route
from forenotice.core import errors
from forenotice.core.operations import Kind
from forenotice.core.roles import Access, Need
from forenotice.core.rollouts import Options, RolloutSpec
from forenotice.core.selectors import Selector
from forenotice.delivery import subscriptions
from forenotice.service import calls, fleet, maintenance, rollouts, tokens
from forenotice.service.service import Service
from forenotice.store.opener import open_store
from forenotice.views import base
from forenotice.views.subscriptions import NewSubscription

EXAMPLES = 10
MANY = 500
RAISED_HERE = (
    responses.TooLargeError,
    responses.TooSlowError,
    responses.TooManyError,
    responses.MethodNotAllowedError,
)
CHANGING = {"POST", "PATCH", "DELETE"}
LABELS = [f"{route.method} {route.path}" for route in ROUTES if route.described]

DESCRIPTION = app.described()

LEFT_OUT = {"GET /v1/stream": "it does not end"}
CHANGES_NOTHING = {"POST /v1/fleet/diff", "POST /v1/rollouts/plan"}
"""Questions that are too long for a path."""
FITS_ANOTHER = {"/v1/rollouts/plan"}
"""Read, it is a rollout that might have that id."""

GOES_ON_BEHIND_SOMETHING = {f"GET /v1/{noun}" for noun in ("operations", "events", "rollouts", "tokens")}

FLEET = b"""
[hosts.rack1-01]
[hosts.rack1-02]
[groups.web]
kind = "availability-set"
[vms.web-0]
host = "rack1-01"
group = "web"
[vms.db]
host = "rack1-02"
"""


@dataclass(frozen=True)
class Known:
    """What there is, so that not every answer is 404."""

    token: str
    names: dict[str, dict[str, str]]
    """Parts of paths, by the first part."""

    def of(self, label: str) -> dict[str, str]:
        return self.names.get(label.split("/")[2], {})


def _service(path: Path) -> Service:
    store = open_store(f"sqlite:///{path}", migrate=not path.exists())
    return served(store, Metrics(events=dict, guests=dict))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Known]:
    path = tmp_path_factory.mktemp("openapi") / "forenotice.db"
    service = _service(path)
    token = tokens.create(service, calls.SYSTEM, name="admin")
    call = calls.Call(actor="operator:admin", token_id=token.id)
    fleet.apply(service, call, fleet.parse(FLEET, "toml"), prune=False, dry_run=False)
    made = maintenance.schedule(service, call, kind=Kind.RESTART, names=["web-0"], notice=None, reason="")
    [operation] = made.operations
    asked = RolloutSpec(kind=Kind.HOST_UPDATE, hosts="*", options=Options(notice=timedelta(hours=1)))
    rollout = rollouts.start(service, call, asked)
    subscriptions.create(service, call, NewSubscription(name="pager", url="https://hooks.example.com/forenotice"))
    service.store.close()
    names = {
        "hosts": {"name": "rack1-01"},
        "vms": {"name": "web-0"},
        "groups": {"name": "web"},
        "operations": {"operation_id": operation.id},
        "events": {"event_id": operation.events[0].id},
        "rollouts": {"rollout_id": rollout.id},
        "subscriptions": {"name": "pager"},
    }
    return path, Known(str(token.token), names)


@dataclass(frozen=True)
class Api:
    schema: Any
    known: Known

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.known.token}"}

    def operation(self, label: str) -> Any:
        method, path = label.split()
        return self.schema[path][method]


class FromHere:
    """What is asked always, as operations keep what they were first sent to; callers come from an address."""

    served: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.served({**scope, "client": ("127.0.0.1", 1)}, receive, send)


@pytest.fixture(scope="module")
def schema() -> Any:
    described = copy.deepcopy(DESCRIPTION)
    _without_reason(described)
    # The token is ours to send, and what becomes of requests without one has a test of its own.
    config = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
    made = schemathesis.openapi.from_dict(described, config=config)
    made.app = FromHere()
    return made


@pytest.fixture
def api(template: tuple[Path, Known], schema: Any, tmp_path: Path) -> Iterator[Api]:
    """A database for each test, so that it finds the same whatever ran before."""
    path, known = template
    service = _service(Path(shutil.copy(path, tmp_path / "forenotice.db")))
    schema.app.served = app.Api(service, Metrics(events=dict, guests=dict))
    yield Api(schema, known)
    service.store.close()


def _without_reason(described: dict[str, Any]) -> None:
    """No schema can tell what is percent-encoded UTF-8 of printable characters."""
    for methods in described["paths"].values():
        for operation in methods.values():
            kept = [each for each in operation.get("parameters", []) if each["name"] != "forenotice-reason"]
            operation["parameters"] = kept


def _provoke(api: Api, label: str, many: int) -> None:
    operation = api.operation(label)
    # Whether a body makes sense (a window, a notice, what is unique) is more than its schema tells, and so is what a
    # list can go on behind.
    untold = operation.body or label in GOES_ON_BEHIND_SOMETHING
    excluded = [checks.ignored_auth, *([checks.positive_data_acceptance] if untold else [])]

    @seed(5)
    @settings(
        max_examples=many,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode]), st.booleans())
    def hold(case: Any, known: bool) -> None:
        if known and case.meta.generation.mode is GenerationMode.POSITIVE:
            case.path_parameters |= {key: value for key, value in api.known.of(label).items() if key in label}
        case.call_and_validate(headers=api.headers, excluded_checks=excluded)

    hold()


OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in DESCRIPTION["paths"].items()
    for method, operation in methods.items()
}


def test_an_example_of_a_fleet_is_one() -> None:
    content = OPERATIONS["POST /v1/fleet"]["requestBody"]["content"]
    as_json, as_toml = (content[f"application/{kind}"]["example"] for kind in ("json", "toml"))
    assert fleet.parse(as_toml.encode(), "toml") == fleet.parse(json.dumps(as_json).encode(), "json")


def test_nothing_is_left_undescribed() -> None:
    assert DESCRIPTION["openapi"].startswith("3.1")
    assert sorted(OPERATIONS) == sorted(LABELS)
    assert all(path.startswith("/v1/") for path in DESCRIPTION["paths"])
    assert len({operation["operationId"] for operation in OPERATIONS.values()}) == len(OPERATIONS)
    for label, operation in OPERATIONS.items():
        answers = operation["responses"]
        assert operation["summary"], label
        assert len(operation["tags"]) == 1, label
        assert operation["security"] == [{"HTTPBearer": []}], label
        assert {"400", "401", "403", "408", "413", "500", "503"} <= answers.keys(), label
        assert "422" not in answers, label
        [good] = [answer for status, answer in answers.items() if status.startswith("2")]
        if label not in ("GET /v1/stream", "GET /v1/history/export"):
            assert "$ref" in good["content"]["application/json"]["schema"], label


def _models(content: dict[str, Any]) -> Iterator[str]:
    for body in content.values():
        for schema in (body["schema"], *body["schema"].get("anyOf", ())):
            if "$ref" in schema:
                yield schema["$ref"].rpartition("/")[2]


def test_every_body_and_response_has_an_example_and_every_write_an_idempotency_key() -> None:
    found = DESCRIPTION["components"]["schemas"]
    for label, operation in OPERATIONS.items():
        headers = {each["name"].lower() for each in operation.get("parameters", []) if each["in"] == "header"}
        writes = label.split()[0] in CHANGING and label not in CHANGES_NOTHING
        assert ("idempotency-key" in headers) is writes, label
        good = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        for part in (*good, *([operation["requestBody"]] if "requestBody" in operation else ())):
            assert all(found[name].get("examples") for name in _models(part["content"])), label


OF_A_REQUEST = {"service": Service, "call": calls.Call, "seen": Selector | None, "access": Access}
FREE = inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize("route", [each for each in ROUTES if each.of_service], ids=lambda route: route.name)
def test_functions_of_the_service_get_every_parameter_from_the_request(route: Route) -> None:
    """No type checker sees these calls, and a `seen` that is left to its default shows a tenant everything."""
    request = SimpleNamespace(**{name: object() for name in OF_A_REQUEST})
    sample = DESCRIPTION["components"]["schemas"][route.body.__name__]["examples"][0] if route.body else None
    path = re.sub("{name}|{host}", "web", re.sub(r"{\w+_id}", str(UUID(int=1)), route.path))
    work = cast(partial[Any], route.bind(request, path, b"", json.dumps(sample).encode()))
    signature = inspect.signature(work.func)
    bound, types = signature.bind(*work.args, **work.keywords).arguments, get_type_hints(work.func)
    query = get_type_hints(route.query) | {"descending": bool} if route.query else {}
    taken = [name for name, parameter in signature.parameters.items() if parameter.kind is not FREE]
    parts = [value for value in (str(UUID(int=1)), "web") if f"/{value}" in path]
    for name in taken:
        assert name in bound, "it is left to its default"
        if name in OF_A_REQUEST:
            assert (bound[name], types[name]) == (getattr(request, name), OF_A_REQUEST[name])
        elif name in query:
            assert types[name] == query[name]
        elif types[name] is str:
            assert bound[name] == parts.pop()
        else:
            assert type(bound[name]) is types[name] is route.body
    assert not parts
    assert OF_A_REQUEST.keys() - {"service"} & set(taken) or route.need not in (Need.SEE, Need.OPERATE)


def test_every_code_is_listed_with_its_status() -> None:
    kinds: list[type[errors.ForenoticeError]] = [errors.ForenoticeError, *errors.ForenoticeError.__subclasses__()]
    raised = [kind for kind in kinds if kind.__module__ == errors.__name__]
    raised += [errors.OverdueError, *RAISED_HERE]
    listed = {kind.code: responses.status_of(kind()) for kind in raised}
    known = {code: status for code, (status, _) in base.CODES.items()}
    assert known == listed
    for code in known:
        assert f"`{code}`" in DESCRIPTION["info"]["description"]


def _anything(path: str) -> dict[str, str]:
    return dict.fromkeys(re.findall(r"{(\w+)}", path), "x")


def test_other_methods_are_refused_and_those_that_there_are_named(api: Api) -> None:
    for path, methods in DESCRIPTION["paths"].items():
        possible = {method.upper() for method in methods}
        operation = api.operation(f"{min(possible)} {path}")
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - possible:
            answer = operation.Case(method=method, path_parameters=_anything(path)).call(headers=api.headers)
            if path not in FITS_ANOTHER:
                assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed"), path
                assert possible <= set(answer.headers["allow"][0].split(", ")), path


def test_without_a_token_nothing_is_told(api: Api) -> None:
    for label in LABELS:
        answer = api.operation(label).Case(path_parameters=_anything(label)).call(headers={"Idempotency-Key": "k"})
        assert answer.status_code == 401, label
        assert answer.json()["error"]["code"] == "unauthorized", label


@pytest.mark.parametrize("label", [label for label in LABELS if label not in LEFT_OUT])
@pytest.mark.parametrize(
    "many",
    [
        pytest.param(EXAMPLES, marks=pytest.mark.drawn),
        pytest.param(int(os.environ.get("FORENOTICE_SOAK_EXAMPLES", MANY)), marks=pytest.mark.soak),
    ],
)
def test_every_response_is_as_described(api: Api, label: str, many: int) -> None:
    _provoke(api, label, many)


def test_conflicts_tell_the_state_that_conflicts() -> None:
    source = Path(errors.__file__).parents[1]
    for path in (path for room in ("core", "service", "store", "control") for path in (source / room).rglob("*.py")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            if ast.unparse(call.func).endswith("ConflictError"):
                assert call.keywords, f"{path}:{call.lineno}"


def test_the_page_on_the_api_lists_all_codes_and_lists() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for code, (status, meaning) in base.CODES.items():
        assert f"| `{code}` | {status} | {meaning} |" in page
    for label, operation in OPERATIONS.items():
        given = {each["name"] for each in operation.get("parameters", [])}
        if "sort" in given:
            [row] = [line for line in page.splitlines() if line.startswith(f"| `{label.removeprefix('GET ')}` ")]
            assert set(re.findall(r"`(\w+)`", row.split("|")[3])) == given - {"sort", "after", "limit"}, label
