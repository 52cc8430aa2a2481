"""A scenario on other VMs than its own."""

import pytest

from forenotice.emulator.scenarios import reader

STEP = '[[step]]\nannounce = "restart"\n'


@pytest.mark.parametrize(
    ("caller", "names", "expected"),
    [("b", ("x", "y"), "y"), ("b", ("x",), "x"), ("c", ("x",), "c"), ("a", ("x", "y", "z"), "x")],
)
def test_callers_are_who_took_the_place_of_the_caller(caller: str, names: tuple[str, ...], expected: str) -> None:
    text = f'title = "t"\nvms = ["a", "b", "c"]\nresources = ["a", "b"]\nas = "{caller}"\n{STEP}'
    scenario = reader.read(text, "my.toml").on(names)
    assert (scenario.caller, scenario.resources) == (expected, names)
    assert {vm.name for vm in scenario.vms} == {*names, "c"}


def test_each_takes_the_update_domain_of_the_one_before_it() -> None:
    vms = '[{ name = "a", update_domain = 2 }, { name = "b", update_domain = 1 }]'
    scenario = reader.read(f'title = "t"\nvms = {vms}\nresources = ["a", "b"]\n{STEP}', "my.toml")
    assert [(vm.name, vm.update_domain) for vm in scenario.on(("x", "y", "z")).vms] == [("x", 2), ("y", 1), ("z", 2)]
