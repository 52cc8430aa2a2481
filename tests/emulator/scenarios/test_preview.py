"""What is impossible is found before it starts, and where it is written."""

from datetime import timedelta

import pytest

from forenotice.clock import SystemClock
from forenotice.core.timing import Timing
from forenotice.emulator.active_faults import Faults
from forenotice.emulator.player import Player
from forenotice.emulator.scenarios import catalogue, preview, reader
from forenotice.emulator.scenarios.format import Scenario, ScenarioError
from forenotice.emulator.scenarios.preview import PlannedFault
from forenotice.emulator.simulation import Simulation

HEAD = 'title = "t"\nvms = ["a", { name = "b", update_domain = 1 }]\nresources = ["a"]\n'
UPDATE = '[[step]]\nannounce = "host-update"\nid = "x"\nnotice = "15m"\ntakes = "10m"\n'
MINUTE = timedelta(minutes=1)


CANCEL, APPROVE = '[[step]]\ncancel = "x"\n', '[[step]]\napprove = "x"\n'
GONE = '[[step]]\nwait_for = "x"\n'
STARTED, APPROVED = f'{GONE}until = "started"\n', f'{GONE}until = "approved"\n'
IMPOSSIBLE = [
    (f'{UPDATE}[[step]]\nwait = "15m"\n{CANCEL}', "12:1", "'x' is Started by then: it is too late to cancel it"),
    (f"{UPDATE}{GONE}{APPROVE}", "12:1", "'x' is Completed by then: it is too late to approve it"),
    (f"{UPDATE}{STARTED}{APPROVED}", "13:1", "'x' is Started by then: nobody can approve it any more"),
    (
        f"{UPDATE}{CANCEL}[[step]]\nrepeat = 1\n[[step.step]]\n{STARTED[9:]}",
        "14:1",
        "'x' is cancelled by then",
    ),
    ('[[step]]\nannounce = "restart"\nresources = ["a", "b"]\n', "5:1", "a and b are in different update domains"),
    ('[[step]]\nwait = "5m"\n[[step]]\nat = "3m"\nfault = "reset"\n', "8:1", "it came 0:02:00 later than it says"),
    (f'listening = "never"\n{UPDATE}[[step]]\nwait = "8m"\n{CANCEL}', "13:1", ""),
]


