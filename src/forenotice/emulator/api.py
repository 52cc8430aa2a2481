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
from forenotice.core import errors, operations
from forenotice.emulator import active_faults, faults
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.request_log import LoggedRequest
from forenotice.emulator.scenarios import catalogue, reader
from forenotice.emulator.scenarios.format import Scenario
from forenotice.emulator.simulation import Announcement
from forenotice.service.views import explanation
from forenotice.settings.values import Span
from forenotice.views import base
from forenotice.views import emulator as views
from forenotice.views.base import Id, Word
from forenotice.views.maintenance import EventExplanation

T = TypeVar("T")
V = TypeVar("V")

PREFIX = "/v1/emulator"
DESCRIPTION = f"{PREFIX}/openapi.json"
LARGEST = 1024 * 1024
BY = "operator"
"""Who approves in place of the guests."""


class Controller:
    """The emulator as it is controlled over HTTP: the handlers of the routes, which the page calls too."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.endpoints: dict[str, str] = {}
        """That were opened, by the VM that callers are there."""
        self.own: dict[str, Scenario] = {}
        """The scenario that was played last of those that are not in the catalogue, by its key."""
        self._remember()

    def show_state(self) -> views.State:
        """Clock, scenario, VMs, live events and active faults."""
        emulator = self.emulator
        return emulator.change(
            lambda now: views.State(
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

    # Scenarios

    def list_scenarios(self) -> base.Page[views.ScenarioSummary]:
        """The catalogue, with a timeline of each."""
        return base.Page(items=[catalogue.summary(catalogue.load(name)) for name in catalogue.names()], next=None)

    def show_scenario(self, name: Word) -> views.ScenarioText:
        """A scenario of the catalogue, with its TOML."""
        found = catalogue.load(name)
        return views.ScenarioText(**msgspec.structs.asdict(catalogue.summary(found)), toml=found.text.content)

    def play_scenario(self, body: views.Play) -> views.State:
        """Start afresh with a scenario."""
        self.play(body)
        return self.show_state()

    def play(self, wanted: views.Play, *, paused: bool | None = None) -> Scenario:
        """`paused` stops the clock or lets it run; None leaves it as it is."""
        if set(wanted.scenario) & {"=", "\n"}:
            scenario = reader.read(wanted.scenario, wanted.source, name=Path(wanted.source).stem)
        else:
            scenario = catalogue.load(wanted.scenario)
        scenario = catalogue.adapted(scenario, wanted.resources, wanted.seed)
        if paused is not None:
            (self.emulator.pause if paused else self.emulator.resume)()
        self.emulator.play(scenario)
        self._remember()
        return scenario

    def _remember(self) -> None:
        """Keep the scenario that is played, so that it can be played again."""
        player = self.emulator.player
        if player is not None and (key := key_of(player.scenario)) not in catalogue.names():
            self.own = {key: player.scenario}

    # Events

    def list_emulated_events(self, query: views.EventPage) -> base.Page[views.Event]:
        """Oldest first."""
        events = self.emulator.change(lambda _: self.emulator.simulation.events)
        return _page([event for event in events if query.live in (None, event.status.live)], query, _event)

    def announce_event(self, body: views.NewEvent) -> views.Event:
        """Announce an event now, with any notice; VMs that do not exist are added."""
        announcement = Announcement(
            kind=views.KINDS[body.kind.lower()],
            resources=body.resources or (self.emulator.as_vm,),
            notice=_span(body.notice),
            takes=_span(body.takes),
            description=body.description,
            duration=body.duration_seconds,
        )
        return _event(self.emulator.announce(announcement))

    def show_emulated_event(self, event_id: Id) -> views.Event:
        """One event."""
        return _event(self.emulator.change(lambda _: self.emulator.simulation.event(event_id)))

    def explain_emulated_event(self, event_id: Id) -> EventExplanation:
        """Why it waits: for whom, for what, until when."""
        emulator = self.emulator
        found = emulator.change(lambda now: emulator.simulation.explain(event_id, now))
        # Requests of guests that were refused since the announcement may be why it is not approved.
        refusals = emulator.requests.refusals(emulator.simulation.event(event_id).created_at)
        if found.waiting_for and refusals:
            found = replace(found, sentences=(*found.sentences, f"{refusals.removeprefix('; ').rstrip('.')}."))
        shown: EventExplanation = explanation(found)
        return shown

    def approve_emulated_event(self, event_id: Id) -> views.Event:
        """Approve in place of its guests."""
        self.emulator.approve(event_id, BY)
        return self.show_emulated_event(event_id)

    def cancel_emulated_event(self, event_id: Id) -> views.Event:
        """Cancel it while it is Scheduled."""
        self.emulator.cancel(event_id)
        return self.show_emulated_event(event_id)

    # The clock

    def advance_clock(self, body: views.Advance) -> views.State:
        """Move the clock on; all that is due meanwhile has happened when this responds."""
        self.emulator.advance(_span(body.by) or timedelta(0))
        return self.show_state()

    def step_clock(self) -> views.State:
        """Move the clock on to the next thing that happens by itself."""
        self.emulator.step()
        return self.show_state()

    def pause_clock(self) -> views.State:
        """Stop the clock until it is moved on or resumed."""
        self.emulator.pause()
        return self.show_state()

    def resume_clock(self) -> views.State:
        """Let the clock go on from where it stands."""
        self.emulator.resume()
        return self.show_state()

    def reset_emulator(self) -> views.State:
        """Forget events, scenario, faults and requests; the VMs stay."""
        self.emulator.reset()
        return self.show_state()

    # Faults, requests, endpoints

    def list_faults(self) -> base.Page[views.Fault]:
        """All faults there are, and which of them are on."""
        active = {each.fault.name: _active(each) for each in self.emulator.faults.active}
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

    def switch_fault_on(self, body: views.NewFault) -> views.ActiveFault:
        """A fault that is on already begins anew."""
        amount, lasts = _span(body.amount, faults.Amount), _span(body.lasts)
        return _active(self.emulator.switch_on(body.name, amount=amount, on=body.on, times=body.times, lasts=lasts))

    def switch_all_faults_off(self) -> views.State:
        """Switch every fault off."""
        self.emulator.switch_off()
        return self.show_state()

    def switch_fault_off(self, name: Word) -> views.State:
        """Switch one fault off."""
        self.emulator.switch_off(name)
        return self.show_state()

    def list_requests(self, query: views.Page) -> base.Page[views.LoggedRequest]:
        """The requests of guests with their responses, newest last."""
        return _page(self.emulator.requests.all, query, _request)

    def open_endpoint(self, body: views.NewEndpoint) -> views.Endpoint:
        """Open another port, at which every caller is this VM."""
        if body.vm not in self.endpoints:
            self.endpoints[body.vm] = f"http://{self.emulator.open(body.vm)}"
        return views.Endpoint(vm=body.vm, endpoint=self.endpoints[body.vm])

    async def describe_emulator(self) -> responses.JsonResponse:
        title, summary = "forenotice emulator", "Scheduled Events for tests: control the emulator at run time."
        return responses.JsonResponse(openapi.describe(ROUTES, title=title, summary=summary, token=False))


def key_of(scenario: Scenario) -> str:
    """Its name, or the name of its file if it is named as one of the catalogue but differs from it."""
    name = scenario.name
    if name in catalogue.names() and scenario.text.content != catalogue.load(name).text.content:
        return f"{name}.toml"
    return name


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


def _event(event: operations.Event) -> views.Event:
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


def _page(found: Sequence[T], page: views.Page, view: Callable[[T], V]) -> base.Page[V]:
    end = page.after + page.limit
    return base.Page(items=[view(each) for each in found[page.after : end]], next=end if end < len(found) else None)


def _span(text: str | None, kind: type[Span | faults.Amount] = Span) -> timedelta | None:
    try:
        return None if text is None else kind.read(text)
    except ValueError as error:
        raise errors.RefusedError(str(error)) from None


def _route(method: str, path: str, handler: Handler, *, status: int = 200, described: bool = True) -> Route:
    return Route(method, PREFIX + path, None, handler, changes=False, status=status, described=described)


ROUTES = (
    _route("GET", "/state", Controller.show_state),
    _route("GET", "/scenarios", Controller.list_scenarios),
    _route("GET", "/scenarios/{name}", Controller.show_scenario),
    _route("POST", "/play", Controller.play_scenario),
    _route("GET", "/events", Controller.list_emulated_events),
    _route("POST", "/events", Controller.announce_event, status=201),
    _route("GET", "/events/{event_id}", Controller.show_emulated_event),
    _route("GET", "/events/{event_id}/explanation", Controller.explain_emulated_event),
    _route("POST", "/events/{event_id}/approve", Controller.approve_emulated_event),
    _route("POST", "/events/{event_id}/cancel", Controller.cancel_emulated_event),
    _route("POST", "/advance", Controller.advance_clock),
    _route("POST", "/step", Controller.step_clock),
    _route("POST", "/pause", Controller.pause_clock),
    _route("POST", "/resume", Controller.resume_clock),
    _route("GET", "/faults", Controller.list_faults),
    _route("POST", "/faults", Controller.switch_fault_on),
    _route("DELETE", "/faults", Controller.switch_all_faults_off),
    _route("DELETE", "/faults/{name}", Controller.switch_fault_off),
    _route("GET", "/requests", Controller.list_requests),
    _route("POST", "/endpoints", Controller.open_endpoint),
    _route("POST", "/reset", Controller.reset_emulator),
    _route("GET", "/openapi.json", Controller.describe_emulator, described=False),
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
