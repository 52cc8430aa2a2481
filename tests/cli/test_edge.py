"""`forenotice cluster init` and `forenotice edge enrol|revoke|rotate`: credentials, and what is printed of them."""

import asyncio
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from nats.errors import Error
from tests.cli.conftest import Run
from tests.cluster.users import edge
from tests.nats_servers import NatsServers, nats_servers

from forenotice.cli import cluster
from forenotice.cluster.keys import Keys
from forenotice.core import errors

SECRET = re.compile(r"\bS[OAU][A-Z2-7]{56}\b")
"""A seed; credentials have one."""
NOBODY = ("--nats", "nats://127.0.0.1:1")


@pytest.fixture
def keys(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert run("cluster", "init", "keys").code == 0
    return tmp_path / "keys"


@pytest.fixture
def servers(keys: Path, tmp_path: Path) -> Iterator[NatsServers]:
    with nats_servers(tmp_path, keys=Keys(keys)) as made:
        yield made


def is_known(urls: Sequence[str], file: Path, host: str = "host-a") -> bool:
    async def attempt() -> bool:
        try:
            async with edge(urls, file, host) as client:
                return not await client.complaint()
        except Error:
            return False

    return asyncio.run(attempt())


def test_init_says_what_to_do_with_the_files(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "keys"
    done = run("cluster", "init", str(place))
    done.shows(f"  {place}/servers.conf  include it .*", f"Next, .*: forenotice edge enrol HOST --keys {place}")
    found = run("cluster", "init", str(tmp_path / "others"), "--json").json
    assert found == {
        "directory": str(tmp_path / "others"),
        "servers": str(tmp_path / "others/servers.conf"),
        "service": str(tmp_path / "others/centre.creds"),
    }
    again = run("cluster", "init", str(place))
    assert (again.code, again.err) == (
        1,
        f"forenotice: {place} already exists: give a new or an empty directory\n",
    )
    nowhere = run("cluster", "init", "/proc/keys")
    assert (nowhere.code, "cannot be made" in nowhere.err) == (1, True)


def test_credentials_go_to_a_file_and_are_printed_only_if_asked_for(run: Run, keys: Path, tmp_path: Path) -> None:
    done = run("edge", "enrol", "host-a", "--keys", "keys")
    assert done.out == (
        "The credentials of host-a are in host-a.creds. "
        "Install this file on host-a, for `edge run --nats-credentials FILE`.\n"
    )
    file = tmp_path / "host-a.creds"
    assert SECRET.search(file.read_text())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = run("edge", "enrol", "host-b", "--keys", "keys", "--output", "b.creds", "--json")
    assert found.json == {"host": "host-b", "key": found.json["key"], "file": "b.creds"}
    assert not SECRET.search(found.out)
    assert SECRET.search(run("edge", "enrol", "host-c", "--keys", "keys", "--output", "-").out)
    assert SECRET.search(
        run("edge", "enrol", "host-d", "--keys", "keys", "--output", "-", "--json").json["credentials"]
    )


def test_enrol_overwrites_nothing(run: Run, keys: Path, tmp_path: Path) -> None:
    (tmp_path / "host-a.creds").write_text("mine")
    assert "already exists" in run("edge", "enrol", "host-a", "--keys", "keys").err
    assert (tmp_path / "host-a.creds").read_text() == "mine"
    assert run("edge", "enrol", "host-a", "--keys", "keys", "--output", "another").code == 0
    assert "already has credentials" in run("edge", "enrol", "host-a", "--keys", "keys", "--output", "third").err
    assert "/nowhere/a cannot be written" in run("edge", "enrol", "b", "--keys", "keys", "--output", "/nowhere/a").err


def test_revoke_tells_the_servers(run: Run, keys: Path, servers: NatsServers, tmp_path: Path) -> None:
    run("edge", "enrol", "host-a", "--keys", "keys")
    assert is_known(servers.urls, tmp_path / "host-a.creds")
    done = run("edge", "revoke", "host-a", "--keys", "keys", "--nats", *servers.urls)
    assert done.out == "Revoked; confirmed by n0.\n"
    assert not is_known(servers.urls, tmp_path / "host-a.creds")
    again = run("edge", "revoke", "host-a", "--keys", "keys", "--nats", *servers.urls, "--json")
    assert again.json == {"host": "host-a", "servers": ["n0"]}
    assert not SECRET.search(servers[0].log)


def test_revoke_says_what_remains_to_be_done(run: Run, keys: Path, servers: NatsServers, tmp_path: Path) -> None:
    run("edge", "enrol", "host-a", "--keys", "keys")
    failed = run("edge", "revoke", "host-a", "--keys", "keys", *NOBODY)
    assert failed.code == 1
    assert "keys records the revocation, but not every NATS server confirmed it: " in failed.err
    assert failed.err.endswith("; run `forenotice edge revoke host-a --keys keys` with the same --config or --nats\n")
    assert not SECRET.search(failed.err)
    assert is_known(servers.urls, tmp_path / "host-a.creds")
    assert run("edge", "revoke", "host-a", "--keys", "keys", "--nats", *servers.urls).code == 0
    assert not is_known(servers.urls, tmp_path / "host-a.creds")


def test_rotate_replaces_the_file_and_ends_the_old_credentials(
    run: Run, keys: Path, servers: NatsServers, tmp_path: Path
) -> None:
    run("edge", "enrol", "host-a", "--keys", "keys")
    file, old = tmp_path / "host-a.creds", tmp_path / "old"
    old.write_text(file.read_text())
    assert not SECRET.search(run("edge", "rotate", "host-a", "--keys", "keys", "--nats", *servers.urls).out)
    assert not is_known(servers.urls, old)
    assert is_known(servers.urls, file)
    old.write_text(file.read_text())
    # Nobody is told of anything.
    assert run("edge", "rotate", "host-a", "--keys", "keys", "--keep-old").code == 0
    assert is_known(servers.urls, old)
    assert is_known(servers.urls, file)
    assert run("edge", "revoke", "host-a", "--old", "--keys", "keys", "--nats", *servers.urls).code == 0
    assert not is_known(servers.urls, old)
    assert is_known(servers.urls, file)


def test_new_credentials_are_not_lost_where_the_old_cannot_be_revoked(
    run: Run, keys: Path, servers: NatsServers, tmp_path: Path
) -> None:
    run("edge", "enrol", "host-a", "--keys", "keys")
    failed = run("edge", "rotate", "host-a", "--keys", "keys", *NOBODY, failing=1)
    assert failed.err.endswith(
        "; run `forenotice edge revoke host-a --old --keys keys` with the same --config or --nats\n"
    )
    assert is_known(servers.urls, tmp_path / "host-a.creds")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("enrol", "host-a", "--keys", "."), "has no keys"),
        (("enrol", "../a", "--keys", "keys", "--output", "a"), "is not a host name"),
        (("revoke", "host-a", "--keys", "keys"), "no NATS server is given"),
        (("rotate", "host-a", "--keys", "keys"), "no NATS server is given"),
        (("revoke", "host-a", "--keys", "keys", *NOBODY), "host-a has no credentials"),
        (("rotate", "host-a", "--keys", "keys", *NOBODY), "host-a has no credentials"),
        (("revoke", "host-a", "--keys", "keys", *NOBODY, "--nats-key", "k"), "need each other"),
        (("enrol", "host-a"), "--keys"),
    ],
)
def test_what_is_wrong_is_said(run: Run, keys: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in run("edge", *arguments).err


def test_missing_packages_are_named() -> None:
    with pytest.raises(errors.RefusedError, match=r"pip install 'forenotice\[cluster\]'"), cluster.cluster_packages():
        raise ModuleNotFoundError(name="nats.aio")
    with pytest.raises(ModuleNotFoundError), cluster.cluster_packages():
        raise ModuleNotFoundError(name="forenotice.nowhere")