@pytest.mark.parametrize(("body", "place", "reason"), IMPOSSIBLE)
def test_what_cannot_be_is_refused(body: str, place: str, reason: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        preview.check(reader.read(HEAD + body, "my.toml"))
    assert refused.value.message.startswith(f"my.toml:{place}: this is impossible: {reason}")


@pytest.mark.parametrize(
    "body",
    [
        'repeat = 10000\n[[step]]\nrepeat = 1000\n[[step.step]]\nwait = "1s"\n',
        f'{UPDATE}[[step]]\nwait = "8m"\n{CANCEL}',
        f'listening = "auto"\n{UPDATE}[[step]]\nwait = "8m"\n{CANCEL}',
        f'{UPDATE}[[step]]\nwait_for = "x"\nuntil = "approved"\n',
        f'{UPDATE}[[step]]\nwait_for = "x"\nuntil = "approved"\nat_most = "5m"\n[[step]]\napprove = "x"\n',
        f'repeat = "forever"\n{UPDATE}[[step]]\nwait_for = "x"\n',
        f'repeat = 100\n{UPDATE}[[step]]\nwait_for = "x"\nuntil = "started"\n',
    ],
)
def test_what_can_be_is_not(body: str) -> None:
    preview.check(reader.read(HEAD + body, "my.toml"))


def test_a_pile_of_events_is_rehearsed_only_so_far() -> None:
    body = '[[step]]\nrepeat = 400\n[[step.step]]\nannounce = "restart"\n'
    lives = preview.compute(reader.read(HEAD + body, "my.toml")).events
    assert (len(lives), min(life.ended for life in lives)) == (400, 25 * MINUTE)
    assert sum(life.started is None for life in lives) > 100


def test_what_is_long_gone_is_too_late_to_cancel() -> None:
    short = '[[step.step]]\nannounce = "restart"\nid = "y"\n[[step.step]]\ncancel = "y"\n'
    body = f'{UPDATE}[[step]]\nrepeat = 600\n{short}[[step]]\nwait = "2h"\n[[step]]\ncancel = "x"\n'
    with pytest.raises(ScenarioError, match="'x' is Completed by then: it is too late to cancel it"):
        preview.check(reader.read(HEAD + body, "my.toml"))


def test_how_far_it_was_rehearsed_is_said() -> None:
    long = 'repeat = 10000\n[[step]]\nrepeat = 1000\n[[step.step]]\nwait = "1s"\n'
    scenario = preview.check(reader.read(HEAD + long, "my.toml"))
    assert scenario.unchecked_from == scenario.steps[0].steps[0]
    simulation = Simulation(now=preview.START, timing=Timing())
    player = Player(scenario, simulation, Faults(SystemClock()), Timing(), preview.START)
    assert [(note.step.action.verb, note.message) for note in player.deviations] == [
        ("wait", "only the steps before it were checked")
    ]
    assert preview.check(reader.read(HEAD + UPDATE, "my.toml")).unchecked_from is None


TOO_LATE = """\
[[{at}step]]
repeat = 1
[[{at}step.step]]
announce = "restart"
id = "y"
[[{at}step.step]]
wait = "1h"
[[{at}step.step]]
cancel = "y"
"""
CHOICE = "[[{at}step]]\nchoose = 1\n[[{at}step.step]]\nwait = '1s'\n"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "body",
    [
        # One of two, and one of two in one of two, of which only the last cannot be.
        CHOICE.format(at="") + TOO_LATE.format(at="step."),
        CHOICE.format(at="") + CHOICE.format(at="step.") + TOO_LATE.format(at="step.step."),
        f'{UPDATE}[[step]]\nwait = ["14m", "16m"]\n[[step]]\ncancel = "x"\n',
        '[[step]]\nwait = ["2m", "9m"]\n[[step]]\nat = "8m"\nwait = "1s"',
    ],
)
def test_what_chance_could_make_impossible_is_refused_with_every_seed(body: str, seed: int) -> None:
    scenario = reader.read(f"seed = {seed}\n{HEAD}{body}", "my.toml")
    with pytest.raises(ScenarioError, match=r"this is impossible( at times, as chance has it)?: "):
        preview.check(scenario)


def test_what_chance_cannot_make_impossible_is_not() -> None:
    body = f'{CHOICE.format(at="")}[[step.step]]\nwait = "2s"\n{UPDATE}[[step]]\nwait = ["1m", "14m"]\n'
    preview.check(reader.read(f'{HEAD}{body}[[step]]\ncancel = "x"\n', "my.toml"))


def test_more_chance_than_can_be_rehearsed_is_rehearsed_only_so_far() -> None:
    body = "".join(f"[[{at}]]\nwait = '1s'\n" * 30 + f"[[{at}]]\nchoose = 1\n" for at in ("step", "step.step"))
    body += "[[step.step.step]]\nwait = '1s'\n" * 30
    assert preview.check(reader.read(HEAD + body, "my.toml")).unchecked_from is not None


def test_faults_are_told_while_they_last() -> None:
    steps = ["fault = 'latency'", "wait = '1m'", "fault = 'reset'\ntimes = 2", "frozen = '9s'", "wait = '1m'"]
    steps += ["clear = 'latency'", "fault = 'stale-document'", "fault = 'slow-first-answer'", "fault = 'error-500'"]
    steps += ["fault = 'empty-body'\nlasts = '5m'", "wait = '1m'", "fault = 'empty-body'\nlasts = '5m'"]
    body = "".join(f"[[step]]\n{step}\n" for step in steps)
    assert preview.compute(reader.read(HEAD + body, "my.toml")).faults == [
        PlannedFault(name="latency", since=0 * MINUTE, until=2 * MINUTE),
        PlannedFault(name="reset", since=MINUTE, until=MINUTE),
        PlannedFault(name="frozen", since=MINUTE, until=1.15 * MINUTE),
        PlannedFault(name="stale-document", since=2 * MINUTE, until=2 * MINUTE + timedelta(seconds=50)),
        PlannedFault(name="slow-first-answer", since=2 * MINUTE, until=4 * MINUTE),
        PlannedFault(name="error-500", since=2 * MINUTE, until=None),
        PlannedFault(name="empty-body", since=2 * MINUTE, until=3 * MINUTE),
        PlannedFault(name="empty-body", since=3 * MINUTE, until=8 * MINUTE),
    ]


