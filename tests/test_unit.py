"""The systemd unit starts a command that exists, and gives it no more than it needs."""

import configparser
import shlex
from pathlib import Path

from forenotice import serving
from forenotice.settings import table

UNIT = Path(__file__).parents[1] / "packaging" / "forenotice.service"


def section(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    inside = False
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            inside = line == f"[{name}]"
        elif inside and line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_it_is_a_unit_file() -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.read(UNIT)
    assert parser.sections() == ["Unit", "Service", "Install"]


def test_it_waits_until_the_service_has_given_up() -> None:
    assert int(section("Service")["TimeoutStopSec"][0]) > serving.STOP_SECONDS


def test_it_starts_serve_with_settings_that_exist() -> None:
    service = section("Service")
    program, command, *arguments = shlex.split(service["ExecStart"][0])
    assert (Path(program).name, command) == ("forenotice", "serve")
    flags = {row.flag for row in table.SERVE}
    assert {argument for argument in arguments if argument.startswith("--")} <= flags
    variables = {row.variable for row in table.SERVE}
    assert {line.partition("=")[0] for line in service["Environment"]} <= variables
    assert f"FORENOTICE_DATA=/var/lib/{service['StateDirectory'][0]}" in service["Environment"]


def test_it_may_do_one_privileged_thing() -> None:
    service = section("Service")
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


def test_it_is_started_again_however_often_it_fails() -> None:
    assert section("Service")["Restart"] == ["always"]
    assert section("Unit")["StartLimitIntervalSec"] == ["0"]
