"""The newcomer's tour, line by line as `serve --demo` prints it."""

import json
import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

from tests.acceptance.running import Said, Server, ask, run, serving, until

GUID = re.compile(r"[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}")
SIX = ["EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore"]
KEYS = {
    "2017-03-01": SIX,
    "2017-08-01": SIX,
    "2017-11-01": SIX,
    "2019-01-01": SIX,
    "2019-04-01": [*SIX, "Description"],
    "2019-08-01": [*SIX, "Description", "EventSource"],
    "2020-07-01": [*SIX, "Description", "EventSource", "DurationInSeconds"],
}


class Terminal:
    """Where the newcomer types what `serve --demo` told them to try."""

    def __init__(self, server: Server) -> None:
        self._env = server.env
        self.lines = re.findall(r"^  (?!http)(.+)$", server.output, re.MULTILINE)

    def type(self, number: int, event_id: str = "") -> str:
        line = self.lines[number]
        assert ("ID" in line) == bool(event_id)
        done = run("bash", "-c", line.replace("ID", event_id), env=self._env)
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout


def test_the_lines_that_the_demo_prints_lead_through_the_whole_life_of_an_event(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as server:
        terminal = Terminal(server)
        assert [line.split()[0] for line in terminal.lines].count("curl") == 3
        assert json.loads(terminal.type(0)) == {"DocumentIncarnation": 1, "Events": []}

        before = datetime.now(UTC)
        assert "Reboot of web-0 is Scheduled" in terminal.type(1)
        # With an allowance for the commit, which is 10 s where it was slow twice, in whole seconds.
        after = datetime.now(UTC) + timedelta(seconds=11)
        (event,) = json.loads(terminal.type(2))["Events"]
        event_id = event["EventId"]
        assert GUID.fullmatch(event_id)
        assert (event["EventType"], event["EventSource"], event["Resources"]) == ("Reboot", "User", ["web-0"])
        notice = timedelta(minutes=15)
        assert before + notice <= parsedate_to_datetime(event["NotBefore"]) <= after + notice
        assert _as_every_version_says(server, "Scheduled") == {event_id}

        assert re.search(rf"{event_id} +Reboot +Scheduled +web-0 +in 1[45] min", terminal.type(3))
        assert terminal.type(4, event_id).startswith("It waits for approval by web (web-0), until ")
        assert event_id in terminal.type(5)

        # Nothing of it is lost by a crash; and from here on time runs twenty times as fast.
        server.kill()
        server.flags += ["--speed", "20"]
        server.start()
        assert json.loads(terminal.type(2))["Events"] == [event]
        assert terminal.type(6, event_id) == ""
        (started,) = until(
            lambda: [found for found in server.document()["Events"] if found["EventStatus"] == "Started"]
        )
        assert started == event | {"EventStatus": "Started", "NotBefore": ""}
        assert _as_every_version_says(server, "Started") == {event_id}
        until(lambda: not server.document()["Events"])
        assert _as_every_version_says(server, None) == set()
        assert "There are no live events" in terminal.type(3)
        assert f"event {event_id}" in server.cli("history", "--action", "event.completed").stdout


def _as_every_version_says(server: Server, status: str | None) -> set[str]:
    """The ids that are shown, having looked at each version."""
    shown = set()
    documents = {version: server.document(version=version) for version in KEYS}
    assert len({document["DocumentIncarnation"] for document in documents.values()}) == 1
    for version, document in documents.items():
        assert list(document) == ["DocumentIncarnation", "Events"]
        for event in document["Events"]:
            shown.add(event["EventId"])
            assert list(event) == KEYS[version]
            assert event["EventStatus"] == status
            assert event["Resources"] == (["_web-0"] if version == "2017-03-01" else ["web-0"])
            if status == "Started":
                assert event["NotBefore"] == ""
            elif version == "2017-03-01":
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event["NotBefore"])
            else:
                assert parsedate_to_datetime(event["NotBefore"]).tzinfo is UTC
                assert event["NotBefore"].endswith(" GMT")
    assert (status is not None) == any(document["Events"] for document in documents.values())
    return shown


def visit(server: Server, target: str, cookie: str = "") -> Said:
    return ask(
        server.operators, "GET", target, headers={"Accept": "text/html", **({"Cookie": cookie} if cookie else {})}
    )


def test_the_link_that_the_demo_prints_signs_in_once_and_for_longer_than_the_process_lives(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as server:
        [(place, target, secret)] = re.findall(r"^  http://(\S+?)(/sign-in\?once=(\S+))$", server.output, re.MULTILINE)
        assert place == server.operators
        came = visit(server, target)
        assert came.status == 200
        cookie = came.headers["set-cookie"].partition(";")[0]
        assert visit(server, target).status == 401
        server.kill()
        server.start()
        assert visit(server, "/tokens", cookie).status == 200
        assert visit(server, "/tokens").status == 303
        assert secret not in server.output + server.errors


def test_no_link_is_printed_where_others_can_come(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo", "--control", "0.0.0.0:0", "--control-without-tls") as server:
        assert "sign-in" not in server.output
        assert "In another terminal" in server.output


def test_the_lines_also_work_where_the_demo_keeps_its_data_elsewhere(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo", "--data", str(tmp_path / "else where")) as server:
        assert "Reboot of web-0 is Scheduled" in Terminal(server).type(1)
        assert not server.data.exists()

        said = re.search(r"(curl --interface 127\.1\.0\.\d+) \.\.\. is (\w+)", server.output)
        assert said is not None
        url = f"http://{server.guests}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        assert run("bash", "-c", f"{said[1]} -sS -H Metadata:true '{url}'", env=server.env).stdout == said[2]
