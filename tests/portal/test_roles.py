"""Every page with every role."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.test_roles import ADMINS, EVERYBODY, MANAGERS, OPERATORS, OVERSEERS, ROLES
from tests.portal.running import Portal, Visitor, running

from forenotice.portal.app import DECLARED

EXPECTED = {
    "GET /": EVERYBODY,
    "GET /act": OPERATORS,
    "POST /act": OPERATORS,
    "GET /events/{id}": EVERYBODY,
    "GET /events/{id}/cancel": OPERATORS,
    "GET /events/{id}/approve": EVERYBODY,
    "POST /events/{id}/approve": OPERATORS,
    "POST /events/{id}/cancel": OPERATORS,
    "GET /operations/{id}": EVERYBODY,
    "POST /operations/{id}/cancel": MANAGERS,
    "GET /fleet": EVERYBODY,
    "GET /vms/{name}": EVERYBODY,
    "GET /vms/{name}/document": EVERYBODY,
    "GET /vms/{name}/policy": EVERYBODY,
    "POST /vms/{name}/policy": MANAGERS,
    "GET /hosts/{name}": OVERSEERS,
    "POST /hosts/{name}/cordon": MANAGERS,
    "POST /hosts/{name}/uncordon": MANAGERS,
    "GET /groups/{name}": EVERYBODY,
    "GET /groups/{name}/policy": EVERYBODY,
    "POST /groups/{name}/policy": MANAGERS,
    "GET /history": EVERYBODY,
    "GET /history/export": EVERYBODY,
    "GET /rollouts": OVERSEERS,
    "GET /rollouts/new": OVERSEERS,
    "GET /rollouts/plan": OVERSEERS,
    "POST /rollouts": MANAGERS,
    "GET /rollouts/{rollout_id}": OVERSEERS,
    "GET /rollouts/{rollout_id}/{verb}": MANAGERS,
    "POST /rollouts/{rollout_id}/{verb}": MANAGERS,
    "GET /subscriptions": OVERSEERS,
    "POST /subscriptions": MANAGERS,
    "GET /subscriptions/{name}": OVERSEERS,
    "POST /subscriptions/{name}": MANAGERS,
    "GET /subscriptions/{name}/remove": MANAGERS,
    "POST /subscriptions/{name}/remove": MANAGERS,
    "GET /subscriptions/{name}/replay": OVERSEERS,
    "POST /subscriptions/{name}/replay": MANAGERS,
    "POST /subscriptions/{name}/resume": MANAGERS,
    "GET /subscriptions/{name}/test": OVERSEERS,
    "POST /subscriptions/{name}/test": MANAGERS,
    "GET /tokens": ADMINS,
    "POST /tokens": ADMINS,
    "GET /tokens/{token_id}/rotate": ADMINS,
    "POST /tokens/{token_id}/rotate": ADMINS,
    "GET /tokens/{token_id}/revoke": ADMINS,
    "POST /tokens/{token_id}/revoke": ADMINS,
}


@pytest.fixture(scope="module")
def visitors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Visitor]]:
    with running(tmp_path_factory.mktemp("roles")) as portal:
        yield {role: _visitor(portal, role, scopes) for role, scopes in ROLES.items()}


def _visitor(portal: Portal, role: str, scopes: str | None) -> Visitor:
    return portal.visitor(portal.token_of(role.partition(" ")[0], scopes, name="a-" + role.replace(" ", "-")))


def test_every_page_is_named_here() -> None:
    assert {f"{declared.method} {declared.path}" for declared in DECLARED} == set(EXPECTED)


def test_every_page_has_a_module_of_its_own_noun() -> None:
    """A page that is written but not declared would answer nobody."""
    pages = Path(__file__).parents[2] / "src/forenotice/portal/pages"
    declared = sum(len(re.findall(r"^@pages\.(?:get|post)\(", path.read_text(), re.M)) for path in pages.glob("*.py"))
    assert declared == len(DECLARED)


@pytest.mark.parametrize("page", EXPECTED)
def test_who_may(visitors: dict[str, Visitor], page: str) -> None:
    method, _, path = page.partition(" ")
    asked = re.sub(r"\{.*?\}", "nobody", path)
    allowed = set()
    for role, visitor in visitors.items():
        token = re.search(r'name="form_token" value="([^"]*)"', visitor.get("/").html)
        assert token
        answer = visitor.ask("GET", asked) if method == "GET" else visitor.send(asked, {"form_token": token[1]})
        if answer.status != 403:
            allowed.add(role)
        assert answer.status < 500, answer.text
    assert allowed == EXPECTED[page]
