"""/subscriptions: who is told what happens, by webhook."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from forenotice.control.responses import status_of
from forenotice.core import errors
from forenotice.core.journal import SubscriptionState
from forenotice.core.operations import OF_EVENTS
from forenotice.core.roles import Need
from forenotice.delivery import subscriptions
from forenotice.portal.page import PageRequest, Pages
from forenotice.views import subscriptions as views
from forenotice.views import wording

SHOWN = 50
BLANK: Mapping[str, Any] = {"name": "", "url": "", "types": "", "groups": "", "statuses": (), "reason": ""}

TITLES = {
    action: f"{wording.NOUNS[noun]}: {title[:1].lower()}{title[1:]}"
    for noun, actions in wording.kinds().items()
    for action, title in actions.items()
}
"""What an entry is of, as the history's filter calls it."""

pages = Pages()


@pages.get("/subscriptions", needs=Need.OVERSEE)
def list_all(
    visit: PageRequest, given: Mapping[str, Any] = BLANK, error: errors.ForenoticeError | None = None
) -> Response:
    found = subscriptions.list_all(visit.service, limit=subscriptions.MOST, access=visit.access)
    return visit.page(
        "subscriptions.html",
        refusal=error,
        subscriptions=found.items,
        state_of=_state,
        given=given,
        statuses=list(OF_EVENTS),
    )


@pages.post("/subscriptions", needs=Need.MANAGE)
def create(visit: PageRequest) -> Response:
    given = _given(visit)
    try:
        asked = visit.asked(views.NewSubscription, {"name": given["name"], **_wanted(visit, given)})
        made = subscriptions.create(visit.service, visit.call(), asked)
    except (errors.RefusedError, errors.ConflictError) as error:
        return list_all(visit, given, error)
    if asked.secret:
        # Whoever gave it has it already.
        return visit.go(_place(made.name), message=f"The subscription {made.name} is made.")
    # Never by way of another page: it must not be in an address or a cookie.
    return visit.page("subscription_made.html", status=201, subscription=made, secret=made.secret)


@pages.get("/subscriptions/{name}", needs=Need.OVERSEE)
def show(
    visit: PageRequest,
    *,
    given: Mapping[str, Any] | None = None,
    error: errors.ForenoticeError | None = None,
    replay_error: errors.ForenoticeError | None = None,
    tried: views.TestResult | None = None,
) -> Response:
    found = subscriptions.show(visit.service, visit.path["name"], visit.access)
    after = _position(visit.query.get("after", ""))
    waiting = subscriptions.deliveries(visit.service, found.id, after=after, limit=SHOWN)
    refused = error or replay_error
    return visit.page(
        "subscription.html",
        status=status_of(refused) if refused else 200,
        subscription=found,
        state_of=_state,
        deliveries=waiting.items,
        behind=_behind(waiting.items),
        titles=TITLES,
        after=after,
        next_url=f"{_place(found.name)}?after={waiting.next}" if waiting.next else None,
        given=given or _as_given(found),
        error=error.message if error else None,
        replay_error=replay_error.message if replay_error else None,
        tried=tried,
        replay_after=visit.form.get("after", found.position),
        statuses=list(OF_EVENTS),
    )


@pages.post("/subscriptions/{name}", needs=Need.MANAGE)
def change(visit: PageRequest) -> Response:
    given = _given(visit)
    try:
        asked = visit.asked(views.SubscriptionChange, _wanted(visit, given))
        changed = subscriptions.change(visit.service, visit.call(), visit.path["name"], asked)
    except (errors.RefusedError, errors.ConflictError) as error:
        return show(visit, given=given, error=error)
    return visit.go(_place(changed.name), message=f"The subscription {changed.name} is changed.")


@pages.post("/subscriptions/{name}/resume", needs=Need.MANAGE)
def resume(visit: PageRequest) -> Response:
    resumed = subscriptions.resume(visit.service, visit.call(), visit.path["name"])
    return visit.go(_place(resumed.name), message="What waits is sent again now.")


@pages.post("/subscriptions/{name}/replay", needs=Need.MANAGE)
def replay(visit: PageRequest) -> Response:
    try:
        asked = visit.asked(views.Replay, {"after": _number(visit.form.get("after", ""))})
        replayed = subscriptions.replay(visit.service, visit.call(), visit.path["name"], asked.after)
    except (errors.RefusedError, errors.ConflictError) as error:
        return show(visit, replay_error=error)
    message = f"All that it wants is told again, from entry {replayed.position + 1} of the journal on."
    return visit.go(_place(replayed.name), message=message)


@pages.post("/subscriptions/{name}/test", needs=Need.MANAGE)
def test(visit: PageRequest) -> Response:
    name = visit.path["name"]
    tried = subscriptions.test(visit.service, visit.call(), name)
    if not tried.taken:
        return show(visit, tried=tried)
    return visit.go(_place(name), message=f"The receiver took the test message: it answered {tried.status}.")


@pages.get("/subscriptions/{name}/replay", needs=Need.OVERSEE)
@pages.get("/subscriptions/{name}/test", needs=Need.OVERSEE)
def back(visit: PageRequest) -> Response:
    """The addresses of pages that tell what became of a form, when they are asked for again."""
    return visit.go(_place(visit.path["name"]))


@pages.get("/subscriptions/{name}/remove", needs=Need.MANAGE)
def confirm(visit: PageRequest) -> Response:
    found = subscriptions.show(visit.service, visit.path["name"], visit.access)
    return visit.page("subscription_remove.html", subscription=found, state_of=_state)


@pages.post("/subscriptions/{name}/remove", needs=Need.MANAGE)
def remove(visit: PageRequest) -> Response:
    removed = subscriptions.remove(visit.service, visit.call(), visit.path["name"])
    return visit.go("/subscriptions", message=f"The subscription {removed.removed} is removed.")


def _state(found: views.Subscription) -> str:
    return "failing" if found.why and found.status is SubscriptionState.ACTIVE else found.status


def _behind(waiting: Sequence[views.Delivery]) -> dict[int, int | None]:
    """The entry that must be delivered before each: of one lane, only the first is tried."""
    last: dict[str, int] = {}
    found: dict[int, int | None] = {}
    for each in waiting:
        found[each.position] = last.get(each.lane)
        last[each.lane] = each.position
    return found


def _given(visit: PageRequest) -> dict[str, Any]:
    """As it was typed, to be shown again; but for a secret."""
    typed = {field: visit.form.get(field, "").strip() for field in BLANK}
    return {**typed, "statuses": visit.form.getlist("statuses")}


def _as_given(found: views.Subscription) -> dict[str, Any]:
    return {**msgspec.structs.asdict(found), "types": ", ".join(found.types), "reason": ""}


def _wanted(visit: PageRequest, given: Mapping[str, Any]) -> dict[str, Any]:
    """In the API's words; a secret that is left empty is not given."""
    secret = visit.form.get("secret", "").strip()
    return {
        "url": given["url"],
        "types": given["types"].replace(",", " ").split(),
        "groups": given["groups"],
        "statuses": given["statuses"],
        **({"secret": secret} if secret else {}),
    }


def _number(text: str) -> int | str:
    """What is no number is refused in the API's words."""
    return int(text) if text.strip().isdecimal() and text.isascii() and len(text) < 30 else text[:30]


def _position(text: str) -> int:
    found = _number(text[:19])
    return found if isinstance(found, int) and found < 2**63 else 0


def _place(name: str) -> str:
    return f"/subscriptions/{name}"
