"""What `serve` refuses to start on, what it leaves alone, and how it ends."""

import hashlib
import os
import re
import shutil
import signal
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.acceptance.running import DEADLINE, HOST, Said, Server, ask, environment, run, serving, until

NOWHERE = ("--metadata", f"{HOST}:0", "--control", f"{HOST}:0")


def refused(home: Path, *flags: str, code: int = 1) -> str:
    """The one sentence with which `serve` does not start."""
    done = run("forenotice", "serve", *NOWHERE, *flags, env=environment(home))
    assert done.returncode == code, done
    assert done.stdout == ""
    (sentence,) = (line for line in done.stderr.splitlines() if not line.startswith('{"action": "token.'))
    assert sentence.startswith("forenotice: ")
    assert "defect" not in sentence
    return sentence.removeprefix("forenotice: ")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("running"), "--demo") as server:
        yield server


def test_a_second_one_on_the_same_data_is_refused(running: Server) -> None:
    said = refused(running.home, "--demo")
    assert said == (
        f"another `forenotice serve` uses the data directory {running.data / 'demo'}: "
        "stop it, or give another with --data"
    )
    assert running.document()["Events"] == []


def test_a_second_one_on_the_same_file_is_refused(running: Server, tmp_path: Path) -> None:
    file = running.data / "demo" / "forenotice.db"
    said = refused(tmp_path, "--database", f"sqlite:///{file}")
    assert said.startswith(f"another `forenotice serve` uses the data directory {file.parent}: stop it")


def test_a_port_in_use_is_one_sentence(running: Server, tmp_path: Path) -> None:
    said = refused(tmp_path, "--control", running.operators)
    assert said == f"cannot listen on {running.operators} (address already in use): give another --control"
    said = refused(tmp_path, "--metadata", running.guests)
    assert said.startswith(f"Guests cannot be served at {running.guests}: Address already in use")
    assert "--metadata" in said


def test_a_first_token_that_cannot_be_kept_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "data" / "admin.token").mkdir(parents=True)
    said = refused(tmp_path, "--data", str(tmp_path / "data"))
    assert said == f"the token file {tmp_path}/data/admin.token cannot be written (Is a directory): make room for it"


def test_a_backup_of_a_running_one_serves(running: Server, tmp_path: Path) -> None:
    made = running.schedule("restart", "db")
    copy = tmp_path / "copy.db"
    assert running.cli("backup", "--demo", str(copy)).stdout == f"The database is copied to {copy}.\n"
    again = running.cli("backup", "--demo", str(copy))
    assert (again.returncode, again.stderr) == (
        1,
        f"forenotice: {copy} exists already: give the name of a new file\n",
    )
    with serving(tmp_path, "--database", f"sqlite:///{copy}", "--as", "db") as restored:
        restored.token = running.token
        assert restored.document()["Events"][0]["EventId"] == made["events"][0]["id"]
        assert restored.get(f"/v1/operations/{made['id']}") == running.get(f"/v1/operations/{made['id']}")
    running.post(f"/v1/operations/{made['id']}/cancel")


def test_files_belong_to_their_owner_alone(running: Server) -> None:
    folder = running.token_file.parent
    database = list(folder.glob("forenotice.db*"))
    assert {file.suffix for file in database} == {".db", ".db-wal", ".db-shm", ".mark"}
    files = [*database, running.token_file, folder / "control.sock"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_vm_that_does_not_exist_is_warned_of(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo", "--as", "nobody") as server:
        (warned,) = server.logged("serve.unknown_vm")
        assert warned["vm"] == "nobody"


@pytest.fixture(scope="module")
def sound(running: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sound") / "forenotice.db"
    assert running.cli("backup", "--demo", str(file)).returncode == 0
    return file


@pytest.fixture
def database(sound: Path, tmp_path: Path) -> Path:
    """A data directory with a sound database that nobody uses; gives the file."""
    file = tmp_path / ".local" / "share" / "forenotice" / "forenotice.db"
    file.parent.mkdir(parents=True)
    shutil.copy(sound, file)
    return file


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _overwrite_the_middle(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(b"\xff" * 8 * 4096)


def _cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _replace_by_text(file: Path) -> None:
    file.write_text("This was a database once.\n" * 1000)


def _make_newer(file: Path) -> None:
    _execute(file, "UPDATE alembic_version SET version_num = '9999'")


def _make_a_strangers(file: Path) -> None:
    file.unlink()
    _execute(file, "CREATE TABLE songs (title TEXT)")


def _execute(file: Path, statement: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    ("spoil", "advice"),
    [
        (_overwrite_the_middle, r"damaged.*restore"),
        (_cut_off, r"damaged.*restore"),
        (_replace_by_text, r"damaged or no database.*restore a backup, or name another"),
        (_make_newer, r"made by a newer forenotice.*9999.*use that version"),
        (_make_a_strangers, r"belongs to another program: name another file"),
    ],
)
def test_a_database_that_is_not_fit_is_refused_and_left_alone(
    database: Path, tmp_path: Path, spoil: Callable[[Path], None], advice: str
) -> None:
    spoil(database)
    before = _sha(database)
    assert re.search(advice, refused(tmp_path))
    assert _sha(database) == before
    assert {path.name for path in database.parent.iterdir()} <= {
        *("forenotice.db", "forenotice.db-wal", "forenotice.db-shm", "lock")
    }


def test_a_clock_far_behind_the_journal_is_refused(database: Path, tmp_path: Path) -> None:
    tomorrow = int(time.time() + 86_400) * 1_000_000
    _execute(database, f"UPDATE journal SET at = {tomorrow}")
    assert re.fullmatch(
        r"The clock says .* UTC, but the journal was already at .* UTC: correct the clock or, "
        r"if it is right now and was wrong before, run `forenotice clock accept`; then start again.",
        refused(tmp_path),
    )
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT DISTINCT at FROM journal").fetchall() == [(tomorrow,)]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--as", "no such"], 2, r"--as: 'no such' is not a VM name: give 1 to 64 letters"),
        (["--guest-rate", "-1"], 2, r"--guest-rate: '-1' is not a rate"),
        (["--no-such-flag"], 2, r"No such option '--no-such-flag'; see `forenotice serve -h`"),
        (
            ["--database", "mysql://secret@host/name"],
            2,
            r"--database: is not a database: give sqlite:///PATH or postgre",
        ),
        (["--data", "/dev/null/x"], 1, r"the data directory /dev/null/x cannot be used \(Not a directory\)"),
        (["--proxy-trusted", "127.0.0.0/8"], 2, r"proxy_trusted and proxy_secret_file need each other"),
        (
            ["--proxy-trusted", "127.0.0.0/8", "--proxy-secret-file", "{home}/shared"],
            1,
            r"the proxies' secret .*shared can be read by other users \(mode 0644\): run `chmod go-rwx .*shared`",
        ),
    ],
)
def test_bad_flags_are_one_sentence(tmp_path: Path, flags: list[str], code: int, said: str) -> None:
    shared = tmp_path / "shared"
    shared.write_text("a secret of sixteen bytes or more")
    shared.chmod(0o644)
    sentence = refused(tmp_path, *(flag.format(home=tmp_path) for flag in flags), code=code)
    assert not list(tmp_path.rglob("forenotice.db"))
    assert re.search(said, sentence), sentence
    assert "secret@" not in sentence


