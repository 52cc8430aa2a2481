"""The page Tokens: made, shown once, rotated, revoked."""

import re

import msgspec
import pytest
from tests.portal.running import Answer, Portal

from forenotice.core import errors
from forenotice.service import calls, history, tokens
from forenotice.store.journal import JournalFilter

ASKED = {"name": "deploy-bot", "role": "platform", "scopes": "", "expires_in": "90d", "reason": "for CI"}
TOKEN = re.compile(r"fn_[\w-]{43}")


def shown(answer: Answer) -> str:
    [secret] = set(TOKEN.findall(answer.html))
    return str(secret)


def one(portal: Portal, name: str) -> dict[str, str]:
    [found] = [token for token in tokens.list_all(portal.service).items if token.name == name]
    return dict(msgspec.to_builtins(found))


def test_a_token_is_made_and_shown_once(portal: Portal) -> None:
    visitor = portal.visitor()
    fields = {**visitor.hidden("/tokens"), **ASKED}
    answer, again = (visitor.send("/tokens", fields) for _ in range(2))
    assert (answer.status, again.status) == (201, 201)
    secret = shown(answer)
    assert tokens.authenticate(portal.service, secret).name == "deploy-bot"
    answer.shows("Copy it now. It is not shown again")
    assert answer.headers["cache-control"] == "no-store"
    assert secret not in f"{answer.headers} {visitor.cookies}"
    assert TOKEN.findall(again.html) == []
    again.shows("The form was sent twice", f'href="/tokens/{one(portal, "deploy-bot")["id"]}/revoke"')
    listed = visitor.get("/tokens")
    listed.lacks(secret)
    listed.shows("deploy-bot Rotate deploy-bot … Revoke deploy-bot … platform all anywhere valid 20")
    [entry] = history.page(portal.service, JournalFilter(action="token.created", by="operator:admin")).items
    assert (entry.data["name"], entry.reason) == ("deploy-bot", "for CI")
    asked = {"name": "shop", "role": "tenant", "scopes": "web,vm:db", "networks": "10.0.0.0/8, ::1"}
    shown(visitor.post("/tokens", {**ASKED, **asked, "expires_in": "never"}, on="/tokens", status=201))
    visitor.get("/tokens").shows(
        "shop Rotate shop … Revoke shop … tenant web,vm:db 10.0.0.0/8, ::1/128 valid never never"
    )


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"name": "a b"}, 400, "name"),
        ({"name": "admin"}, 409, "there is already a token"),
        ({"role": "emperor"}, 400, "role"),
        ({"role": "tenant"}, 400, "a tenant's token is for some scopes"),
        ({"scopes": "web-*"}, 400, "the role platform is for all scopes"),
        ({"expires_in": "soon"}, 400, "is not a duration"),
        ({"reason": "a\u202eb"}, 400, "a reason is at most"),
    ],
)
def test_what_is_wrong_is_told_beside_the_form_as_it_was_filled(
    unchanged: Portal, fields: dict[str, str], status: int, said: str
) -> None:
    answer = unchanged.visitor().post("/tokens", {**ASKED, **fields}, on="/tokens", status=status)
    answer.shows(said, '<p class="refused" role="alert">', f'value="{fields.get("name", "deploy-bot")}"')
    assert re.search(r'<input id="name"[^>]* autofocus', answer.html)
    assert TOKEN.findall(answer.html) == []
    assert [token.name for token in tokens.list_all(unchanged.service).items] == ["admin"]


def test_revoking_asks_first(portal: Portal) -> None:
    bot = portal.token_of("viewer", name="bot")
    visitor, place = portal.visitor(), f"/tokens/{one(portal, 'bot')['id']}/revoke"
    visitor.get("/tokens").shows(f'href="{place}"')
    asked = visitor.get(place)
    asked.shows("Revoke the token bot?")
    asked.lacks("You are signed in with this token")
    assert tokens.authenticate(portal.service, bot)
    assert visitor.post(place, {"reason": "gone"}, on=place).location == "/tokens"
    listed = visitor.get("/tokens")
    listed.shows("The token bot is revoked.", "bot viewer all anywhere revoked 20")
    listed.lacks(f'href="{place}"')
    visitor.get(place).shows("It is revoked already")
    visitor.post(place, on="/tokens", status=404)
    own = f"/tokens/{one(portal, 'admin')['id']}/revoke"
    visitor.get(own).shows("You are signed in with this token")
    visitor.post(own, on=own)
    assert visitor.get("/tokens", 303).location.startswith("/sign-in")


def test_many_are_shown_page_by_page(portal: Portal) -> None:
    for number in range(101):
        tokens.create(portal.service, calls.SYSTEM, name=f"bot-{number:03}", role="viewer")
    visitor = portal.visitor()
    first = visitor.get("/tokens")
    [onward] = re.findall(r'href="(/tokens\?after=[^"]+)"', first.html)
    names = [re.findall(r'<th scope="row">([\w-]+)', page.html) for page in (first, visitor.get(onward))]
    assert names == [[f"bot-{number:03}" for number in range(100, 0, -1)], ["bot-000", "admin"]]
    visitor.get(f"/tokens?after={one(portal, 'admin')['id']}").shows("There are no older tokens.")
    visitor.get("/tokens?after=ghost", 400)
    visitor.get("/tokens/ghost/revoke", 404).shows("There is no token 'ghost'")


def test_a_token_is_rotated(portal: Portal) -> None:
    bot = portal.token_of("viewer", name="bot")
    visitor, place = portal.visitor(), f"/tokens/{one(portal, 'bot')['id']}/rotate"
    visitor.get("/tokens").shows(f'href="{place}"')
    visitor.get(place).shows("Give the token bot a new secret?")
    made = visitor.post(place, {"overlap": "1h", "reason": "spring"}, on=place, status=200)
    made.shows("The token bot has a new secret")
    assert tokens.authenticate(portal.service, bot) == tokens.authenticate(portal.service, shown(made))
    at_once = visitor.post(place, {"overlap": "0s"}, on=place, status=200)
    for secret in (bot, shown(made)):
        with pytest.raises(errors.UnauthorizedError):
            tokens.authenticate(portal.service, secret)
    assert tokens.authenticate(portal.service, shown(at_once)).name == "bot"
    visitor.post(place, {"overlap": "30d"}, on=place, status=400).shows("give 0s to 7d")
    tokens.revoke(portal.service, calls.SYSTEM, one(portal, "bot")["id"])
    visitor.get(place).shows("cannot be rotated any more")
