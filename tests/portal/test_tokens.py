"""The page Tokens: made, shown once, revoked; for administrators alone."""

import re

import msgspec
import pytest
from tests.portal.running import HIDDEN, KEY, Answer, Portal, Visitor

from forenotice.core import errors
from forenotice.service import calls, history, tokens

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
    answer = visitor.post("/tokens", ASKED, on="/tokens", status=201)
    secret = shown(answer)
    assert tokens.authenticate(portal.service, secret).name == "deploy-bot"
    assert "Copy it now. It is not shown again" in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert secret not in str(answer.headers)
    assert secret not in str(visitor.cookies)
    listed = visitor.get("/tokens")
    assert secret not in listed.html
    assert "deploy-bot Rotate deploy-bot … Revoke deploy-bot … platform all anywhere valid 20" in listed.text
    [entry] = history.page(portal.service, action="token.created", by="operator:admin").items
    assert (entry.data["name"], entry.reason) == ("deploy-bot", "for CI")


def test_a_form_that_is_sent_twice_makes_one(portal: Portal) -> None:
    visitor = portal.visitor()
    page = visitor.get("/tokens").html
    hidden = {
        "form_token": HIDDEN.search(page)[1],  # type: ignore[index]
        "form_key": KEY.search(page)[1],  # type: ignore[index]
    }
    first, again = (visitor.send("/tokens", {**hidden, **ASKED}) for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert shown(first)
    assert TOKEN.findall(again.html) == []
    assert "The form was sent twice" in again.text
    assert f"/tokens/{one(portal, 'deploy-bot')['id']}/revoke" in again.html


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
    visitor = unchanged.visitor()
    answer = visitor.post("/tokens", {**ASKED, **fields}, on="/tokens", status=status)
    assert said in answer.text
    assert '<p class="refused" role="alert">' in answer.html
    assert re.search(r'<input id="name"[^>]* autofocus', answer.html)
    assert f'value="{fields.get("name", "deploy-bot")}"' in answer.html
    assert TOKEN.findall(answer.html) == []
    assert [token.name for token in tokens.list_all(unchanged.service).items] == ["admin"]


def test_a_tenants_token(portal: Portal) -> None:
    visitor = portal.visitor()
    asked = {
        **ASKED,
        "name": "shop",
        "role": "tenant",
        "scopes": "web,vm:db",
        "expires_in": "never",
        "networks": "10.0.0.0/8, ::1",
    }
    shown(visitor.post("/tokens", asked, on="/tokens", status=201))
    assert (
        "shop Rotate shop … Revoke shop … tenant web,vm:db 10.0.0.0/8, ::1/128 valid never never"
        in visitor.get("/tokens").text
    )


def test_revoking_asks_first(portal: Portal) -> None:
    bot = portal.token_of("viewer", name="bot")
    visitor, place = portal.visitor(), f"/tokens/{one(portal, 'bot')['id']}/revoke"
    assert f'href="{place}"' in visitor.get("/tokens").html
    asked = visitor.get(place)
    assert "Revoke the token bot?" in asked.text
    assert "You are signed in with this token" not in asked.text
    assert tokens.authenticate(portal.service, bot)
    assert visitor.post(place, {"reason": "gone"}, on=place).location == "/tokens"
    listed = visitor.get("/tokens")
    assert "The token bot is revoked." in listed.text
    assert "bot viewer all anywhere revoked 20" in listed.text
    assert f'href="{place}"' not in listed.html
    assert "It is revoked already" in visitor.get(place).text
    assert one(portal, "bot")["revoked_at"]
    visitor.post(place, on="/tokens", status=404)


def test_revoking_ones_own_says_so_and_signs_out(portal: Portal) -> None:
    visitor, place = portal.visitor(), f"/tokens/{one(portal, 'admin')['id']}/revoke"
    assert "You are signed in with this token" in visitor.get(place).text
    visitor.post(place, on=place)
    assert visitor.get("/tokens", 303).location.startswith("/sign-in")


def test_many_are_shown_page_by_page(portal: Portal) -> None:
    for number in range(101):
        tokens.create(portal.service, calls.SYSTEM, name=f"bot-{number:03}", role="viewer")
    visitor = portal.visitor()
    first = visitor.get("/tokens")
    [onward] = re.findall(r'href="(/tokens\?after=[^"]+)"', first.html)
    second = visitor.get(onward)
    names = [re.findall(r'<th scope="row">([\w-]+)', page.html) for page in (first, second)]
    assert names == [[f"bot-{number:03}" for number in range(100, 0, -1)], ["bot-000", "admin"]]


def test_there_is_no_such_token(unchanged: Portal) -> None:
    visitor = unchanged.visitor()
    assert "there is no token 'ghost'" in visitor.get("/tokens/ghost/revoke", 404).text.lower()
    visitor.get("/tokens?after=ghost", 400)
    assert "There are no older tokens." in visitor.get(f"/tokens?after={one(unchanged, 'admin')['id']}").text


@pytest.mark.parametrize(("role", "scopes"), [("viewer", None), ("tenant", "web"), ("platform", None)])
def test_others_may_not_even_look(portal: Portal, role: str, scopes: str | None) -> None:
    visitor, admin = portal.visitor_as(role, scopes), one(portal, "admin")["id"]
    assert 'href="/tokens"' not in visitor.get("/").html
    visitor.get("/tokens", 403)
    visitor.get(f"/tokens/{admin}/revoke", 403)
    assert "this needs the role admin" in visitor.post("/tokens", ASKED, status=403).text.lower()
    visitor.post(f"/tokens/{admin}/revoke", status=403)
    assert [token.name for token in tokens.list_all(portal.service).items] == ["admin", role]
    assert one(portal, "admin")["revoked_at"] is None


def test_a_forged_form_makes_none(portal: Portal) -> None:
    assert portal.visitor().send("/tokens", ASKED).status == 403
    assert Visitor(portal.port).send("/tokens", ASKED).status == 401
    assert len(tokens.list_all(portal.service).items) == 1


def test_a_token_is_rotated(portal: Portal) -> None:
    bot = portal.token_of("viewer", name="bot")
    visitor, place = portal.visitor(), f"/tokens/{one(portal, 'bot')['id']}/rotate"
    assert f'href="{place}"' in visitor.get("/tokens").html
    assert "Give the token bot a new secret?" in visitor.get(place).text
    made = visitor.post(place, {"overlap": "1h", "reason": "spring"}, on=place, status=200)
    assert "The token bot has a new secret" in made.text
    assert tokens.authenticate(portal.service, bot) == tokens.authenticate(portal.service, shown(made))
    at_once = visitor.post(place, {"overlap": "0s"}, on=place, status=200)
    for secret in (bot, shown(made)):
        with pytest.raises(errors.UnauthorizedError):
            tokens.authenticate(portal.service, secret)
    assert tokens.authenticate(portal.service, shown(at_once)).name == "bot"
    assert "give 0s to 7d" in visitor.post(place, {"overlap": "30d"}, on=place, status=400).text
    tokens.revoke(portal.service, calls.SYSTEM, one(portal, "bot")["id"])
    assert "cannot be rotated any more" in visitor.get(place).text
