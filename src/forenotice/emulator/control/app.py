"""/v1/emulator: the routes, what they do, and the application that checks a request before it reaches one."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from forenotice.control import openapi, requests, responses
from forenotice.control.router import Handler, Route, Router, respond
from forenotice.core import errors
from forenotice.core.explanations import Explanation
from forenotice.core.operations import Event
from forenotice.emulator import active_faults, faults
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.request_log import LoggedRequest
from forenotice.emulator.scenarios import catalogue, preview, reader
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.simulation import Announcement
from forenotice.service.views import explanation
from forenotice.settings.spans import Span
from forenotice.views import base
from forenotice.views import emulator as views
from forenotice.views.base import Id, Word
from forenotice.views.emulator import (
    Advance,
    EventPage,
    NewEndpoint,
    NewEvent,
    NewFault,
    Page,
    Play,
    ScenarioSummary,
    ScenarioText,
    State,
)
from forenotice.views.maintenance import EventExplanation

T = TypeVar("T")

PREFIX = "/v1/emulator"
DESCRIPTION = f"{PREFIX}/openapi.json"
LARGEST = 1024 * 1024
BY = "operator"
"""Who approves in place of the guests."""


class Controller:
    """The emulator as it is controlled over HTTP."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.endpoints: dict[str, str] = {}
        """That were opened, by the VM that callers are there."""
        self.own: dict[str, Scenario] = {}
        """The scenario that was played last of those that are not in the catalogue, by its key."""
        self.remember()

    def play(self, wanted: Play, *, paused: bool | None = None) -> Scenario:
        """`paused` stops the clock or lets it run; None leaves it as it is."""
        if set(wanted.scenario) & {"=", "\n"}:
            scenario = reader.read(wanted.scenario, wanted.source, name=Path(wanted.source).stem)
        else:
            scenario = catalogue.load(wanted.scenario)
        if wanted.resources:
            scenario = scenario.on(wanted.resources)
        if wanted.seed is not None:
            scenario = replace(scenario, seed=wanted.seed)
        scenario = preview.check(scenario)
        if paused is not None:
            (self.emulator.pause if paused else self.emulator.resume)()
        self.emulator.play(scenario)
        self.remember()
        return scenario

    def remember(self) -> None:
        """Keep the scenario that is played, so that it can be played again."""
        player = self.emulator.player
        if player is not None and (key := key_of(player.scenario)) not in catalogue.names():
            self.own = {key: player.scenario}

    def announce(self, wanted: NewEvent) -> Event:
        return self.emulator.announce(
            Announcement(
                kind=views.KINDS[wanted.kind.lower()],
                resources=wanted.resources or (self.emulator.as_vm,),
                notice=_span(wanted.notice),
                takes=_span(wanted.takes),
                description=wanted.description,
                duration=wanted.duration_seconds,
            )
        )

    def switch_on(self, wanted: NewFault) -> active_faults.ActiveFault:
        amount, lasts = _span(wanted.amount, faults.Amount), _span(wanted.lasts)
        return self.emulator.switch_on(wanted.name, amount=amount, on=wanted.on, times=wanted.times, lasts=lasts)

    def advance(self, wanted: Advance) -> None:
        span = _span(wanted.by)
        assert span is not None
        self.emulator.advance(span)

    def event(self, event_id: str) -> Event:
        return self.emulator.change(lambda _: self.emulator.simulation.event(event_id))

    def explain(self, event_id: str) -> Explanation:
        """With the requests of guests that were refused since it was announced: they may be why nobody approves it."""
        found = self.emulator.change(lambda now: self.emulator.simulation.explain(event_id, now))
        refusals = self.emulator.requests.refusals(self.event(event_id).created_at)
        if not found.waiting_for or not refusals:
            return found
        return replace(found, sentences=(*found.sentences, f"{refusals.removeprefix('; ').rstrip('.')}."))

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
    """Its name, or the name of its file if it is named as one of the catalogue but differs from it."""
    name = scenario.name
    if name in catalogue.names() and scenario.text.content != catalogue.load(name).text.content:
        return f"{name}.toml"
    return name


# Views


def _state(controller: Controller) -> State:
    emulator = controller.emulator
    return emulator.change(
        lambda now: State(
            now=now,
            paused=emulator.clock.stands,
            speed=emulator.timing.speed,
            endpoint=f"http://{emulator.address}",
            as_vm=emulator.as_vm,
            vms=[views.Vm(name=vm.name, update_domain=vm.update_domain) for vm in emulator.simulation.vms],
            incarnation=emulator.simulation.scope.incarnation,
            scenario=_played(emulator),
            events=[_event(each) for each in emulator.simulation.live],
            faults=[_active(each) for each in emulator.faults.active],
            requests=len(emulator.requests),
        )
    )


