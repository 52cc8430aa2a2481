"""One request of somebody who is signed in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from starlette.datastructures import ImmutableMultiDict
from starlette.responses import HTMLResponse, RedirectResponse, Response

from forenotice.control.api import KEY
from forenotice.control.limits import ConcurrencyLimit, Refusals, TokenLimits
from forenotice.control.responses import status_of
from forenotice.core import errors
from forenotice.core.roles import Access, Need
from forenotice.core.selectors import Selector
from forenotice.portal import forms, responses
from forenotice.portal.renderer import Renderer
from forenotice.service.calls import Call
from forenotice.service.service import Service
from forenotice.service.tokens import Caller
from forenotice.views import base

M = TypeVar("M", bound=base.Request)

GUESTS_AT = "http://169.254.169.254"


@dataclass(frozen=True, slots=True, kw_only=True)
class Portal:
    """What all pages share."""

    service: Service
    rendering: Renderer
    limits: TokenLimits
    """Limits per token, shared with the API."""
    refusals: Refusals
    expensive: ConcurrencyLimit
    """Those who plan a rollout take turns, with those who ask the API for a plan."""
    polled: Callable[[str], datetime | None] = lambda _: None
    """When a VM last polled, as far as this process knows."""
    guests_at: str = GUESTS_AT
    """Where guests find their documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    portal: Portal
    caller: Caller
    path: Mapping[str, str]
    """The parts of the path that have names."""
    query: ImmutableMultiDict[str, str]
    form: ImmutableMultiDict[str, str]
    at: str
    """The path with its query, as it was asked for."""
    origin: str
    digest: str
    form_token: str
    """What our forms bring back."""
    position: int
    """The journal's newest, before the page looked at anything."""
    cookie: str
    """The name of the one with the message that is shown once."""
    is_allowed: Callable[[], bool]
    """Whether the session is still valid, for answers that take their time."""
    is_connected: Callable[[], bool]
    """Whether the client is still connected."""
    message: str = ""

    @property
    def service(self) -> Service:
        return self.portal.service

    @property
    def access(self) -> Access:
        return self.caller.access

    @property
    def seen(self) -> Selector | None:
        """Whose things may be shown; None: everybody's."""
        return self.caller.access.scopes

    @property
    def now(self) -> datetime:
        return self.service.clock.now()

    def may(self, need: Need | str) -> bool:
        return self.access.may(Need(need))

    def chosen(self, name: str) -> list[str]:
        """All values of a field that is given several times."""
        return self.form.getlist(name)

    def call(self) -> Call:
        """A form is sent once, however often its button is pressed."""
        reason = base.require_reason(self.form.get("reason", "").strip())
        return Call(
            actor=self.caller.actor,
            token_id=self.caller.id,
            key=self._key(),
            digest=self.digest,
            origin=self.origin,
            reason=reason,
            access=self.access,
            is_connected=self.is_connected,
        )

    def _key(self) -> str | None:
        key = self.form.get("form_key")
        if key and not KEY.fullmatch(key):
            raise errors.RefusedError("the form's key cannot be read: open the page again")
        return key or None

    def asked(self, model: type[M], values: Mapping[str, Any]) -> M:
        """What the API would take in the same words."""
        return forms.asked(model, values)

    def page(
        self, template: str, status: int = 200, refusal: errors.ForenoticeError | None = None, **context: Any
    ) -> Response:
        """`refusal` is why a form on the page was not accepted."""
        if refusal:
            status = status_of(refusal)
        context.setdefault("error", refusal.message if refusal else "")
        text = self.portal.rendering.page(template, visit=self, **context)
        answer = HTMLResponse(text, status)
        if self.message:
            responses.delete_cookie(answer, self.cookie)
        return answer

    def go(self, path: str, message: str = "") -> Response:
        """To another page, which tells once what was done."""
        answer = RedirectResponse(path, 303)
        if message:
            responses.set_message(answer, self.cookie, message)
        return answer


def local(path: str, otherwise: str = "/") -> str:
    """A path of ours, and nothing that leads elsewhere."""
    sound = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and len(path) <= 2000
    return path if sound else otherwise


Answering = Callable[[PageRequest], Response]
Missing = Callable[[PageRequest, errors.NotFoundError], Response]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    method: str
    path: str
    needs: Need
    answer: Answering
    expensive: bool
    """Expensive: one at a time, together with those of the API."""
    missing: Missing | None
    """The page for what does not exist."""


class Pages:
    def __init__(self, missing: Missing | None = None) -> None:
        self.declared: list[Declared] = []
        self._missing = missing

    def get(self, path: str, *, needs: Need, expensive: bool = False) -> Callable[[Answering], Answering]:
        return self._declare("GET", path, needs, expensive=expensive)

    def post(self, path: str, *, needs: Need) -> Callable[[Answering], Answering]:
        """Only with a form that one of our own pages had."""
        return self._declare("POST", path, needs)

    def _declare(
        self, method: str, path: str, needs: Need, *, expensive: bool = False
    ) -> Callable[[Answering], Answering]:
        def declare(answer: Answering) -> Answering:
            declared = Declared(
                method=method, path=path, needs=needs, answer=answer, expensive=expensive, missing=self._missing
            )
            self.declared.append(declared)
            return answer

        return declare
