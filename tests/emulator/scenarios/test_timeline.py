"""Pictures are drawn from a rehearsal, in a hundred columns."""

from time import process_time

import pytest

from forenotice.emulator import command
from forenotice.emulator.scenarios import catalogue, preview, reader
from forenotice.emulator.scenarios.format import Scenario


def scenario(body: str) -> Scenario:
    return reader.read(f'title = "t"\nresources = ["web-0", "web-1"]\n{body}', "my.toml")


def test_a_reboot() -> None:
    assert preview.timeline(catalogue.load("reboot")) == [
        "  Reboot  WestNO_0  ├─────────────── Scheduled ───────────────┾━━━━━━━━━ Started ━━━━━━━━━┥",
        "                    ╵             ╵             ╵             ╵             ╵             ╵",
        "                    0             5             10            15            20            25 min",
    ]


def test_a_cancelled_one_beside_faults() -> None:
    body = """
[[step]]
fault = "latency"
[[step]]
fault = "reset"
times = 2
[[step]]
announce = "host-update"
id = "x"
resources = ["web-1"]
[[step]]
wait = "4m"
[[step]]
frozen = "2m"
[[step]]
wait = "4m"
[[step]]
cancel = "x"
"""
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


def test_born_started_and_over_at_once() -> None:
    line, *_ = preview.timeline(scenario('[[step]]\nannounce = "hardware-failure"\ntakes = "1m"\n'))
    assert line.split("  ")[-1].startswith("┝━━━")
    line, *_ = preview.timeline(scenario('[[step]]\nannounce = "restart"\nid = "x"\n[[step]]\ncancel = "x"\n'))
    assert line == "  Reboot  web-0, web-1  ✕"


def test_many_lanes_and_long_names_fit() -> None:
    body = '[[step]]\nrepeat = 30\n[[step.step]]\nannounce = "restart"\n'
    names = ("a" * 64, "b" * 64)
    lines = preview.timeline(scenario(body).on(names))
    assert all(len(line) <= preview.WIDTH for line in lines)
    assert lines[0].startswith(f"  Reboot  {'a' * 26} and 1 more  ├")
    assert lines[20] == "  and 10 lanes more"
    assert preview.timeline(scenario(body).on(names[:1]))[0].startswith(f"  Reboot  {'a' * 25}…  ├")


def test_what_a_quiet_scope_leaves_out_is_not_drawn() -> None:
    body = """
listening = "auto"
[[step]]
announce = "restart"
id = "x"
[[step]]
wait = "1m"
[[step]]
cancel = "x"
"""
    line, *_ = preview.timeline(scenario(body))
    assert ("┝━" in line, "✕" in line) == (True, False)


def test_for_ever_is_one_round_and_says_so() -> None:
    body = 'repeat = "forever"\n[[step]]\nannounce = "restart"\nid = "x"\n[[step]]\nwait_for = "x"\n'
    first, *_, last = preview.timeline(scenario(body))
    assert (first.count("┥"), last) == (1, "  and so on, for ever")


def test_a_scenario_without_events_has_a_scale() -> None:
    assert len(preview.timeline(scenario('[[step]]\nwait = "1m"\n'))) == 2


def test_the_catalogue_is_shown_whole_and_quickly(capsys: pytest.CaptureFixture[str]) -> None:
    began = process_time()
    assert command.main(["--list"]) == 0
    text = capsys.readouterr().out
    assert process_time() - began < 0.5
    assert [line.split(" ")[0] for line in text.splitlines() if line[:1].isalpha()][1:] == catalogue.names()
    assert all(len(line) <= preview.WIDTH for line in text.splitlines())
    assert all(catalogue.load(name).description in text for name in catalogue.names())
