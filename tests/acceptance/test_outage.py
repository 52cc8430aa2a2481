"""When nothing can be written, polls go on from memory, everything else is 503, and all is well again by itself."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.acceptance.running import Said, Server, ask, environment, run, serving, until
from tests.postgres import PostgresServer

FLEET = {
    "hosts": {"host-0": {}, "host-1": {}},
    "vms": {
        "heard": {"host": "host-0", "addresses": ["127.34.1.1"], "policy": {"listening": "always"}},
        "silent": {"host": "host-1", "addresses": ["127.34.1.2"]},
    },
}
HEARD, SILENT, STRANGER = "127.34.1.1", "127.34.1.2", "127.34.1.3"


def test_a_full_disk(small_disk: tuple[str, ...], tmp_path: Path) -> None:
    """Which also has the log: strangers and what is refused cost nothing but lines."""
    with serving(tmp_path, "--speed", "20", "--guest-rate", "off", "--token-rate", "off", before=small_disk) as server:
        event_id = _settle(server)
        filler = server.seen(server.data / "filler")
        _fill(filler)
        # What is left of the page that it has already.
        _fill(server.seen(server.data.parent / "log"), b"\n")
        assert {server.poll(STRANGER).status for _ in range(10)} == {404}
        _refuse_everything_but_polls(server, event_id)
        filler.unlink()
        _recover(server, event_id)
        # Refused, which is logged again.
        assert ask(server.operators, "GET", "/v1/hosts").status == 401
        until(lambda: '"log.dropped"' in server.errors, what="the log tells what it has lost")


def test_a_lost_postgresql(postgres_server: PostgresServer, postgres_url: str, tmp_path: Path) -> None:
    flags = ("--database", postgres_url)
    assert run("forenotice", "migrate", *flags, env=environment(tmp_path)).returncode == 0
    made = run("forenotice", "token", "create", "ada", "--offline", *flags, env=environment(tmp_path))
    with serving(tmp_path, "--speed", "20", "--guest-rate", "off", "--token-rate", "off", *flags) as server:
        server.token = made.stdout.strip()
        event_id = _settle(server)

        postgres_server.stop()
        try:
            _refuse_everything_but_polls(server, event_id)
        finally:
            postgres_server.start()
        _recover(server, event_id)


def test_a_database_that_vanishes_and_is_restored(tmp_path: Path) -> None:
    with serving(tmp_path, "--guest-rate", "off", "--token-rate", "off") as server:
        server.post("/v1/fleet", FLEET)
        backup = tmp_path / "backup.db"
        assert server.cli("backup", str(backup)).returncode == 0
        (event,) = server.schedule("restart", "heard")["events"]
        before = server.poll(HEARD)

        database, taken = server.data / "forenotice.db", tmp_path / "taken.db"
        database.rename(taken)
        _require_come_back_later(server.approve(event["id"], source=HEARD))
        said = server.control("POST", "/v1/hosts", {"name": "more"})
        _require_come_back_later(said)
        assert "was removed, replaced or cut off while it was in use" in said.json["error"]["message"]
        _require_come_back_later(_ready(server))
        assert server.poll(HEARD).body == before.body
        assert not database.exists()
        taken.rename(database)
        _require_come_back_later(_ready(server))
        assert server.poll(HEARD).body == before.body
        database.unlink()
        assert server.defects == []
        assert server.terminate() == 0

        refused = run("forenotice", "serve", "--control", "127.0.0.1:0", env=server.env)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "was in use before: put it back, or run `forenotice restore` with a backup" in refused.stderr
        assert server.cli("restore", str(backup)).returncode == 0
        server.start()
        server.schedule("redeploy", "heard")
        # The guest that comes back has not polled in between, and must see that this is another event.
        after = server.poll(HEARD, If_None_Match=before.headers["etag"])
        assert after.status == 200
        assert after.json["DocumentIncarnation"] > before.json["DocumentIncarnation"]
        assert after.headers["forenotice-epoch"] != before.headers["forenotice-epoch"]


QUICK_STOP = (
    sys.executable,
    "-c",
    "import sys; from forenotice import serving; from forenotice.cli.main import main; serving.STOP_SECONDS = 1.0; "
    "sys.argv = sys.argv[1:]; sys.exit(main())",
)
"""Put before a command: the service ends a second after a signal, whatever hangs."""


def test_a_postgresql_that_hangs_and_is_away_at_the_next_start(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    flags = ("--database", postgres_url)
    assert run("forenotice", "migrate", *flags, env=environment(tmp_path)).returncode == 0
    made = run("forenotice", "token", "create", "ada", "--offline", *flags, env=environment(tmp_path))
    with serving(tmp_path, "--guest-rate", "off", "--token-rate", "off", *flags, before=QUICK_STOP) as server:
        server.token = made.stdout.strip()
        event_id = _settle(server)
        assert server.process is not None

        with postgres_server.hanging():
            before = time.monotonic()
            _require_come_back_later(server.approve(event_id, source=HEARD))
            assert time.monotonic() - before < 20
            assert server.poll(HEARD).status == 200
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) == 1
            server.process = None
        assert '"action": "serve.abandoned"' in server.errors

        postgres_server.stop()
        try:
            server.spawn()
            until(lambda: server.logged("serve.waiting"), what="it waits for the database")
            _require_come_back_later(server.poll(HEARD))
            _require_come_back_later(server.approve(event_id, source=HEARD))
            _require_come_back_later(_ready(server))
            _require_come_back_later(server.control("POST", "/v1/hosts", {"name": "early"}))
            assert ask(server.operators, "GET", "/healthz").status == 200
            assert server.terminate() == 0
            server.spawn()
            until(lambda: server.logged("serve.waiting"), what="it waits for the database again")
        finally:
            postgres_server.start()
        server.ready()
        until(lambda: _ready(server).status == 200, what="/readyz is 200")
        assert server.approve(event_id, source=HEARD).status == 200
        assert server.defects == []


@pytest.fixture
def small_disk(tmp_path: Path) -> tuple[str, ...]:
    """What to put before a command: its data directory and its log get 8 MB together, which nobody else sees."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False, capture_output=True).returncode:
        assert os.environ.get("CI") != "true", "this test needs to mount a file system of its own"
        pytest.skip("needs to mount a file system of its own, as root or in a user namespace")
    script = """
        small="$HOME/.local/share" && mkdir -p "$small" && mount -t tmpfs -o size=8m,mode=700 tmpfs "$small" || exit
        touch "$small/log" && tail --follow --pid=$$ --lines=+1 --sleep-interval=0.1 "$small/log" >&2 &
        exec "$@" 2>>"$small/log"
    """
    return (*unshare, "sh", "-c", script, "sh")