def _played(emulator: Emulator) -> views.PlayedScenario | None:
    player = emulator.player
    if player is None:
        return None
    return views.PlayedScenario(
        name=player.scenario.name,
        title=player.scenario.title,
        seed=player.scenario.seed,
        done=player.done,
        waiting_for=player.waiting_for,
        events=dict(player.labels),
        deviations=[views.Deviation(at=each.at, message=each.message) for each in player.deviations],
    )


def _event(event: Event) -> views.Event:
    found = {name: getattr(event, name) for name in views.Event.__struct_fields__ if hasattr(event, name)}
    return views.Event(**{**found, "resources": list(event.resources), "duration_seconds": event.duration})


def _active(active: active_faults.ActiveFault) -> views.ActiveFault:
    return views.ActiveFault(
        name=active.fault.name,
        on=active.on,
        amount_seconds=None if active.fault.amount is None else active.amount.total_seconds(),
        times=active.times,
        until=active.until,
    )


def _request(request: LoggedRequest) -> views.LoggedRequest:
    found = {name: getattr(request, name) for name in views.LoggedRequest.__struct_fields__}
    return views.LoggedRequest(
        **{**found, "body": request.body.decode(errors="replace"), "headers": dict(request.headers)}
    )


def _page(found: Sequence[T], page: Page) -> tuple[Sequence[T], int | None]:
    end = page.after + page.limit
    return found[page.after : end], end if end < len(found) else None


def _span(text: str | None, kind: type[Span | faults.Amount] = Span) -> timedelta | None:
    try:
        return None if text is None else kind.read(text)
    except ValueError as error:
        raise errors.RefusedError(str(error)) from None


# Handlers


def show_state(controller: Controller) -> State:
    """Clock, scenario, VMs, live events and active faults."""
    return _state(controller)


def list_scenarios(_: Controller) -> base.Page[ScenarioSummary]:
    """The catalogue, with a timeline of each."""
    return base.Page(items=[catalogue.summary(catalogue.load(name)) for name in catalogue.names()], next=None)


def show_scenario(_: Controller, name: Word) -> ScenarioText:
    """A scenario of the catalogue, with its TOML."""
    found = catalogue.load(name)
    return ScenarioText(**msgspec.structs.asdict(catalogue.summary(found)), toml=found.text.content)


def play_scenario(controller: Controller, body: Play) -> State:
    """Start afresh with a scenario."""
    controller.play(body)
    return _state(controller)


def list_emulated_events(controller: Controller, query: EventPage) -> base.Page[views.Event]:
    """Oldest first."""
    events = controller.emulator.change(lambda _: controller.emulator.simulation.events)
    items, following = _page([event for event in events if query.live in (None, event.status.live)], query)
    return base.Page(items=[_event(each) for each in items], next=following)


def announce_event(controller: Controller, body: NewEvent) -> views.Event:
    """Announce an event now, with any notice; VMs that do not exist are added."""
    return _event(controller.announce(body))


def show_emulated_event(controller: Controller, event_id: Id) -> views.Event:
    """One event."""
    return _event(controller.event(event_id))


def explain_emulated_event(controller: Controller, event_id: Id) -> EventExplanation:
    """Why it waits: for whom, for what, until when."""
    found: EventExplanation = explanation(controller.explain(event_id))
    return found


def approve_emulated_event(controller: Controller, event_id: Id) -> views.Event:
    """Approve in place of its guests."""
    return _event(controller.approve(event_id))


def cancel_emulated_event(controller: Controller, event_id: Id) -> views.Event:
    """Cancel it while it is Scheduled."""
    return _event(controller.cancel(event_id))


def advance_clock(controller: Controller, body: Advance) -> State:
    """Move the clock on; all that is due meanwhile has happened when this responds."""
    controller.advance(body)
    return _state(controller)


def step_clock(controller: Controller) -> State:
    """Move the clock on to the next thing that happens by itself."""
    controller.emulator.step()
    return _state(controller)


def pause_clock(controller: Controller) -> State:
    """Stop the clock until it is moved on or resumed."""
    controller.emulator.pause()
    return _state(controller)


