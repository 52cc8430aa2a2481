"""/v1/emulator"""

from collections.abc import Sequence
from typing import Annotated, TypeVar, cast

from fastapi import Depends, Path, Query, Request

from forenotice.control.answers import Answer
from forenotice.control.routing import LIMIT, Id, Limit, router
from forenotice.emulator.control import models, views
from forenotice.emulator.control.driver import Driver
from forenotice.emulator.control.views import View
from forenotice.emulator.faults import table
from forenotice.emulator.scenarios import catalogue, drawing
from forenotice.service.views import explanation

T = TypeVar("T")

PREFIX = "/v1/emulator"
CREATED = 201

Offset = Annotated[int, Query(ge=0, le=2**31, description="What `next` was in the page before.")]
Name = Annotated[str, Path(max_length=200)]


async def _driver(request: Request) -> Driver:
    return cast(Driver, request.app.state.driver)


DriverOf = Annotated[Driver, Depends(_driver)]

routes = router("emulator", prefix=PREFIX, token=False)


def _page(found: Sequence[T], after: int, limit: int) -> tuple[Sequence[T], int | None]:
    end = after + limit
    return found[after:end], end if end < len(found) else None


def _state(driver: Driver) -> View:
    return driver.emulator.change(lambda now: views.state(driver.emulator, now))


@routes.get("/state")
def show_state(driver: DriverOf) -> Answer:
    """Clock, scenario, VMs, live events and faults that are switched on."""
    return Answer(_state(driver))


@routes.get("/scenarios")
def list_scenarios() -> Answer:
    """The catalogue, with a picture of each."""
    return Answer({"items": [drawing.described(catalogue.load(name)) for name in catalogue.names()], "next": None})


@routes.get("/scenarios/{name}")
def show_scenario(name: Name) -> Answer:
    """One of the catalogue, with its TOML."""
    found = catalogue.load(name)
    return Answer({**drawing.described(found), "toml": found.text.content})


@routes.post("/play")
def play_scenario(driver: DriverOf, asked: models.Play) -> Answer:
    """Start afresh with a scenario."""
    driver.play(asked)
    return Answer(_state(driver))


@routes.get("/events")
def list_emulated_events(
    driver: DriverOf,
    after: Offset = 0,
    limit: Limit = LIMIT,
    live: Annotated[bool | None, Query(description="Only those that have not ended, or only those that have.")] = None,
) -> Answer:
    """Oldest first."""
    items, following = _page(driver.events(live=live), after, limit)
    return Answer({"items": [views.event(each) for each in items], "next": following})


@routes.post("/events", status_code=CREATED)
def announce_event(driver: DriverOf, asked: models.NewEvent) -> Answer:
    """Announce one now, with any notice; VMs that are not there are added."""
    return Answer(views.event(driver.announce(asked)), status_code=CREATED)


@routes.get("/events/{event_id}")
def show_emulated_event(driver: DriverOf, event_id: Id) -> Answer:
    return Answer(views.event(driver.event(event_id)))


@routes.get("/events/{event_id}/explanation")
def explain_emulated_event(driver: DriverOf, event_id: Id) -> Answer:
    """Why it waits: for whom, for what, until when."""
    return Answer(explanation(driver.explain(event_id)))


@routes.post("/events/{event_id}/approve")
def approve_emulated_event(driver: DriverOf, event_id: Id) -> Answer:
    """In place of its guests."""
    return Answer(views.event(driver.approve(event_id)))


@routes.post("/events/{event_id}/cancel")
def cancel_emulated_event(driver: DriverOf, event_id: Id) -> Answer:
    """While it is Scheduled."""
    return Answer(views.event(driver.cancel(event_id)))


@routes.post("/advance")
def advance_clock(driver: DriverOf, asked: models.Advance) -> Answer:
    """Move the clock on; all that is due meanwhile has happened when this is answered."""
    driver.emulator.advance(asked.by)
    return Answer(_state(driver))


@routes.post("/step")
def step_clock(driver: DriverOf) -> Answer:
    """Move the clock on to the next thing that happens by itself."""
    driver.emulator.step()
    return Answer(_state(driver))


@routes.post("/pause")
def pause_clock(driver: DriverOf) -> Answer:
    """The clock stands still until it is moved on or resumed."""
    driver.emulator.pause()
    return Answer(_state(driver))


@routes.post("/resume")
def resume_clock(driver: DriverOf) -> Answer:
    """The clock goes on from where it stands."""
    driver.emulator.resume()
    return Answer(_state(driver))


@routes.get("/faults")
def list_faults(driver: DriverOf) -> Answer:
    """All that there are, and which of them are switched on."""
    active = {each.fault.name: each for each in driver.emulator.faults.active}
    items = [views.fault(fault, active.get(fault.name)) for fault in table.ALL]
    return Answer({"items": items, "next": None})


@routes.post("/faults")
def switch_fault_on(driver: DriverOf, asked: models.NewFault) -> Answer:
    """One that is on already begins anew."""
    found = driver.emulator.switch_on(
        asked.name, amount=asked.amount, on=asked.on, times=asked.times, lasts=asked.lasts
    )
    return Answer(views.active(found))


@routes.delete("/faults")
def switch_all_faults_off(driver: DriverOf) -> Answer:
    driver.emulator.switch_off()
    return Answer(_state(driver))


@routes.delete("/faults/{name}")
def switch_fault_off(driver: DriverOf, name: Name) -> Answer:
    driver.emulator.switch_off(name)
    return Answer(_state(driver))


@routes.get("/requests")
def list_requests(driver: DriverOf, after: Offset = 0, limit: Limit = LIMIT) -> Answer:
    """What guests have asked and were answered, newest last."""
    items, following = _page(driver.emulator.requests.all, after, limit)
    return Answer({"items": [views.request(each) for each in items], "next": following})


@routes.post("/endpoints")
def open_endpoint(driver: DriverOf, asked: models.NewEndpoint) -> Answer:
    """Another port, at which every caller is this VM."""
    return Answer({"vm": asked.vm, "endpoint": driver.endpoint_of(asked.vm)})


@routes.post("/reset")
def reset_emulator(driver: DriverOf) -> Answer:
    """No events, no scenario, no faults, no requests; the VMs stay."""
    driver.emulator.reset()
    return Answer(_state(driver))
