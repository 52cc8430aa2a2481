"""What a handler lives through: everything there is, in seconds, and long enough to do something about it."""

from datetime import timedelta

import pytest

from forenotice.conformance.handlers import situations
from forenotice.conformance.handlers.situations import Situation
from forenotice.emulator import faults
from forenotice.emulator.scenarios import catalogue, preview
from forenotice.emulator.scenarios.format import ClearAction, FaultAction
from forenotice.settings import SettingError

TWO = timedelta(seconds=2)
ALL = situations.find("web-0", TWO)


def test_every_scenario_and_every_fault_is_a_situation_of_its_own_name() -> None:
    own = {"others-event", "failed-preparation"}
    names = {fault.name for fault in faults.ALL}
    assert {situation.name for situation in ALL} == {*catalogue.names(), *names, *own}
    assert len(ALL) == len(catalogue.names()) + len(names) + len(own)
    assert {situation.fault for situation in ALL} - {""} == names


@pytest.mark.parametrize("within", [TWO, timedelta(minutes=5)])
def test_each_is_possible_and_gives_time(within: timedelta) -> None:
    for situation in situations.find("vm_7", within):
        preview.check(situation.scenario)
        assert situation.scenario.caller == "vm_7"
        assert situation.longest <= 10 * within + timedelta(seconds=10), situation.name
        for life in preview.compute(situation.scenario).events:
            if "vm_7" not in life.event.resources or life.started == life.announced:
                continue
            notice = (life.event.not_before - preview.START - life.announced) / situation.speed
            # As long as it may take to notice, and as long again or two seconds to prepare.
            assert notice >= max(timedelta(seconds=4), 2 * within) - timedelta(milliseconds=1), situation.name
            assert notice >= situation.allowed(within) + TWO or not situation.hidden, situation.name


def test_how_long_a_fault_hides_the_event() -> None:
    hidden = {situation.fault: situation.hidden.total_seconds() for situation in ALL if situation.fault}
    assert {fault: seconds for fault, seconds in hidden.items() if seconds != 2} == {
        "slow-first-answer": 4,
        "incarnation-restart": 0,
        "clock-skew": 0,
        "other-key-order": 0,
        "iso-dates": 0,
        "rfc1123-dates": 0,
    }


def test_what_comes_first() -> None:
    assert {situation.name for situation in ALL if situation.begins_first} == {"first-call", "slow-first-answer"}


def test_some_of_them() -> None:
    found: list[Situation] = situations.find("web-0", TWO, ["reset", "reboot"])
    assert [situation.name for situation in found] == ["reboot", "reset"]
    with pytest.raises(SettingError, match="--only: there is no situation 'rebot'; did you mean 'reboot'"):
        situations.find("web-0", TWO, ["rebot"])


@pytest.mark.parametrize("me", ["other-1", "a" * 64, "pool_0", "db-1", "web-1", "7"])
def test_no_other_vm_has_the_same_name(me: str) -> None:
    for situation in situations.find(me, TWO):
        names = [vm.name for vm in situation.scenario.vms]
        assert me in names
        assert len(set(names)) == len(names)
        assert situation.scenario.caller == me


@pytest.mark.parametrize("name", ["error-500", "error-503", "error-410", "error-429", "reset"])
def test_approvals_meet_what_refuses_them(name: str) -> None:
    (found,) = situations.find("web-0", TWO, [name])
    cleared, again = (step.action for step in found.scenario.steps[-2:])
    assert isinstance(cleared, ClearAction)
    assert isinstance(again, FaultAction)
    assert (again.fault, again.on, again.times) == (name, faults.On.APPROVALS, 1)


def test_a_name_that_no_vm_can_have_is_refused() -> None:
    with pytest.raises(SettingError, match="--name: 'a\"b' is not a VM name"):
        situations.find('a"b', TWO)
