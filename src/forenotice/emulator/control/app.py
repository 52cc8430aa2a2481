"""/v1/emulator: the routes, what they do, and the gate before them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import msgspec
from fastapi import Depends, FastAPI, Query, Request
from fastapi import Path as PathParam
from starlette.types import ASGIApp, Receive, Scope, Send

from forenotice import __version__
from forenotice.control import requests, responses
from forenotice.control.errors import install
from forenotice.control.responses import Answer
from forenotice.control.routing import LIMIT, Id, Limit, operation_id, router
from forenotice.core import errors
from forenotice.core.explanations import Explanation
from forenotice.core.operations import Event
from forenotice.emulator import faults
from forenotice.emulator.control import views
from forenotice.emulator.control.views import View
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.scenarios import catalogue, preview, reader
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.simulation import Announcement
from forenotice.service.views import explanation

BY = "operator"
"""Who approves in place of the guests."""


class Controller:
    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.endpoints: dict[str, str] = {}
        """That were opened, by the VM that callers are there."""
        self.own: dict[str, Scenario] = {}
        """The scenario that was played last of those that are not in the catalogue, by its key."""
        self.remember()

    def play(self, asked: views.Play, *, paused: bool | None = None) -> Scenario:
        """With a clock that stands, or goes; None: as it is."""
        scenario = _scenario(asked)
        if paused is not None:
            (self.emulator.pause if paused else self.emulator.resume)()
        self.emulator.play(scenario)
        self.remember()
        return scenario

    def remember(self) -> None:
        """What is played, should it be wanted again."""
        player = self.emulator.player
        if player is not None and (key := key_of(player.scenario)) not in catalogue.names():
            self.own = {key: player.scenario}

    def announce(self, asked: views.NewEvent) -> Event:
        return self.emulator.announce(
            Announcement(
                kind=asked.kind,
                resources=asked.resources or (self.emulator.as_vm,),
                notice=asked.notice,
                takes=asked.takes,
                description=asked.description,
                duration=asked.duration_seconds,
            )
        )

    def event(self, event_id: str) -> Event:
        return self.emulator.change(lambda _: self.emulator.simulation.event(event_id))

    def explain(self, event_id: str) -> Explanation:
        """With what guests were refused since it was announced: that may be why nobody approves it."""
        found = self.emulator.change(lambda now: self.emulator.simulation.explain(event_id, now))
        refusals = self.emulator.requests.refusals(self.event(event_id).created_at)
        if not found.waiting_for or not refusals:
            return found
        return replace(found, sentences=(*found.sentences, f"{refusals.removeprefix('; ').rstrip('.')}."))

    def events(self, *, live: bool | None) -> list[Event]:
        """Oldest first."""
        found = self.emulator.change(lambda _: self.emulator.simulation.events)
        return [event for event in found if live in (None, event.status.live)]

    def approve(self, event_id: str) -> Event:
        self.emulator.approve(event_id, BY)
        return self.event(event_id)

    def cancel(self, event_id: str) -> Event:
        self.emulator.cancel(event_id)
        return self.event(event_id)

    def endpoint_of(self, vm: str) -> str:
        """Where every caller is this VM."""
        if vm not in self.endpoints:
            self.endpoints[vm] = f"http://{self.emulator.open(vm)}"
        return self.endpoints[vm]


def key_of(scenario: Scenario) -> str:
    """By which it is picked: its name, but for a file of somebody's own that is called as one of ours."""
    name = scenario.name
    if name in catalogue.names() and scenario.text.content != catalogue.load(name).text.content:
        return f"{name}.toml"
    return name


def _scenario(asked: views.Play) -> Scenario:
    if set(asked.scenario) & {"=", "\n"}:
        scenario = reader.read(asked.scenario, asked.source, name=Path(asked.source).stem)
    else:
        scenario = catalogue.load(asked.scenario)
    if asked.resources:
        scenario = scenario.on(asked.resources)
    if asked.seed is not None:
        scenario = replace(scenario, seed=asked.seed)
    return preview.check(scenario)


if TYPE_CHECKING:
    from forenotice.emulator.portal.app import Pages

T = TypeVar("T")

PREFIX = "/v1/emulator"
CREATED = 201

Offset = Annotated[int, Query(ge=0, le=2**31, description="What `next` was in the page before.")]
Name = Annotated[str, PathParam(max_length=200)]


async def _controller(request: Request) -> Controller:
    return cast(Controller, request.app.state.controller)


ControllerOf = Annotated[Controller, Depends(_controller)]

routes = router("emulator", prefix=PREFIX, token=False)


def _page(found: Sequence[T], after: int, limit: int) -> tuple[Sequence[T], int | None]:
    end = after + limit
    return found[after:end], end if end < len(found) else None


def _state(controller: Controller) -> View:
    return controller.emulator.change(lambda now: views.state(controller.emulator, now))


@routes.get("/state")
def show_state(controller: ControllerOf) -> Answer:
    """Clock, scenario, VMs, live events and faults that are switched on."""
    return Answer(_state(controller))


@routes.get("/scenarios")
def list_scenarios() -> Answer:
    """The catalogue, with a picture of each."""
    return Answer({"items": [catalogue.summary(catalogue.load(name)) for name in catalogue.names()], "next": None})


@routes.get("/scenarios/{name}")
def show_scenario(name: Name) -> Answer:
    """One of the catalogue, with its TOML."""
    found = catalogue.load(name)
    return Answer({**msgspec.structs.asdict(catalogue.summary(found)), "toml": found.text.content})


@routes.post("/play")
def play_scenario(controller: ControllerOf, asked: views.Play) -> Answer:
    """Start afresh with a scenario."""
    controller.play(asked)
    return Answer(_state(controller))


