"""The systemd units start commands that exist, and give them no more than they need."""

import configparser
import shlex
from pathlib import Path

import pytest

from forenotice import serving
from forenotice.settings import table

PACKAGING = Path(__file__).parents[1] / "packaging"
UNITS = {"forenotice": (["serve"], table.SERVE), "forenotice-edge": (["edge", "run"], table.EDGE)}


def section(unit: str, name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    inside = False
    for line in (PACKAGING / f"{unit}.service").read_text().splitlines():
        if line.startswith("["):
            inside = line == f"[{name}]"
        elif inside and line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_it_is_a_unit_file(unit: str) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.read(PACKAGING / f"{unit}.service")
    assert parser.sections() == ["Unit", "Service", "Install"]


@pytest.mark.parametrize("unit", UNITS)
def test_it_waits_until_the_service_has_given_up(unit: str) -> None:
    assert int(section(unit, "Service")["TimeoutStopSec"][0]) > serving.STOP_SECONDS


@pytest.mark.parametrize("unit", UNITS)
def test_it_starts_a_command_with_settings_that_exist(unit: str) -> None:
    service = section(unit, "Service")
    command, rows = UNITS[unit]
    program, *words = shlex.split(service["ExecStart"][0])
    assert Path(program).name == "forenotice"
    assert words[: len(command)] == command
    arguments = words[len(command) :]
    flags = {row.flag for row in rows}
    assert {argument for argument in arguments if argument.startswith("--")} <= flags
    variables = {row.variable for row in rows}
    assert {line.partition("=")[0] for line in service["Environment"]} <= variables
    assert f"FORENOTICE_DATA=/var/lib/{service['StateDirectory'][0]}" in service["Environment"]


@pytest.mark.parametrize("unit", UNITS)
def test_it_may_do_one_privileged_thing(unit: str) -> None:
    service = section(unit, "Service")
    assert service["CapabilityBoundingSet"] == service["AmbientCapabilities"] == ["CAP_NET_BIND_SERVICE"]
    for key, value in {
        "DynamicUser": "yes",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateDevices": "yes",
        "PrivateMounts": "yes",
        "ProtectProc": "invisible",
        "UMask": "0077",
        "MemoryDenyWriteExecute": "yes",
        "SystemCallArchitectures": "native",
    }.items():
        assert service[key] == [value]
    assert service["RestartPreventExitStatus"] == ["2"]


@pytest.mark.parametrize("unit", UNITS)
def test_it_is_started_again_however_often_it_fails(unit: str) -> None:
    assert section(unit, "Service")["Restart"] == ["always"]
    assert section(unit, "Unit")["StartLimitIntervalSec"] == ["0"]
