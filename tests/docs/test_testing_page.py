"""docs/testing.md works as written: its files are kept in a folder, and its commands are typed there.

Only the handler asks more often than once a second.
"""

import re
import subprocess
from pathlib import Path

import pytest
from tests.acceptance.running import environment

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"(?:#|//) (\w+(?:\.\w+)+)\n")
BLOCKS = [(found[1], found[2]) for found in FENCE.finditer(PAGE)]
COMMANDS = [text.strip() for language, text in BLOCKS if language == "sh" and not NAME.match(text)]

PYTEST = "pytest test_handler.py"
MORE_FOR_PYTEST = (
    " test_time.py test_asyncio.py test_scenarios.py -o asyncio_default_fixture_loop_scope=function -W error"
    " -k 'not gets_through or scenario-spot-eviction or fault-iso-dates'"
)
"""The other files; the other situations are all lived through elsewhere."""
TYPED = [
    (PYTEST, "8 passed"),
    ("python -m unittest test_with_unittest.py", "OK"),
    ("python look.py", "0:00:30\nStarted\n"),
    ("bash -e test.sh", '"EventStatus":"Started"'),
    ("node --test handler.test.mjs", "# pass 1"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for _, text in BLOCKS:
        if named := NAME.match(text):
            (tmp_path / named[1]).write_text(text)
    for left_over in ("ready.json", "node.json"):
        (tmp_path / left_over).write_text('{"url": "http://127.0.0.1:9/?api-version=of-an-earlier-run"}')
    handler = tmp_path / "handler.py"
    text = handler.read_text().replace("import Appeared,", "import Appeared, Pace,")
    handler.write_text(text.replace("Client()", "Client(pace=Pace(interval=0.1))"))
    return tmp_path


def follow(command: str, folder: Path) -> str:
    env = {**environment(folder), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    said = f"{command}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    return said


def test_all_is_named_and_typed() -> None:
    assert [text for language, text in BLOCKS if language != "sh" and not NAME.match(text)] == []
    assert [command for command, _ in TYPED] == COMMANDS


@pytest.mark.parametrize(("command", "said"), TYPED)
def test_a_command_does_what_the_page_says(command: str, said: str, folder: Path) -> None:
    if command == PYTEST:
        command += MORE_FOR_PYTEST
    assert said in follow(command, folder)
