"""The scenarios that come with forenotice: their timing, and found by name."""

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from forenotice.core import errors
from forenotice.emulator.scenarios import catalogue, preview
from forenotice.emulator.scenarios.format import Origin, ScenarioError
from forenotice.emulator.scenarios.preview import PlannedEvent

MINUTE = timedelta(minutes=1)


def story(life: PlannedEvent) -> tuple[str, float | None, float]:
    """Its type, and how many minutes it was Scheduled and Started, or until it was cancelled."""
    if life.started is None:
        return life.event.type, None, (life.ended - life.announced) / MINUTE
    return life.event.type, (life.started - life.announced) / MINUTE, (life.ended - life.started) / MINUTE


TIMINGS: dict[str, list[tuple[str, float | None, float]]] = {
    "degraded-hardware": [("Redeploy", 7 * 24 * 60, 10)],
    "first-call": [("Redeploy", 30, 10)],
    "hardware-failure": [("Redeploy", 0, 10)],
    "host-maintenance": [("Freeze", 15, 10)],
    "live-migration": [("Freeze", 15, 5)],
    "maintenance-cancelled": [("Freeze", None, 8)],
    "platform-redeploy": [("Redeploy", 15, 10)],
    "reboot": [("Reboot", 15, 10)],
    "redeploy": [("Redeploy", 15, 10)],
    "rolling-update": [("Freeze", 15, 10)] * 3,
    "scale-set-deletion": [("Terminate", 5, 1)] * 2,
    "second-impact": [("Freeze", 15, 5)],
    "several-vms": [("Reboot", 15, 10)],
    "spot-eviction": [("Preempt", 0.5, 0.5)],
    "two-events": [("Reboot", 15, 10), ("Freeze", 15, 5)],
}
MEASURED = {
    *("live-migration", "host-maintenance", "reboot", "redeploy", "platform-redeploy", "maintenance-cancelled"),
}


def test_there_are_these() -> None:
    assert set(catalogue.names()) == {*TIMINGS, "vanishing-event"}


@pytest.mark.parametrize("name", TIMINGS)
def test_its_timing(name: str) -> None:
    scenario = catalogue.load_any(name)
    assert [story(life) for life in preview.compute(scenario).events] == TIMINGS[name]
    assert (scenario.timing is Origin.MEASURED) == (name in MEASURED)
    assert scenario.title
    assert scenario.description.endswith(".")


def test_what_is_special_about_some() -> None:
    def planned(name: str) -> preview.Preview:
        return preview.compute(catalogue.load(name))

    for name in ("reboot", "redeploy"):
        assert "as requested by authorized user" in planned(name).events[0].event.description
    assert planned("platform-redeploy").events[0].event.description == "Virtual machine has encountered a failure."
    rolling = planned("rolling-update").events
    assert [each.event.update_domain for each in rolling] == [0, 1, 2]
    assert all(before.ended <= after.announced for before, after in pairwise(rolling))
    vanishing = planned("vanishing-event").events
    assert len(vanishing) == 3
    assert all(each.started is None and each.ended - each.announced < timedelta(seconds=1) for each in vanishing)
    one, other = planned("two-events").events
    assert one.announced == other.announced
    assert set(one.event.resources).isdisjoint(other.event.resources)
    (event,) = planned("second-impact").events
    assert [fault.name for fault in planned("second-impact").faults] == ["frozen"] * 2
    assert all(event.started < fault.since < event.ended for fault in planned("second-impact").faults if event.started)
    assert planned("first-call").events[0].event.approved_by == "silence"
    assert [fault.name for fault in planned("first-call").faults] == ["slow-first-answer"]


def test_a_file_is_read_and_rehearsed(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = 'title = "t"\nresources = ["a"]\n[[step]]\nannounce = "restart"\nid = "x"\n[[step]]\ncancel = "x"\n'
    path.write_text(text)
    assert catalogue.load_any(str(path)).name == "mine"
    path.write_text(text + '[[step]]\napprove = "x"\n')
    with pytest.raises(ScenarioError) as refused:
        catalogue.load_any(str(path))
    assert refused.value.message.startswith(f"{path}:9:1: this is impossible: ")


def test_the_seed_that_is_played_is_the_one_rehearsed(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    wait = '[[step]]\nwait = ["1s", "19s"]\n[[step]]\ncancel = "x"\n'
    path.write_text(f'title = "t"\nresources = ["a"]\n[[step]]\nannounce = "restart"\nid = "x"\nnotice = "10s"\n{wait}')
    for seed, said in ((0, "impossible: "), (1, "impossible at times, as chance has it: ")):
        with pytest.raises(ScenarioError, match=said):
            catalogue.load_any(str(path), seed=seed)
    assert catalogue.load_any("vanishing-event", seed=7).seed == 7


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"# a\r\n# \xc3\xbc\xff", ":2:4: this is not UTF-8: the byte 0xff"),
        (b"#" * 300_000, "is too large"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(errors.RefusedError, match=said):
        catalogue.load_any(str(path))


@pytest.mark.parametrize("name", [*TIMINGS, "vanishing-event"])
def test_other_resources_take_the_place_of_its_own(name: str) -> None:
    number = len(catalogue.load(name).resources)
    names = [f"app_{index}" for index in range(number)]
    scenario = catalogue.load_any(name, names)
    assert scenario.caller == "app_0"
    told = {each for life in preview.compute(scenario).events for each in life.event.resources}
    assert told == set(names)


@pytest.mark.parametrize(
    ("name", "resources", "said"),
    [
        ("rolling-update", ["a", "b"], "rolling-update speaks of each of its resources: give 3 names, not 2"),
        ("several-vms", ["a", "a"], "give each resource once"),
        ("reboot", ["not a name"], "is not a VM name"),
        ("hardware-failure", ["db-1"], "has a VM of that name beside its resources"),
    ],
)
def test_resources_that_do_not_fit_are_refused(name: str, resources: list[str], said: str) -> None:
    with pytest.raises(errors.RefusedError, match=said):
        catalogue.load_any(name, resources)
