"""`forenotice conformance --client` as people use it. The handlers here end soon; real ones are elsewhere."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.running import PROGRAMS, until

from forenotice.cli.main import main
from forenotice.conformance.handlers import run, situations
from forenotice.conformance.handlers.trial import Handler
from forenotice.conformance.handlers.verdicts import Options

WITHIN = timedelta(seconds=2)
USAGE = [
    (("http://x", "--client", "true"), "--client has endpoints of its own: leave "),
    (("--provoke", "true", "--client", "true"), "--client has endpoints of its own: leave "),
    (("--client", ""), "'--client': give a command"),
    (("--client", "'"), "'--client': No closing quotation"),
    (("--client", "true", "--within", "soon"), "'--within': 'soon' is not a duration: give one such as"),
    (("--client", "true", "--only", "rebot"), "--only: there is no situation 'rebot'; did you mean 'reboot'?"),
    (("--client", "true", "--name", ""), "--name: '' is not a VM name: 1 to 64 letters, digits, '.', '_' or '-'"),
    (("--client", "true", "--within", "6m"), "'--within': give from 1s to 5m, not 6m"),
]


@pytest.mark.parametrize(("arguments", "said"), USAGE)
def test_usage_is_one_sentence_and_code_2(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(("conformance", *arguments)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--client", "/nowhere"), "--client: '/nowhere' cannot be run: No such file or directory"),
        (("--client", "true", "--junit", "/"), "--junit: / cannot be written: Is a directory"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("conformance", *arguments)) == 1
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"forenotice: {said}\n")


FOUND = """\
| situation | runs | asks | goes on | notices | prepares | own | known | approves | prepared | not failed | recovers |
| --------- | :--: | :--: | :-----: | :-----: | :------: | :-: | :---: | :------: | :------: | :--------: | :------: |
| reboot    |  ✗   |  ·   |    ·    |    ·    |    ·     |  ·  |   ·   |    ·     |    ·     |     ·      |    ·     |
| redeploy  |  ·   |  ·   |    ·    |    ·    |    ·     |  ·  |   ·   |    ·     |    ·     |     ·      |    ·     |
| reset     |  ✗   |  ·   |    ·    |    ·    |    ·     |  ·  |   ·   |    ·     |    ·     |     ·      |    ·     |

fail           process.runs          Its process runs to the end [reboot, reset]: expected a process that runs, \
saw that it ended with code 3; it said last: web-7 has x
not applicable process.runs          Its process runs to the end [redeploy]: it saw no document in reset and reboot
"""


@pytest.fixture
def short(tmp_path: Path) -> str:
    """A handler that says something and ends."""
    script = tmp_path / "short"
    script.write_text(
        '#!/bin/sh\ntest "${1%/x}" = "$FORENOTICE_SITUATION_DIR" && echo "$FORENOTICE_NAME has x"\nexit 3\n'
    )
    script.chmod(0o755)
    return f"{script} {{dir}}/x"


ONLY = ("--only", "reboot", "--only", "redeploy", "--only", "reset", "--jobs", "1", "--name", "web-7")


def test_a_scoreboard_and_a_line_for_each_reason(
    short: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    junit = tmp_path / "junit.xml"
    assert main(("conformance", "--client", short, *ONLY, "--junit", str(junit))) == 1
    out = capsys.readouterr().out
    assert out.startswith(FOUND)
    assert out.splitlines()[-1].endswith("short '{dir}/x': 0 of 3 situations without a failure")
    assert b'tests="33" failures="2"' in junit.read_bytes()


def test_json_has_every_finding(short: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("conformance", "--client", short, *ONLY, "--json")) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["summary"] == {"pass": 0, "fail": 2, "not applicable": 31}
    assert {finding["where"] for finding in found["findings"]} == {"reboot", "redeploy", "reset"}


def test_one_that_goes_wrong_ends_them_all() -> None:
    argv = ["sh", "-c", 'test "$FORENOTICE_SITUATION" = reboot && exit 3; exec sleep 60']
    handler = Handler(argv=argv, me="web-0", within=WITHIN)
    found = situations.find("web-0", WITHIN, ["reboot", "redeploy"])
    began = time.monotonic()

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(handler, found, Options(within=WITHIN), jobs=2, progress=interrupted)
    assert time.monotonic() - began < 15


ASKS = (
    "curl -sS --noproxy '*' -H Metadata:true 'http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'"
)


def test_at_the_usual_address_in_a_network_of_its_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "asks"
    script.write_text(f"#!/bin/sh\n{ASKS}\nexit 3\n")
    script.chmod(0o755)
    before = subprocess.run(["ip", "-o", "address"], capture_output=True, check=True).stdout
    only = ("--only", "reboot", "--only", "redeploy", "--jobs", "2", "--json")
    main(("conformance", "--client", str(script), "--namespace", *only))
    told = capsys.readouterr()
    assert subprocess.run(["ip", "-o", "address"], capture_output=True, check=True).stdout == before
    if "which is not permitted here" in told.err and not os.environ.get("CI"):
        pytest.skip("this system does not permit network namespaces")
    found = [finding for finding in json.loads(told.out)["findings"] if finding["clause"] == "process.runs"]
    assert len(found) == 2
    assert all('{"DocumentIncarnation":' in finding["seen"] for finding in found), found


def test_a_namespace_that_is_not_permitted_is_refused_in_a_sentence() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody who may not")
    nobody = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps=-all"]
    probe = "from forenotice.conformance.handlers import trial; trial.enter_namespace()"
    done = subprocess.run([*nobody, sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert "not permitted here (operation not permitted): run this as root" in done.stderr


def test_whoever_ends_it_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    pids = tmp_path / "pids"
    handler = f"sh -c 'echo $$ >> {pids}; exec sleep 60'"
    command = [str(PROGRAMS / "forenotice"), "conformance", "--client", handler]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as run:
        until(lambda: pids.exists() and pids.read_text().count("\n") >= 2)
        run.terminate()
        said = run.communicate(timeout=15)[1]
    assert (run.returncode, said) == (1, b"forenotice: it was interrupted: nothing is reported\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split())
    assert list((tmp_path / "tmp").iterdir()) == []
    # Those that had not begun do not begin.
    assert len(pids.read_text().split()) <= 1 + (os.cpu_count() or 1)


def test_who_is_interrupted_while_situations_are_being_given_out_ends_those_that_have_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(ThreadPoolExecutor):
        given = 0

        def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> "Future[Any]":
            self.given += 1
            if self.given == 2:
                raise KeyboardInterrupt
            return super().submit(fn, *args, **kwargs)

    monkeypatch.setattr(run, "ThreadPoolExecutor", Interrupted)
    handler = Handler(argv=["sleep", "60"], me="web-0", within=WITHIN)
    found = situations.find("web-0", WITHIN, ["reboot", "redeploy"])
    with pytest.raises(KeyboardInterrupt):
        run.run(handler, found, Options(within=WITHIN), jobs=2, progress=lambda _: None)
    assert handler.stopping.is_set()