@routes.get("/events")
def list_emulated_events(
    controller: ControllerOf,
    after: Offset = 0,
    limit: Limit = LIMIT,
    live: Annotated[bool | None, Query(description="Only those that have not ended, or only those that have.")] = None,
) -> Answer:
    """Oldest first."""
    items, following = _page(controller.events(live=live), after, limit)
    return Answer({"items": [views.event(each) for each in items], "next": following})


@routes.post("/events", status_code=CREATED)
def announce_event(controller: ControllerOf, asked: views.NewEvent) -> Answer:
    """Announce one now, with any notice; VMs that are not there are added."""
    return Answer(views.event(controller.announce(asked)), status_code=CREATED)


@routes.get("/events/{event_id}")
def show_emulated_event(controller: ControllerOf, event_id: Id) -> Answer:
    return Answer(views.event(controller.event(event_id)))


@routes.get("/events/{event_id}/explanation")
def explain_emulated_event(controller: ControllerOf, event_id: Id) -> Answer:
    """Why it waits: for whom, for what, until when."""
    return Answer(explanation(controller.explain(event_id)))


@routes.post("/events/{event_id}/approve")
def approve_emulated_event(controller: ControllerOf, event_id: Id) -> Answer:
    """In place of its guests."""
    return Answer(views.event(controller.approve(event_id)))


@routes.post("/events/{event_id}/cancel")
def cancel_emulated_event(controller: ControllerOf, event_id: Id) -> Answer:
    """While it is Scheduled."""
    return Answer(views.event(controller.cancel(event_id)))


@routes.post("/advance")
def advance_clock(controller: ControllerOf, asked: views.Advance) -> Answer:
    """Move the clock on; all that is due meanwhile has happened when this is answered."""
    controller.emulator.advance(asked.by)
    return Answer(_state(controller))


@routes.post("/step")
def step_clock(controller: ControllerOf) -> Answer:
    """Move the clock on to the next thing that happens by itself."""
    controller.emulator.step()
    return Answer(_state(controller))


@routes.post("/pause")
def pause_clock(controller: ControllerOf) -> Answer:
    """The clock stands still until it is moved on or resumed."""
    controller.emulator.pause()
    return Answer(_state(controller))


@routes.post("/resume")
def resume_clock(controller: ControllerOf) -> Answer:
    """The clock goes on from where it stands."""
    controller.emulator.resume()
    return Answer(_state(controller))


@routes.get("/faults")
def list_faults(controller: ControllerOf) -> Answer:
    """All that there are, and which of them are switched on."""
    active = {each.fault.name: each for each in controller.emulator.faults.active}
    items = [views.fault(fault, active.get(fault.name)) for fault in faults.ALL]
    return Answer({"items": items, "next": None})


@routes.post("/faults")
def switch_fault_on(controller: ControllerOf, asked: views.NewFault) -> Answer:
    """One that is on already begins anew."""
    found = controller.emulator.switch_on(
        asked.name, amount=asked.amount, on=asked.on, times=asked.times, lasts=asked.lasts
    )
    return Answer(views.active(found))


@routes.delete("/faults")
def switch_all_faults_off(controller: ControllerOf) -> Answer:
    controller.emulator.switch_off()
    return Answer(_state(controller))


@routes.delete("/faults/{name}")
def switch_fault_off(controller: ControllerOf, name: Name) -> Answer:
    controller.emulator.switch_off(name)
    return Answer(_state(controller))


@routes.get("/requests")
def list_requests(controller: ControllerOf, after: Offset = 0, limit: Limit = LIMIT) -> Answer:
    """What guests have asked and were answered, newest last."""
    items, following = _page(controller.emulator.requests.all, after, limit)
    return Answer({"items": [views.request(each) for each in items], "next": following})


@routes.post("/endpoints")
def open_endpoint(controller: ControllerOf, asked: views.NewEndpoint) -> Answer:
    """Another port, at which every caller is this VM."""
    return Answer({"vm": asked.vm, "endpoint": controller.endpoint_of(asked.vm)})


@routes.post("/reset")
def reset_emulator(controller: ControllerOf) -> Answer:
    """No events, no scenario, no faults, no requests; the VMs stay."""
    controller.emulator.reset()
    return Answer(_state(controller))


LARGEST = 1024 * 1024


class Gate:
    def __init__(self, app: ASGIApp, *, host: str, pages: "Pages") -> None:
        self._app = app
        self._pages = pages
        self._names = {host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await requests.guarded(self._enter, scope, receive, send)
        except asyncio.CancelledError:
            # The server stops, and has waited for long enough.
            ended = errors.UnavailableError("the emulator has ended before this was done: start it anew")
            await responses.refusal(ended)(scope, receive, send)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        requests.require_host(scope["headers"], self._names, "use localhost or an address")
        if self._pages.take(scope):
            await self._pages(scope, receive, send)
            return
        kind = requests.header(scope["headers"], b"content-type").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and kind != b"application/json":
            # What a form or a page of another site can send without being asked first.
            raise errors.RefusedError("send the header Content-Type: application/json")
        body = await requests.read(scope["headers"], receive, LARGEST)
        await self._app(scope, requests.replay(body, receive), send)


def create(emulator: Emulator, host: str) -> tuple[FastAPI, Callable[[], None]]:
    """And what ends requests that never end. `host` is where it was told to listen."""
    from forenotice.emulator.portal.app import Pages

    app = FastAPI(
        title="forenotice emulator",
        summary="Scheduled Events for tests: drive the emulator at run time.",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
    )
    app.state.controller = controller = Controller(emulator)
    pages = Pages(controller)
    app.include_router(routes)
    install(app, routes.routes)
    app.add_middleware(Gate, host=host, pages=pages)
    return app, pages.live.end