# As text


def scenario(body: str) -> Scenario:
    return reader.read(f'title = "t"\nresources = ["web-0", "web-1"]\n{body}', "my.toml")


def test_a_reboot() -> None:
    assert preview.timeline(catalogue.load("reboot")) == [
        "  Reboot  WestNO_0  ├─────────────── Scheduled ───────────────┾━━━━━━━━━ Started ━━━━━━━━━┥",
        "                    ╵             ╵             ╵             ╵             ╵             ╵",
        "                    0             5             10            15            20            25 min",
    ]


def test_a_cancelled_one_beside_faults() -> None:
    announced = 'announce = "host-update"\nid = "x"\nresources = ["web-1"]'
    steps = ['fault = "latency"', 'fault = "reset"\ntimes = 2', announced]
    steps += ['wait = "4m"', 'frozen = "2m"', 'wait = "4m"', 'cancel = "x"']
    body = "".join(f"[[step]]\n{step}\n" for step in steps)
    assert preview.timeline(scenario(body)) == [
        "  Freeze  web-1  ├────────────────────────────── Scheduled ──────────────────────────────✕",
        "  latency        ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒",
        "  reset          ▒",
        "  frozen                                             ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒",
        "                 ╵        ╵        ╵        ╵        ╵        ╵        ╵        ╵        ╵",
        "                 0        1        2        3        4        5        6        7        8 min",
    ]


def test_what_does_not_overlap_shares_a_lane() -> None:
    apart = scenario('repeat = 3\n[[step]]\nannounce = "restart"\nid = "x"\n[[step]]\nwait_for = "x"\n')
    at_once = scenario('repeat = 3\n[[step]]\nannounce = "restart"\n')
    assert [len(preview.timeline(each)) for each in (apart, at_once)] == [3, 5]
    assert preview.timeline(apart)[0].count("┽") == 2


def test_started_at_once_over_at_once_or_nothing() -> None:
    line, *_ = preview.timeline(scenario('[[step]]\nannounce = "hardware-failure"\ntakes = "1m"\n'))
    assert line.split("  ")[-1].startswith("┝━━━")
    cancelled = '[[step]]\nannounce = "restart"\nid = "x"\n[[step]]\n{}cancel = "x"\n'
    line, *_ = preview.timeline(scenario(cancelled.format("")))
    assert line == "  Reboot  web-0, web-1  ✕"
    # Silence has approved it: what comes too late is not drawn.
    line, *_ = preview.timeline(scenario('listening = "auto"\n' + cancelled.format('at = "1m"\n')))
    assert ("┝━" in line, "✕" in line) == (True, False)
    assert len(preview.timeline(scenario('[[step]]\nwait = "1m"\n'))) == 2


def test_many_lanes_and_long_names_fit() -> None:
    body = '[[step]]\nrepeat = 30\n[[step.step]]\nannounce = "restart"\n'
    names = ("a" * 64, "b" * 64)
    lines = preview.timeline(scenario(body).on(names))
    assert all(len(line) <= preview.WIDTH for line in lines)
    assert lines[0].startswith(f"  Reboot  {'a' * 26} and 1 more  ├")
    assert lines[20] == "  and 10 lanes more"
    assert preview.timeline(scenario(body).on(names[:1]))[0].startswith(f"  Reboot  {'a' * 25}…  ├")


def test_for_ever_is_one_round_and_says_so() -> None:
    body = 'repeat = "forever"\n[[step]]\nannounce = "restart"\nid = "x"\n[[step]]\nwait_for = "x"\n'
    first, *_, last = preview.timeline(scenario(body))
    assert (first.count("┥"), last) == (1, "  and so on, for ever")
