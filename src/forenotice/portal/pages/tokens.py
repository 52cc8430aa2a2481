"""/tokens: who may do what."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial

from starlette.responses import Response

from forenotice.core import errors
from forenotice.core.roles import Need, Role
from forenotice.portal.page import PageRequest, Pages
from forenotice.service import tokens
from forenotice.views import tokens as views

SHOWN = 100
LASTING = {
    "1d": "in a day",
    "7d": "in a week",
    "30d": "in 30 days",
    "90d": "in 90 days",
    "365d": "in a year",
    "never": "never",
}
OVERLAPS = {"1h": "for an hour", "1d": "for a day", "7d": "for a week", "0s": "not at all"}
BLANK = {"name": "", "role": Role.VIEWER.value, "scopes": "", "networks": "", "expires_in": "90d", "reason": ""}
ROLES = {
    Role.VIEWER: "looks; with scopes, only at those",
    Role.TENANT: "sees its own scopes, and restarts, redeploys and approves there",
    Role.PLATFORM: "everything but tokens",
    Role.ADMIN: "everything",
}

pages = Pages()


@pages.get("/tokens", needs=Need.ADMINISTER)
def show(visit: PageRequest, given: Mapping[str, str] = BLANK, error: errors.ForenoticeError | None = None) -> Response:
    found = tokens.page(visit.service, after=visit.query.get("after"), limit=SHOWN, descending=True)
    return visit.page(
        "tokens.html",
        refusal=error,
        tokens=found.items,
        state_of=partial(_state, now=visit.now),
        next_url=f"/tokens?after={found.next}" if found.next else None,
        given=given,
        roles=ROLES,
        lasting=LASTING,
    )


@pages.post("/tokens", needs=Need.ADMINISTER)
def create(visit: PageRequest) -> Response:
    given = {field: visit.form.get(field, "").strip() for field in BLANK}
    try:
        asked = visit.asked(
            views.NewToken,
            {
                "name": given["name"],
                "role": given["role"],
                "scopes": given["scopes"] or None,
                "expires_in": given["expires_in"],
                "networks": given["networks"].replace(",", " ").split(),
            },
        )
        made = tokens.create(
            visit.service,
            visit.call(),
            **asked.given() | {"expires_in": tokens.lifetime(asked.expires_in)},
        )
    except (errors.RefusedError, errors.ConflictError) as error:
        return show(visit, given, error)
    # Never by way of another page: it must not be in an address or a cookie.
    return visit.page("token_made.html", status=201, token=made, secret=made.token)


@pages.get("/tokens/{token_id}/revoke", needs=Need.ADMINISTER)
def confirm(visit: PageRequest) -> Response:
    token = tokens.show(visit.service, visit.path["token_id"])
    return visit.page("token_revoke.html", token=token, state=_state(token, visit.now))


@pages.post("/tokens/{token_id}/revoke", needs=Need.ADMINISTER)
def revoke(visit: PageRequest) -> Response:
    revoked = tokens.revoke(visit.service, visit.call(), visit.path["token_id"])
    return visit.go("/tokens", message=f"The token {revoked.name} is revoked.")


@pages.get("/tokens/{token_id}/rotate", needs=Need.ADMINISTER)
def offer_rotation(visit: PageRequest) -> Response:
    token = tokens.show(visit.service, visit.path["token_id"])
    return visit.page("token_rotate.html", token=token, state=_state(token, visit.now), overlaps=OVERLAPS)


@pages.post("/tokens/{token_id}/rotate", needs=Need.ADMINISTER)
def rotate(visit: PageRequest) -> Response:
    asked = visit.asked(views.TokenRotation, {"overlap": visit.form.get("overlap", "")})
    made = tokens.rotate(visit.service, visit.call(), visit.path["token_id"], overlap=tokens.span(str(asked.overlap)))
    return visit.page("token_made.html", token=made, secret=made.token)


def _state(token: views.Token, now: datetime) -> str:
    if token.revoked_at:
        return "revoked"
    return "expired" if token.expires_at and token.expires_at <= now else "valid"
