"""The table of settings, its flags, its variables and its page in the docs agree."""

import re
from pathlib import Path

import msgspec
import pytest

from forenotice import settings
from forenotice.settings import table

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.mark.parametrize("row", table.everything().values(), ids=lambda row: row.name)
def test_flag_variable_and_page_of_a_setting(row: table.Setting) -> None:
    assert re.fullmatch(r"--[a-z]+(-[a-z]+)*", row.flag)
    assert row.flag_of or row.flag[2:].replace("-", "_") == row.name
    assert row.variable == "FORENOTICE_" + (row.variable_of or row.name).upper()
    assert row.help.endswith(".")
    assert bool(row.metavar) is not row.is_switch
    for default in (row.default, row.demo):
        if default is not None:
            row.read(default)
    assert f"| `{row.flag}" in DOCS.read_text()
    assert f"| `{row.variable}` |" in DOCS.read_text()


def test_the_page_shows_the_table_as_it_is() -> None:
    shown = [line for line in DOCS.read_text().splitlines() if line.startswith("|")]
    assert shown == table.rows()


@pytest.mark.parametrize(
    ("rows", "result"),
    [
        (table.SERVE, settings.Settings),
        (table.OPERATOR, settings.OperatorSettings),
        (table.GUEST, settings.GuestSettings),
        (table.AGENT, settings.AgentSettings),
        (table.EMULATE, settings.EmulatorSettings),
        (table.EMULATOR, settings.DriverSettings),
    ],
)
def test_every_row_has_its_typed_field(rows: tuple[table.Setting, ...], result: type) -> None:
    assert {row.attribute for row in rows} == {field.name for field in msgspec.structs.fields(result)}


def test_no_variable_means_two_things_to_one_command() -> None:
    for rows in (table.SERVE, table.OPERATOR, table.GUEST, table.AGENT, table.EMULATE, table.EMULATOR):
        assert len({row.variable for row in rows}) == len(rows)
