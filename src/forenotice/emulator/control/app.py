"""/v1/emulator: the routes, what they do, and the gate before them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import Meta
from starlette.types import ASGIApp, Receive, Scope, Send

from forenotice.control import openapi, parameters, requests, responses
from forenotice.control.router import Route, Router, respond
from forenotice.core import errors
from forenotice.core.explanations import Explanation
from forenotice.core.operations import Event, Kind
from forenotice.emulator import faults, words
from forenotice.emulator.control import views
from forenotice.emulator.control.views import View
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.scenarios import catalogue, preview, reader
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.simulation import Announcement
from forenotice.service.views import explanation
from forenotice.views import base
from forenotice.views.maintenance import EventExplanation

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
                kind=_kind(asked.kind),
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


def _kind(word: str) -> Kind:
    try:
        return words.kind(word)
    except ValueError as error:
        raise errors.RefusedError(f"kind in the body: {error}") from None


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
DESCRIPTION = f"{PREFIX}/openapi.json"
CREATED = 201

Offset = Annotated[int, Meta(ge=0, le=2**31, description="What `next` was in the page before.")]
ScenarioName = Annotated[str, Meta(max_length=200)]


class Listed(base.Request):
    after: Offset = 0
    limit: parameters.Limit = parameters.LIMIT


class ListedEvents(Listed):
    live: parameters.Live = None


def _page(found: Sequence[T], after: int, limit: int) -> tuple[Sequence[T], int | None]:
    end = after + limit
    return found[after:end], end if end < len(found) else None


def _state(controller: Controller) -> View:
    return controller.emulator.change(lambda now: views.state(controller.emulator, now))


def show_state(controller: Controller) -> View:
    """Clock, scenario, VMs, live events and faults that are switched on."""
    return _state(controller)


def list_scenarios(_: Controller) -> View:
    """The catalogue, with a picture of each."""
    return {"items": [catalogue.summary(catalogue.load(name)) for name in catalogue.names()], "next": None}


def show_scenario(_: Controller, name: ScenarioName) -> View:
    """One of the catalogue, with its TOML."""
    found = catalogue.load(name)
    return {**msgspec.structs.asdict(catalogue.summary(found)), "toml": found.text.content}


def play_scenario(controller: Controller, body: views.Play) -> View:
    """Start afresh with a scenario."""
    controller.play(body)
    return _state(controller)


def list_emulated_events(controller: Controller, query: ListedEvents) -> View:
    """Oldest first."""
    items, following = _page(controller.events(live=query.live), query.after, query.limit)
    return {"items": [views.event(each) for each in items], "next": following}


def announce_event(controller: Controller, body: views.NewEvent) -> View:
    """Announce one now, with any notice; VMs that are not there are added."""
    return views.event(controller.announce(body))


def show_emulated_event(controller: Controller, event_id: base.Id) -> View:
    return views.event(controller.event(event_id))


def explain_emulated_event(controller: Controller, event_id: base.Id) -> EventExplanation:
    """Why it waits: for whom, for what, until when."""
    found: EventExplanation = explanation(controller.explain(event_id))
    return found


def approve_emulated_event(controller: Controller, event_id: base.Id) -> View:
    """In place of its guests."""
    return views.event(controller.approve(event_id))


def cancel_emulated_event(controller: Controller, event_id: base.Id) -> View:
    """While it is Scheduled."""
    return views.event(controller.cancel(event_id))


def advance_clock(controller: Controller, body: views.Advance) -> View:
    """Move the clock on; all that is due meanwhile has happened when this is answered."""
    controller.emulator.advance(body.by)
    return _state(controller)


def step_clock(controller: Controller) -> View:
    """Move the clock on to the next thing that happens by itself."""
    controller.emulator.step()
    return _state(controller)


def pause_clock(controller: Controller) -> View:
    """The clock stands still until it is moved on or resumed."""
    controller.emulator.pause()
    return _state(controller)


def resume_clock(controller: Controller) -> View:
    """The clock goes on from where it stands."""
    controller.emulator.resume()
    return _state(controller)


def list_faults(controller: Controller) -> View:
    """All that there are, and which of them are switched on."""
    active = {each.fault.name: each for each in controller.emulator.faults.active}
    items = [views.fault(fault, active.get(fault.name)) for fault in faults.ALL]
    return {"items": items, "next": None}


def switch_fault_on(controller: Controller, body: views.NewFault) -> View:
    """One that is on already begins anew."""
    found = controller.emulator.switch_on(body.name, amount=body.amount, on=body.on, times=body.times, lasts=body.lasts)
    return views.active(found)


def switch_all_faults_off(controller: Controller) -> View:
    controller.emulator.switch_off()
    return _state(controller)


def switch_fault_off(controller: Controller, name: ScenarioName) -> View:
    controller.emulator.switch_off(name)
    return _state(controller)


def list_requests(controller: Controller, query: Listed) -> View:
    """What guests have asked and were answered, newest last."""
    items, following = _page(controller.emulator.requests.all, query.after, query.limit)
    return {"items": [views.request(each) for each in items], "next": following}


def open_endpoint(controller: Controller, body: views.NewEndpoint) -> View:
    """Another port, at which every caller is this VM."""
    return {"vm": body.vm, "endpoint": controller.endpoint_of(body.vm)}


def reset_emulator(controller: Controller) -> View:
    """No events, no scenario, no faults, no requests; the VMs stay."""
    controller.emulator.reset()
    return _state(controller)


def show_description(_: Controller) -> View:
    return openapi.describe(
        ROUTES,
        title="forenotice emulator",
        summary="Scheduled Events for tests: drive the emulator at run time.",
        token=False,
    )


ROUTES = (
    Route("GET", "/v1/emulator/state", None, show_state, changes=False),
    Route("GET", "/v1/emulator/scenarios", None, list_scenarios, changes=False),
    Route("GET", "/v1/emulator/scenarios/{name}", None, show_scenario, changes=False),
    Route("POST", "/v1/emulator/play", None, play_scenario, changes=False),
    Route("GET", "/v1/emulator/events", None, list_emulated_events, changes=False),
    Route("POST", "/v1/emulator/events", None, announce_event, status=CREATED, changes=False),
    Route("GET", "/v1/emulator/events/{event_id}", None, show_emulated_event, changes=False),
    Route("GET", "/v1/emulator/events/{event_id}/explanation", None, explain_emulated_event, changes=False),
    Route("POST", "/v1/emulator/events/{event_id}/approve", None, approve_emulated_event, changes=False),
    Route("POST", "/v1/emulator/events/{event_id}/cancel", None, cancel_emulated_event, changes=False),
    Route("POST", "/v1/emulator/advance", None, advance_clock, changes=False),
    Route("POST", "/v1/emulator/step", None, step_clock, changes=False),
    Route("POST", "/v1/emulator/pause", None, pause_clock, changes=False),
    Route("POST", "/v1/emulator/resume", None, resume_clock, changes=False),
    Route("GET", "/v1/emulator/faults", None, list_faults, changes=False),
    Route("POST", "/v1/emulator/faults", None, switch_fault_on, changes=False),
    Route("DELETE", "/v1/emulator/faults", None, switch_all_faults_off, changes=False),
    Route("DELETE", "/v1/emulator/faults/{name}", None, switch_fault_off, changes=False),
    Route("GET", "/v1/emulator/requests", None, list_requests, changes=False),
    Route("POST", "/v1/emulator/endpoints", None, open_endpoint, changes=False),
    Route("POST", "/v1/emulator/reset", None, reset_emulator, changes=False),
    Route("GET", DESCRIPTION, None, show_description, changes=False, described=False),
)
ROUTER = Router(ROUTES, DESCRIPTION)

LARGEST = 1024 * 1024


class Control:
    """It asks for no token, so it makes sure that no web page can use it."""

    def __init__(self, controller: Controller, *, host: str, pages: "Pages") -> None:
        self._controller = controller
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
            # Starlette lets the pages refuse a method in their own way only within an application.
            await self._pages({**scope, "app": self}, receive, send)
            return
        kind = requests.header(scope["headers"], b"content-type").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and kind != b"application/json":
            # What a form or a page of another site can send without being asked first.
            raise errors.RefusedError("send the header Content-Type: application/json")
        body = await requests.read(scope["headers"], receive, LARGEST)
        route = ROUTER.find(scope["method"], scope["path"])
        response = await respond(route, self._controller, scope["path"], scope["query_string"], body)
        await response(scope, receive, send)


def create(emulator: Emulator, host: str) -> tuple[ASGIApp, Callable[[], None]]:
    """And what ends requests that never end. `host` is where it was told to listen."""
    from forenotice.emulator.portal.app import Pages

    controller = Controller(emulator)
    pages = Pages(controller)
    return Control(controller, host=host, pages=pages), pages.live.end
