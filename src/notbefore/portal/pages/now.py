"""The start page: what is about to happen, and why it waits."""

from starlette.responses import Response

from notbefore.core.roles import Need
from notbefore.portal.paths import Pages
from notbefore.portal.visiting import Visit

pages = Pages()


@pages.get("/", needs=Need.SEE)
def show(visit: Visit) -> Response:
    return visit.page("now.html")