def test_sigterm_first_lets_answers_out(tmp_path: Path) -> None:
    with serving(tmp_path, "--demo") as server:
        (event,) = server.schedule("restart", "web-0")["events"]
        tag = server.poll().headers["etag"]
        before = _counted(server, "connections")
        answers: dict[str, Said] = {}

        def wait() -> None:
            answers["wait"] = server.poll(If_None_Match=tag, Prefer="wait=60")

        def approve() -> None:
            answers["approval"] = server.approve(event["id"])

        def command() -> None:
            answers["command"] = server.control("POST", "/v1/hosts", {"name": "late"})

        asking = [threading.Thread(target=call) for call in (wait, approve, command)]
        with closing(sqlite3.connect(server.data / "demo" / "forenotice.db", isolation_level=None)) as other:
            # While another program writes, nothing can be kept, so approval and command are pending.
            other.execute("BEGIN IMMEDIATE")
            for thread in asking:
                thread.start()
            until(lambda: _operators_connected(server) == 1, what="the command has been sent")
            until(lambda: _counted(server, "long_polls") == 1, what="somebody waits")
            until(lambda: _counted(server, "connections") == before + 2, what="the approval has been sent")
            assert server.process is not None
            server.process.send_signal(signal.SIGTERM)
            until(lambda: "serve.stopping" in server.errors)
            asking[0].join(DEADLINE)
            assert answers["wait"].status == 304
            assert set(answers) == {"wait"}
            other.execute("ROLLBACK")
        for thread in asking:
            thread.join(DEADLINE)
        assert (answers["approval"].status, answers["command"].status) == (200, 201)
        assert server.process.wait(DEADLINE) == 0
        server.process = None
        assert server.defects == []
        server.start()
        assert server.get("/v1/hosts/late")["name"] == "late"
        assert server.get(f"/v1/events/{event['id']}")["approved_by"] == "web-0"


def _counted(server: Server, kind: str) -> int:
    metrics = ask(server.operators, "GET", "/metrics").body.decode()
    found = re.search(rf'^forenotice_guest_requests_total{{kind="{kind}"}} (\d+)', metrics, re.MULTILINE)
    assert found is not None
    return int(found[1])


def _operators_connected(server: Server) -> int:
    """As the kernel tells, for a count of the server's own would count itself."""
    port = f":{int(server.operators.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "01" and row[1].endswith(port) for row in rows)


def test_secrets_are_never_logged(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-the-proxies\n")
    secret.chmod(0o600)
    flags = ("--proxy-trusted", "127.34.4.0/24", "--proxy-secret-file", str(secret), "--log-level", "debug", "--demo")
    with serving(tmp_path, *flags) as server:
        made = server.post("/v1/tokens", {"name": "ada", "role": "admin"})["token"]
        for token in (made, made + "x", "wrong-token-entirely"):
            ask(server.operators, "GET", "/v1/hosts", headers={"Authorization": f"Bearer {token}"})
        for proof in ("0" * 64, "not-even-hex"):
            said = server.poll("127.34.4.1", X_Forenotice_VM="db", X_Forenotice_Time="1", X_Forenotice_Signature=proof)
            assert said.status == 403
        assert server.terminate() == 0
        assert not server.token_file.with_name("control.sock").exists()
    logged = server.errors + server.output
    assert "caller.unproven" in logged
    for hidden in (server.token, made, "wrong-token-entirely", secret.read_text().strip()):
        assert hidden not in logged
    for file in server.data.rglob("*"):
        if file.is_file() and file != server.token_file:
            assert server.token.encode() not in file.read_bytes()
            assert made.encode() not in file.read_bytes()
