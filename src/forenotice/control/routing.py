"""What the routes share: how they are made, what they say of themselves, and lists page by page."""

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import AfterValidator, BaseModel, StringConstraints
from starlette.responses import Response
from starlette.routing import BaseRoute

from forenotice.control import models
from forenotice.control.documented import Error
from forenotice.core import errors
from forenotice.core.roles import Need

F = TypeVar("F", bound=Callable[..., object])

PREFIX = "/v1"
SCHEME = HTTPBearer(auto_error=False, description="A token that `forenotice token create` made.")
"""Only tells the API's description; the gate is what enforces it."""

LIMIT = 100
LARGEST_PAGE = 1000

# Ids and filters match exactly; what could never match is refused before it reaches a database.
Word = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
# They are written as they were made, and read in any case.
Id = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9-]+$"), AfterValidator(str.lower)]
Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="How many at most.")]
After = Annotated[Word | None, Query(description="What `next` was in the page before, of the same sort.")]
_PATTERN = "Names or patterns with commas between them: `rack1-*,!rack1-07`."
Pattern = Annotated[
    str, StringConstraints(max_length=1000), models.several(models.PATTERN, 1000), Query(description=_PATTERN)
]
HostPattern = Annotated[
    str,
    StringConstraints(max_length=1000),
    models.several(models.HOST_PATTERN, 1000),
    Query(description="Names, patterns or labels with commas between them: `rack1-*,!rack1-07`, `label:rack=r1`."),
]
ScopePattern = Annotated[
    str, StringConstraints(max_length=1000), models.several(models.SCOPE_PATTERN, 1000), Query(description=_PATTERN)
]
Live = Annotated[bool | None, Query(description="Only those that have not ended, or only those that have.")]


class Paging(TypedDict):
    """Which part of a list is wanted."""

    after: str | None
    limit: int
    descending: bool


_SORT = Query(description="What the list is sorted by; `-` before it turns it round.")


async def _by_name(
    after: After = None, limit: Limit = LIMIT, sort: Annotated[Literal["name", "-name"], _SORT] = "name"
) -> Paging:
    return {"after": after, "limit": limit, "descending": sort == "-name"}


async def _by_age(
    after: After = None,
    limit: Limit = LIMIT,
    sort: Annotated[Literal["created_at", "-created_at"], _SORT] = "created_at",
) -> Paging:
    return {"after": after, "limit": limit, "descending": sort == "-created_at"}


async def _newest_first(
    after: After = None,
    limit: Limit = LIMIT,
    sort: Annotated[Literal["created_at", "-created_at"], _SORT] = "-created_at",
) -> Paging:
    return {"after": after, "limit": limit, "descending": sort == "-created_at"}


ByName = Annotated[Paging, Depends(_by_name)]
ByAge = Annotated[Paging, Depends(_by_age)]
NewestFirst = Annotated[Paging, Depends(_newest_first)]


class _Sent(Request):
    """Whose body is JSON that UTF-8 can hold: no half of a surrogate pair, which no answer and no database takes."""

    async def json(self) -> Any:
        body = await self.body()
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            json.loads(body)  # Says where it is no JSON at all.
            raise


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(_Sent(request.scope, request.receive))

        return read


def router(tag: str, *, prefix: str = PREFIX, token: bool = True) -> APIRouter:
    refusals: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": Error, "description": "Refused; nothing has changed."},
        "5XX": {"model": Error, "description": "Failed; after 503 try again."},
    }
    dependencies = [*([Depends(SCHEME)] if token else []), Depends(_known_query)]
    return APIRouter(prefix=prefix, tags=[tag], dependencies=dependencies, responses=refusals, route_class=_Route)


async def _known_query(request: Request) -> None:
    """What is misspelt or given twice is refused rather than passed over: a `dryrun` would otherwise be none."""
    needs = request.scope["route"].dependant
    known = sorted(
        name for each in (needs, *needs.dependencies) for field in each.query_params for name in _names(field)
    )
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            right = f"known are {', '.join(known)}" if known else "there is nothing to give here"
            raise errors.RefusedError(f"{name[:80]} in the query is not known: {right}")
        if times > 1:
            raise errors.RefusedError(f"{name} in the query is given twice: give it once")


def _names(field: Any) -> Iterable[str]:
    """Of one parameter, or of all that a model takes together."""
    kind = field.field_info.annotation
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    return kind.model_fields if is_model else (field.alias,)


def needs(need: Need) -> Callable[[F], F]:
    """Declare what whoever asks must be granted. The gate refuses everybody where nothing is declared."""

    def declare(function: F) -> F:
        function.needs = need  # type: ignore[attr-defined]
        return function

    return declare


def need_of(route: BaseRoute) -> Need | None:
    return getattr(getattr(route, "endpoint", None), "needs", None)


def says(model: type[BaseModel], status: int = 200) -> dict[int | str, dict[str, Any]]:
    """Describe what comes back, without checking it a second time."""
    return {status: {"model": model}}


def operation_id(route: APIRoute) -> str:
    return route.name