def resume_clock(controller: Controller) -> State:
    """Let the clock go on from where it stands."""
    controller.emulator.resume()
    return _state(controller)


def list_faults(controller: Controller) -> base.Page[views.Fault]:
    """All faults there are, and which of them are on."""
    active = {each.fault.name: _active(each) for each in controller.emulator.faults.active}
    items = [
        views.Fault(
            name=fault.name,
            on=fault.on,
            amount_seconds=None if fault.amount is None else fault.amount.total_seconds(),
            lasts_seconds=None if fault.lasts is None else fault.lasts.total_seconds(),
            symptom=fault.symptom,
            evidence=fault.evidence,
            active=active.get(fault.name),
        )
        for fault in faults.ALL
    ]
    return base.Page(items=items, next=None)


def switch_fault_on(controller: Controller, body: NewFault) -> views.ActiveFault:
    """A fault that is on already begins anew."""
    return _active(controller.switch_on(body))


def switch_all_faults_off(controller: Controller) -> State:
    """Switch every fault off."""
    controller.emulator.switch_off()
    return _state(controller)


def switch_fault_off(controller: Controller, name: Word) -> State:
    """Switch one fault off."""
    controller.emulator.switch_off(name)
    return _state(controller)


def list_requests(controller: Controller, query: Page) -> base.Page[views.LoggedRequest]:
    """The requests of guests with their responses, newest last."""
    items, following = _page(controller.emulator.requests.all, query)
    return base.Page(items=[_request(each) for each in items], next=following)


def open_endpoint(controller: Controller, body: NewEndpoint) -> views.Endpoint:
    """Open another port, at which every caller is this VM."""
    return views.Endpoint(vm=body.vm, endpoint=controller.endpoint_of(body.vm))


def reset_emulator(controller: Controller) -> State:
    """Forget events, scenario, faults and requests; the VMs stay."""
    controller.emulator.reset()
    return _state(controller)


async def describe_emulator(_: Controller) -> responses.JsonResponse:
    title, summary = "forenotice emulator", "Scheduled Events for tests: control the emulator at run time."
    return responses.JsonResponse(openapi.describe(ROUTES, title=title, summary=summary, token=False))


def _route(method: str, path: str, handler: Handler, *, status: int = 200, described: bool = True) -> Route:
    return Route(method, PREFIX + path, None, handler, changes=False, status=status, described=described)


ROUTES = (
    _route("GET", "/state", show_state),
    _route("GET", "/scenarios", list_scenarios),
    _route("GET", "/scenarios/{name}", show_scenario),
    _route("POST", "/play", play_scenario),
    _route("GET", "/events", list_emulated_events),
    _route("POST", "/events", announce_event, status=201),
    _route("GET", "/events/{event_id}", show_emulated_event),
    _route("GET", "/events/{event_id}/explanation", explain_emulated_event),
    _route("POST", "/events/{event_id}/approve", approve_emulated_event),
    _route("POST", "/events/{event_id}/cancel", cancel_emulated_event),
    _route("POST", "/advance", advance_clock),
    _route("POST", "/step", step_clock),
    _route("POST", "/pause", pause_clock),
    _route("POST", "/resume", resume_clock),
    _route("GET", "/faults", list_faults),
    _route("POST", "/faults", switch_fault_on),
    _route("DELETE", "/faults", switch_all_faults_off),
    _route("DELETE", "/faults/{name}", switch_fault_off),
    _route("GET", "/requests", list_requests),
    _route("POST", "/endpoints", open_endpoint),
    _route("POST", "/reset", reset_emulator),
    _route("GET", "/openapi.json", describe_emulator, described=False),
)
ROUTER = Router(ROUTES, DESCRIPTION)


class App:
    """Asks for no token, so it makes sure that no web page of another site can use it."""

    def __init__(self, controller: Controller, *, host: str, pages: ASGIApp, is_page: Callable[[Scope], bool]) -> None:
        """`host` is the address that it listens on."""
        self._controller = controller
        self._pages, self._is_page = pages, is_page
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
        if self._is_page(scope):
            await self._pages(scope, receive, send)
            return
        kind = requests.header(scope["headers"], b"content-type").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" and kind != b"application/json":
            # A form or a page of another site can send anything else without asking first.
            raise errors.RefusedError("send the header Content-Type: application/json")
        body = await requests.read(scope["headers"], receive, LARGEST)
        route = ROUTER.find(scope["method"], scope["path"])
        response = await respond(route, self._controller, scope["path"], scope["query_string"], body)
        await response(scope, receive, send)