def _settle(server: Server) -> str:
    """Make the fleet and an event; gives its id."""
    server.post("/v1/fleet", FLEET)
    (event,) = server.schedule("restart", "heard")["events"]
    assert server.document(HEARD)["Events"][0]["EventId"] == event["id"]
    assert _ready(server).status == 200
    return str(event["id"])


def _fill(filler: Path, piece: bytes = bytes(4096)) -> None:
    with pytest.raises(OSError, match="No space left"), filler.open("ab", buffering=0) as file:  # noqa: PT012
        while True:
            file.write(piece)


def _refuse_everything_but_polls(server: Server, event_id: str) -> None:
    before = server.poll(HEARD).body
    # What was allotted before may still be written, and again when the log was brought into the file, which is tried a
    # second after a change at the latest; after that, nothing is acknowledged.
    last, pause = time.monotonic(), threading.Event()
    for number in range(100):
        said = server.control("POST", "/v1/hosts", {"name": f"more-{number}"})
        assert said.status in (201, 503), said
        if said.status == 201:
            last = time.monotonic()
        elif time.monotonic() > last + 2:
            break
        else:
            pause.wait(0.5)
    _require_come_back_later(said)
    assert "try again" in said.json["error"]["message"]
    _require_come_back_later(server.control("POST", "/v1/operations", {"kind": "restart", "names": ["silent"]}))
    _require_come_back_later(server.approve(event_id, source=HEARD))
    _require_come_back_later(_ready(server))
    assert ask(server.operators, "GET", "/healthz").status == 200

    said = server.poll(HEARD)
    assert (said.status, said.body) == (200, before)
    assert server.poll(HEARD, If_None_Match=said.headers["etag"]).status == 304
    # Also for a scope that has never asked before, which would have been written down.
    assert server.poll(SILENT).json == {"DocumentIncarnation": 1, "Events": []}


def _require_come_back_later(said: Said) -> None:
    assert said.status == 503, said
    assert int(said.headers["retry-after"]) >= 1


def _ready(server: Server) -> Said:
    return ask(server.operators, "GET", "/readyz")


def _recover(server: Server, event_id: str) -> None:
    until(lambda: _ready(server).status == 200, what="/readyz is 200 again")
    assert server.approve(event_id, source=HEARD).status == 200
    server.post("/v1/hosts", {"name": "afterwards"})
    until(lambda: not server.document(HEARD)["Events"], what="the approved restart is carried out")
    approved = list(server.history(action="event.approved"))
    assert [entry["event"] for entry in approved] == [event_id]
    until(lambda: server.get("/v1/vms/silent")["listening"], what="who asked meanwhile counts as heard")
    assert '"exception"' not in server.errors
