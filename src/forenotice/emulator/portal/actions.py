"""What the forms of the page do: a function each, which returns a sentence for the user."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple

from forenotice.core import errors
from forenotice.emulator.control.app import Controller
from forenotice.emulator.scenarios import catalogue
from forenotice.emulator.scenarios.format import Scenario
from forenotice.portal import forms
from forenotice.portal.forms import Fields
from forenotice.views import emulator as views

STEP_BY_STEP = "step"
A_SECOND = timedelta(seconds=1)


def play(controller: Controller, form: Fields) -> str:
    wanted = {"scenario": form.get("scenario", ""), "resources": _names(form)}
    own = controller.own.get(form.get("scenario", ""))
    if own is not None:
        wanted |= {"scenario": own.text.content, "source": own.text.source}
    paused = form.get("how") == STEP_BY_STEP
    scenario = controller.play(forms.asked(views.Play, wanted), paused=paused)
    if paused:
        return f"{scenario.title} has begun, and the clock stands: press Step for what comes next."
    return f"{scenario.title} has begun."


def step(controller: Controller, _: Fields) -> str:
    before = controller.emulator.clock.now()
    passed = controller.emulator.step() - before
    minutes, seconds = divmod(round(passed.total_seconds()), 60)
    return f"The clock was moved on by {minutes} min {seconds} s, to what came next."


def advance(controller: Controller, form: Fields) -> str:
    controller.advance(forms.asked(views.Advance, {"by": form.get("by", "")}))
    return f"The clock was moved on by {form['by'].strip()}."


def pause(controller: Controller, _: Fields) -> str:
    controller.emulator.pause()
    return "The clock stands: only Step and Advance move it."


def resume(controller: Controller, _: Fields) -> str:
    controller.emulator.resume()
    return "The clock goes on from where it stood."


def reset(controller: Controller, _: Fields) -> str:
    controller.emulator.reset()
    done = "All is reset: no scenario, no events, no faults, no requests. The VMs stay."
    if controller.emulator.clock.ahead < A_SECOND:
        return done
    return f"{done} The clock stays ahead of this machine's: only a new start of the emulator sets it back."


def announce(controller: Controller, form: Fields) -> str:
    given = _given(form, "kind", "notice", "takes", "description") | {"resources": _names(form)}
    event = controller.announce(forms.asked(views.NewEvent, given | _number(form, "duration_seconds")))
    return f"{event.type} of {', '.join(event.resources)} is {event.status}."


def approve(controller: Controller, form: Fields) -> str:
    event = controller.approve(form.get("event", ""))
    return f"{event.type} of {', '.join(event.resources)} was approved in its guests' place: it is {event.status}."


def cancel(controller: Controller, form: Fields) -> str:
    event = controller.cancel(form.get("event", ""))
    return f"{event.type} of {', '.join(event.resources)} was cancelled."


def switch_on(controller: Controller, form: Fields) -> str:
    wanted = forms.asked(views.NewFault, _given(form, "name", "amount", "on", "lasts") | _number(form, "times"))
    return f"{controller.switch_on(wanted).fault.name} is switched on."


def switch_off(controller: Controller, form: Fields) -> str:
    name = form.get("name") or None
    controller.emulator.switch_off(name)
    return f"{name} is switched off." if name else "All faults are switched off."


def open_endpoint(controller: Controller, form: Fields) -> str:
    wanted = forms.asked(views.NewEndpoint, {"vm": form.get("vm", "").strip()})
    return f"Every caller of {controller.endpoint_of(wanted.vm)} is {wanted.vm}."


class Form(NamedTuple):
    act: Callable[[Controller, Fields], str]
    button: Callable[[Fields], str] = lambda _: ""
    """The id of the button that was pressed, or of where it was: keyboard users go on from there."""


FORMS: Mapping[str, Form] = {
    "/play": Form(play, lambda form: "by-step" if form.get("how") == STEP_BY_STEP else "run"),
    "/step": Form(step, lambda _: "step"),
    "/advance": Form(advance, lambda form: f"advance-{form.get('by', '')}"),
    "/pause": Form(pause, lambda _: "go"),
    "/resume": Form(resume, lambda _: "go"),
    "/reset": Form(reset, lambda _: "reset"),
    "/announce": Form(announce, lambda _: "events"),
    "/approve": Form(approve, lambda _: "events"),
    "/cancel": Form(cancel, lambda _: "events"),
    "/fault-on": Form(switch_on, lambda form: f"switch-{form.get('name', '')}"),
    "/fault-off": Form(switch_off, lambda form: f"switch-{form.get('name', '')}"),
    "/endpoint": Form(open_endpoint),
}


def fragment(path: str, form: Fields) -> str:
    """The end of the address to go back to."""
    found = FORMS[path].button(form)
    return f"#{found}" if found and found.replace("-", "").isalnum() and found.isascii() else ""


def scenario(controller: Controller, name: str, resources: tuple[str, ...]) -> Scenario:
    """One to look at before it is played."""
    found = controller.own.get(name) or catalogue.load(name)
    return found.on(resources) if resources else found


def names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _names(form: Fields) -> tuple[str, ...]:
    return names(form.get("resources", ""))


def _given(form: Fields, *fields: str) -> dict[str, object]:
    """What was left empty was not given."""
    return {name: text for name in fields if (text := form.get(name, "").strip())}


def _number(form: Fields, field: str) -> dict[str, object]:
    text = form.get(field, "").strip()
    if not text:
        return {}
    try:
        return {field: int(text)}
    except ValueError:
        raise errors.RefusedError(f"{field.replace('_', ' ')} is a whole number, not {text[:80]!r}") from None
