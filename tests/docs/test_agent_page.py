"""docs/agent.md has every key with its default, every variable and every metric that there is, and no other."""

import json
import re
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.agent.handlers.work import work

from forenotice.agent import config, context
from forenotice.agent.handlers import facts
from forenotice.agent.handlers.tables import Common, When

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "agent.md").read_text()
KEY = re.compile(r"^\| `(\w+)` \| (.+?) \| .*\|$", re.MULTILINE)

TABLES: dict[str, type[msgspec.Struct]] = {
    "The file": config.Config,
    "`[approve]`": config.Approve,
    "`[[approve.at_once]]`": config.AtOnce,
    "`[peers]`": config.Peers,
    "Every `[[handler]]`": Common,
    **{f"`{name}`": kind for name, kind in config.KINDS.items()},
}


def section(heading: str) -> str:
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def defaults(struct: type[msgspec.Struct]) -> dict[str, str]:
    return {field.encode_name: default(field) for field in msgspec.structs.fields(struct)}


def default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    match value:
        case When(lead=None):
            value = "at once"
        case timedelta() if value < timedelta(minutes=1):
            value = f"{value.seconds}s"
        case timedelta():
            value = f"{value.seconds // 60}m"
        case msgspec.Struct():
            value = None
    return "none" if value in (None, "", (), {}) else f"`{json.dumps(value)}`"


@pytest.mark.parametrize("heading", TABLES)
def test_a_table_has_the_keys_of_its_part(heading: str) -> None:
    struct = TABLES[heading]
    expected = defaults(struct)
    if struct is Common:
        expected["type"] = "required"
    elif issubclass(struct, Common):
        # Only what is its own, and what it has otherwise than all.
        expected = dict(expected.items() - defaults(Common).items())
    assert dict(KEY.findall(section(heading))) == expected


def test_it_has_the_variables_and_facts() -> None:
    text = section("`command`")
    assert set(re.findall(r"`((?:FORENOTICE|EVENT)_[A-Z_]+)`", text)) == set(facts.NAMES)
    shown = re.search(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert shown is not None
    told, found = json.loads(shown[1]), json.loads(facts.encoded(work()))
    assert (list(told), list(told["event"])) == (list(found), list(found["event"]))


def test_it_has_the_metrics() -> None:
    _, _, text = section("Readiness and metrics").partition(f"`{context.PREFIX}` before them")
    assert set(re.findall(r"`(\w+)`", text)) == {family.name for family in context.FAMILIES}


@pytest.mark.parametrize("page", ["agent.md", "quickstart-vm.md"])
def test_its_configurations_can_be_used(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for text in blocks:
        (tmp_path / "agent.toml").write_text(text)
        config.load(tmp_path / "agent.toml")
