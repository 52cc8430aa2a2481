"""What is wrong with a scenario is said with its line and column, and with what would be right."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forenotice.core.fleet import Listening, ScopeKind
from forenotice.core.operations import Kind
from forenotice.emulator.scenarios import format as actions
from forenotice.emulator.scenarios import reader
from forenotice.emulator.scenarios.format import Origin, ScenarioError, Until, Vm
from forenotice.settings.values import Span

WHOLE = """\
title = "Everything"
description = "All that there is."
timing = "documented"
vms = ["web-0", { name = "web-1", update_domain = 1 }]
resources = ["web-0"]
as = "web-1"
group = "placement-group"
listening = "auto"
seed = 3
repeat = "forever"

[[step]]
announce = "host-update"
id = "update"
resources = ["web-1"]
notice = "15m"
takes = "90s"
description = "Soon."
duration = 9

[[step]]
at = "1m"
wait = ["5m", "15m"]

[[step]]
wait_for = "update"
until = "approved"
at_most = "20m"

[[step]]
fault = "clock-skew"
amount = "-5m"
lasts = "1m"
times = 2
on = "polls"

[[step]]
repeat = 2
[[step.step]]
choose = 1
[[step.step.step]]
frozen = "5s"
[[step.step.step]]
cancel = "update"
"""


def test_a_scenario_is_read_whole() -> None:
    scenario = reader.read(WHOLE, "whole.toml", name="whole")
    assert (scenario.name, scenario.title, scenario.description) == ("whole", "Everything", "All that there is.")
    assert (scenario.timing, scenario.seed, scenario.repeat) == (Origin.DOCUMENTED, 3, "forever")
    assert scenario.vms == (Vm(name="web-0"), Vm(name="web-1", update_domain=1))
    assert (scenario.resources, scenario.caller) == (("web-0",), "web-1")
    assert (scenario.group, scenario.listening) == (ScopeKind.PLACEMENT_GROUP, Listening.AUTO)
    announce, wait, wait_for, fault, repeat = (step.action for step in scenario.steps)
    assert announce == actions.AnnounceAction(
        announce=Kind.HOST_UPDATE,
        id="update",
        resources=("web-1",),
        notice=Span(minutes=15),
        takes=Span(seconds=90),
        description="Soon.",
        duration=9,
    )
    assert isinstance(wait, actions.WaitAction)
    assert (wait.at, wait.wait.least, wait.wait.most) == (Span(minutes=1), Span(minutes=5), Span(minutes=15))
    assert wait_for == actions.WaitForAction(wait_for="update", until=Until.APPROVED, at_most=Span(minutes=20))
    assert isinstance(fault, actions.FaultAction)
    assert (fault.amount, fault.lasts, fault.times, fault.on) == (-Span(minutes=5), Span(minutes=1), 2, "polls")
    assert repeat == actions.RepeatAction(repeat=2)
    (choice,) = scenario.steps[-1].steps
    assert choice.action == actions.ChooseAction(choose=1)
    assert [(step.action, step.path) for step in choice.steps] == [
        (actions.FrozenAction(frozen=Span(seconds=5)), ("step", 4, "step", 0, "step", 0)),
        (actions.CancelAction(cancel="update"), ("step", 4, "step", 0, "step", 1)),
    ]


def test_what_is_left_out_has_a_default() -> None:
    scenario = reader.read('title = "t"\nvms = ["b", "a"]\n[[step]]\nannounce = "restart"\n', "my.toml")
    assert (scenario.name, scenario.timing, scenario.seed, scenario.repeat) == ("my.toml", Origin.OURS, 0, 1)
    assert (scenario.resources, scenario.caller) == (("b", "a"), "b")
    assert (scenario.group, scenario.listening) == (ScopeKind.AVAILABILITY_SET, Listening.ALWAYS)


HEAD = 'title = "t"\nresources = ["web-0"]\n'
STEP = '[[step]]\nannounce = "restart"\nid = "a"\n'
WAIT = '[[step]]\nwait = "1s"\n'
KINDS = f"announce in the scenario must be one of {', '.join(Kind)}"
TWICE = "[[step]]\nrepeat = 999\n[[step.step]]\nrepeat = 2"
FAILURE = STEP.replace("restart", "hardware-failure")
BAD = [
    # Not TOML
    ("x\n", "3:2: this is not TOML: expected '=' after a key in a key/value pair"),
    ("x = 1\nx = 2\n", "4:6: this is not TOML: cannot overwrite a value"),
    # Keys
    (f'vmss = ["a"]\n{WAIT}', "3:1: there is no key 'vmss'; did you mean 'vms'?"),
    (f"zzz = 1\n{WAIT}", "3:1: there is no key 'zzz'; there are title, "),
    (f'vms = ["web-0", {{ name = "b", update = 1 }}]\n{WAIT}', "3:31: there is no key 'update'; did you mean"),
    (f"vms = [{{ update_domain = 1 }}]\n{WAIT}", "3:8: the key 'name' is missing"),
    ('[[step]]\nwait = "1s"\nuntil = "gone"\n', "5:1: there is no key 'until'; there are at, wait"),
    (
        '[[step]]\nrepeat = 2\nsteps = 1\n[[step.step]]\nwait = "1s"',
        "5:1: there is no key 'steps'; did you mean 'step",
    ),
    # Steps
    ("", "1:1: there are no steps: begin each with [[step]]"),
    ("[[step]]\nrepeat = 2\n", "3:1: there are no steps: begin each with [[step.step]]"),
    ('[step]\nwait = "1s"\n', "3:1: begin each step with [[step]], in two brackets"),
    ("step = 1\n", "3:1: begin each step with [[step]], in two brackets"),
    ('[[step]]\nat = "1s"\n', "3:1: the step does not say what to do: give one of announce, wait, "),
    ('[[step]]\nanounce = "restart"\n', "4:1: there is no step 'anounce'; did you mean 'announce'?"),
    ('[[step]]\nwait = "1s"\ncancel = "a"\n', "5:1: a step does one thing: begin another [[step]] for 'cancel', after"),
    ("[[step]]\nrepeat = 2\n[[step.step]]\nwiat = 1\n", "6:1: there is no step 'wiat'; did you mean 'wait'?"),
    # Types and values
    (f"seed = 1.5\n{WAIT}", "3:1: seed in the scenario must be an integer, not a number"),
    (f'repeat = "never"\n{WAIT}', "3:1: repeat in the scenario must be"),
    (f"[[step]]\nrepeat = 10001\n[[step.step]]\n{WAIT[9:]}", "4:1: repeat in the scenario must be at most 10000"),
    (f'group = "standalone"\n{WAIT}', "3:1: group in the scenario must be one of availability-set, placement-group,"),
    (f'vms = ["a", {{ name = "b", update_domain = 1000 }}]\n{WAIT}', "3:27: vms[1].update_domain in the scenario must"),
    ('[[step]]\nannounce = "rebot"\n', "4:1: announce in the scenario must be one of restart, redeploy, "),
    ('[[step]]\nannounce = "reboot"\n', f"4:1: {KINDS}: did you mean restart or host-reboot?"),
    ('[[step]]\nannounce = "Freeze"\n', f"4:1: {KINDS}: did you mean host-update or live-migration?"),
    (
        '[[step]]\nannounce = "restart"\nresources = ["web-0",\n 1]\n',
        "6:2: resources[1] in the scenario must be",
    ),
    (
        f'{STEP}[[step]]\nwait_for = "a"\nuntil = "over"\n',
        "8:1: until in the scenario must be one of approved",
    ),
    (f"title2 = 1\nseed = {'9' * 90}\n{WAIT}", "3:1: there is no key 'title2'; did you mean 'title'?"),
    # Durations
    ("[[step]]\nwait = 2020-01-01\n", '4:1: 2020-01-01 is not a duration: give one such as "30s", "5m" or "2h"'),
    ("[[step]]\nwait = [true, 07:32:00]\n", "4:1: true is not a duration: give one such as"),
    ('[[step]]\nwait = "5 minutes"\n', "4:1: '5 minutes' is not a duration: give one such as"),
    ('[[step]]\nwait = ["5m"]\n', "4:1: a random wait is a list of the shortest and the longest, such as"),
    ('[[step]]\nwait = ["5m", "1m"]\n', "4:1: a random wait is a list of the shortest and the longest, such as"),
    ('[[step]]\nannounce = "restart"\nnotice = "400d"\n', "5:1: '400d' is too long: give at most 366d"),
    # Faults
    ('[[step]]\nfault = "emtpy-body"\n', "4:1: there is no fault 'emtpy-body'; did you mean 'empty-body'?"),
    ('[[step]]\nclear = "nothing"\n', "4:1: there is no fault 'nothing'; there are "),
    ('[[step]]\nfault = "latency"\namount = "-2s"\n', "5:1: the amount of latency cannot be negative"),
    ('[[step]]\nfault = "reset"\non = "mondays"\n', "5:1: on in the scenario must be one of polls, approvals, all"),
    ('[[step]]\nfault = "latency"\nlasts = "0s"\n', "5:1: a fault cannot last no time: give a duration such as 30s"),
    (
        '[[step]]\nfault = "frozen"\nlasts = "20m"\namount = "1s"\n',
        "5:1: frozen lasts for its amount: give one",
    ),
    ('[[step]]\nfrozen = "1h"\n', "4:1: the amount of frozen is too long: give at most 10m"),
    # Names
    (f'vms = ["a", "a"]\n{WAIT}', "3:13: two VMs are called 'a'"),
    (f'vms = ["a", {{ name = "b c" }}]\n{WAIT}', "3:15: 'b c' is not a VM name: 1 to 64 letters"),
    (f'vms = ["web-O"]\n{WAIT}', "2:14: there is no VM 'web-0'; did you mean 'web-O'?"),
    (f'as = "db"\n{WAIT}', "3:1: there is no VM 'db'; there are web-0"),
    ('[[step]]\nannounce = "restart"\nresources = ["web-1"]\n', "5:14: there is no VM 'web-1'; did you mean 'web-0'?"),
    ('[[step]]\nannounce = "restart"\nresources = ["web-0", "web-0"]\n', "5:23: 'web-0' is named twice"),
    # Labels
    (f"{STEP}{STEP}", "8:1: the label 'a' is given twice: choose another"),
    ('[[step]]\ncancel = "a"\n', "4:1: there is no event 'a'; there are none"),
    (f'{STEP}[[step]]\napprove = "b"\n', "7:1: there is no event 'b'; there are a"),
    (f'[[step]]\nwait_for = "a"\n{STEP}', "4:1: 'a' is not certain to have been announced by then"),
    (
        f'[[step]]\nchoose = 1\n{STEP.replace("step", "step.step")}[[step]]\ncancel = "a"\n',
        "9:1: 'a' is not certain",
    ),
    # What can never be
    (f'{FAILURE}[[step]]\ncancel = "a"\n', "7:1: 'a' is Started at once: it cannot be cancelled"),
    (f'{FAILURE}[[step]]\napprove = "a"\n', "7:1: 'a' is Started at once: nobody can approve it"),
    (f'{FAILURE}[[step]]\nwait_for = "a"\nuntil = "approved"\n', "7:1: 'a' is Started at once: nobody can approve it"),
    ('[[step]]\nannounce = "hardware-failure"\nnotice = "1m"\n', "5:1: hardware fails without notice: leave this out"),
    ('[[step]]\nchoose = 2\n[[step.step]]\nwait = "1s"\n', "4:1: 2 steps cannot be chosen from 1"),
    # Sizes
    (f"{TWICE}\n[[step.step.step]]\n{WAIT[9:]}", "3:1: one round plays more"),
    (f"vms = {['vm-' + str(n) for n in range(1001)]}\n{WAIT}", "3:1: there are 1001 VMs: at most 1000"),
]


@pytest.mark.parametrize(("body", "said"), BAD)
def test_a_mistake_is_refused_where_it_is(body: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        reader.read(HEAD + body, "my.toml")
    assert refused.value.message.startswith(f"my.toml:{said}")
    line, column = (int(number) for number in said.split(":")[:2])
    assert refused.value.facts == {"source": "my.toml", "line": line, "column": column}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WAIT, "my.toml:1:1: the key 'title' is missing"),
        (f'title = "t"\n{WAIT}', 'my.toml:1:1: say which VMs there are, such as resources = ["web-0"]'),
        (
            f'title = """\n[[step]]\nnonsense = 1"""\nvms = [\r\n "a",\r\n "a"]\n{WAIT}',
            "my.toml:6:2: two VMs are called 'a'",
        ),
        ("x = " + "[" * 5000, "my.toml:1:105: this is nested too deeply"),
        ("# [\nx = [']',\n" + "{ a = [" * 5000, "my.toml:3:350: this is nested too deeply"),
        (f"{HEAD}seed = {'9' * 5000}\n", "my.toml:3:8: this number has too many digits"),
        (f"# {'9' * 5000}\nx = '{'9' * 5000}'\ny = [0x{'9' * 5000}, -{'9_' * 5000}9]", "my.toml:3:5010: this number"),
        ("#" * 300_000, "my.toml is too large for a scenario: at most 256 KiB"),
        (
            HEAD + "".join(f"[[{'.'.join(['step'] * n)}]]\nrepeat = 1\n" for n in range(1, 10)),
            "my.toml:19:1: steps are nested too deeply: at most 8",
        ),
    ],
)
def test_a_text_that_is_no_scenario_is_refused(text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        reader.read(text, "my.toml")
    assert refused.value.message.startswith(said)


PIECES = ("[[step]]", "[step]", "announce", '"restart"', "vms", "name", *'={}[],1\n"#')


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES)).map(" ".join))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    with suppress(ScenarioError):
        reader.read(HEAD + text, "my.toml")


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
