"""The directory of keys with which the service and edges sign in to NATS; enrolment, revocation, telling servers."""

import asyncio
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec
from nats.aio.client import Client

from forenotice import data_directory, secret_files
from forenotice.cluster import connection, jwt, permissions, subjects
from forenotice.cluster.connection import Servers
from forenotice.core import errors, fleet

ACCOUNTS = Path("/var/lib/nats/accounts")
"""Where a server keeps the accounts' JWTs, unless its administrator changes servers.conf."""
SYNC_SECONDS = 2
"""Servers compare their accounts this often, so that one that was away learns of revocations."""
FOR_EVER = 1 << 40
"""A revocation is of what was issued up to a time, and no key is used again."""
PUSH_SECONDS = 3.0
UPDATE, STATISTICS = "$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.SERVER.PING.STATSZ"


class Enrolled(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    key: str
    """The public one."""
    credentials: str
    """A secret."""


class Keys:
    """A directory of keys. Anyone who can read it can pose as the service and as every edge."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        if not (directory / "operator.seed").exists():
            raise errors.NotFoundError(
                f"{directory} has no keys: give the directory that `forenotice cluster init` made"
            )

    @classmethod
    def make(cls, directory: Path, now: datetime) -> "Keys":
        """All of it or nothing. ConflictError: there is something already."""
        secret_files.require_path(secret_files.nearest_existing(directory.parent), directory)
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            for name, text in _new_files(_seconds(now)).items():
                data_directory.write_secret(made / name, text)
            (made / "hosts").mkdir(mode=0o700)
            made.rename(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise errors.ConflictError(f"{directory} already exists: give a new or an empty directory") from None
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return cls(directory)

    @property
    def system_credentials(self) -> Path:
        return self.directory / "system.creds"

    @property
    def centre_credentials(self) -> Path:
        return self.directory / "centre.creds"

    def server_configuration(self, accounts: Path) -> str:
        """What each server includes, with its own directory for the accounts' JWTs."""
        return _server_configuration({name: self._read(f"{name}.jwt") for name in _JWTS}, accounts)

    def enrol(self, host: str, now: datetime) -> Enrolled:
        """ConflictError: the host has credentials already."""
        fleet.require_name("host", host)
        with self._locked():
            if set(self._keys(host)) - set(self._revocations):
                raise errors.ConflictError(
                    f"{host} already has credentials: replace them with `forenotice edge rotate {host} --keys "
                    f"{self.directory}`, or revoke them with `forenotice edge revoke {host} --keys {self.directory}`"
                )
            return self._issue(host, now)

    def enrol_anew(self, host: str, now: datetime) -> Enrolled:
        """What the host had stays valid until it is revoked."""
        with self._locked():
            self._require_keys(host)
            return self._issue(host, now)

    def revoke(self, host: str, now: datetime, *, except_newest: bool = False) -> str:
        """The account's JWT with the revocations, which servers need; doing it again changes nothing."""
        with self._locked():
            known = self._require_keys(host)
            gone = known[:-1] if except_newest else known
            text = self._read("edges.jwt")
            claims = jwt.read(text)
            assert isinstance(claims.nats, jwt.Account)
            revocations = {**claims.nats.revocations, **dict.fromkeys(gone, FOR_EVER)}
            if revocations != claims.nats.revocations:
                account = msgspec.structs.replace(claims.nats, revocations=revocations)
                # A server that was away would bring back what it has, if that were not older.
                issued = max(_seconds(now), claims.iat + 1)
                text = jwt.sign(
                    msgspec.structs.replace(claims, iat=issued, nats=account), jwt.Key(self._read("operator.seed"))
                )
                data_directory.write_secret(self.directory / "edges.jwt", text)
            self._preload(claims.sub, text)
            return text

    def _preload(self, account: str, text: str) -> None:
        """Into the servers' configuration. Its administrator may have changed it, so all the rest stays."""
        before = self._read("servers.conf")
        after = re.sub(rf"(?<={account}: )\S+", text, before)
        if after != before:
            data_directory.write_secret(self.directory / "servers.conf", after)

    def _issue(self, host: str, now: datetime) -> Enrolled:
        """The key is recorded first: none is ever out that a revocation would not know."""
        key, signer = jwt.Key.make(jwt.USER), jwt.Key(self._read("edges.seed"))
        account = jwt.read(self._read("edges.jwt")).sub
        data_directory.write_secret(self._record(host), "\n".join((*self._keys(host), key.public)))
        user = jwt.User(version=jwt.VERSION, issuer_account=account)
        claims = jwt.Claims(sub=key.public, name=subjects.token(host), iat=_seconds(now), nats=user)
        return Enrolled(host=host, key=key.public, credentials=jwt.credentials(jwt.sign(claims, signer), key))

    def _record(self, host: str) -> Path:
        return self.directory / "hosts" / subjects.token(host)

    def _keys(self, host: str) -> Sequence[str]:
        """Public keys that a host was ever given, the newest last."""
        record = self._record(host)
        return self._read(f"hosts/{record.name}").split() if record.exists() else ()

    def _require_keys(self, host: str) -> Sequence[str]:
        fleet.require_name("host", host)
        known = self._keys(host)
        if not known:
            make = f"forenotice edge enrol {host} --keys {self.directory}"
            raise errors.NotFoundError(f"{host} has no credentials: make them with `{make}`")
        return known

    @property
    def _revocations(self) -> Mapping[str, int]:
        account = jwt.read(self._read("edges.jwt")).nats
        assert isinstance(account, jwt.Account)
        return account.revocations

    def _read(self, name: str) -> str:
        return secret_files.read(self.directory / name, "the file of keys").decode().removesuffix("\n")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _seconds(now: datetime) -> int:
    return int(now.timestamp())


# A new directory


_JWTS = ("operator", "system", "forenotice", "edges")


def _new_files(at: int) -> Mapping[str, str]:
    """By their names. The key of the edges' account itself is not kept: it could sign users with any permissions."""
    operator = jwt.Key.make(jwt.OPERATOR)
    system, service, edges, signer = (jwt.Key.make(jwt.ACCOUNT) for _ in range(4))

    def account(key: jwt.Key, name: str, claims: jwt.Account) -> str:
        return jwt.sign(jwt.Claims(sub=key.public, name=name, iat=at, nats=claims), operator)

    def user(account: jwt.Key, name: str, granted: jwt.Permissions) -> str:
        key = jwt.Key.make(jwt.USER)
        claims = jwt.User(version=jwt.VERSION, **msgspec.structs.asdict(granted))
        return jwt.credentials(jwt.sign(jwt.Claims(sub=key.public, name=name, iat=at, nats=claims), account), key)

    operated = jwt.Claims(
        sub=operator.public, name="forenotice", iat=at, nats=jwt.Operator(system_account=system.public)
    )
    jwts = {
        "operator": jwt.sign(operated, operator),
        "system": account(system, "SYSTEM", jwt.Account(limits=jwt.Limits())),
        "forenotice": account(service, "FORENOTICE", permissions.service_account()),
        "edges": account(edges, "EDGES", permissions.edges_account(service.public, signer.public)),
    }
    return {
        **{f"{name}.jwt": text for name, text in jwts.items()},
        "operator.seed": operator.seed,
        "system.seed": system.seed,
        "forenotice.seed": service.seed,
        "edges.seed": signer.seed,
        "system.creds": user(system, "system", permissions.SYSTEM),
        "centre.creds": user(service, "centre", permissions.CENTRE),
        "servers.conf": _server_configuration(jwts, ACCOUNTS),
    }


def _server_configuration(jwts: Mapping[str, str], accounts: Path) -> str:
    preloaded = "".join(f"  {jwt.read(jwts[name]).sub}: {jwts[name]}\n" for name in _JWTS[1:])
    return (
        "# Include this in the configuration of every NATS server. It contains no secret.\n"
        f"operator: {jwts['operator']}\n"
        f"system_account: {jwt.read(jwts['system']).sub}\n"
        f'resolver {{ type: full, dir: "{accounts}", allow_delete: false, interval: "{SYNC_SECONDS}s" }}\n'
        f"resolver_preload {{\n{preloaded}}}"
    )


# Telling the servers


class _Server(msgspec.Struct):
    name: str


class _Failure(msgspec.Struct):
    description: str = ""


class _Statistics(msgspec.Struct):
    active_servers: int


class _Counted(msgspec.Struct):
    statsz: _Statistics


class _Taken(msgspec.Struct):
    server: _Server
    error: _Failure | None = None


async def push(account: str, servers: Servers) -> Sequence[str]:
    """Give an account's JWT to all servers; their names. UnavailableError: not all of them have it."""
    async with connection.once(servers) as client:
        return await _push(client, account)


async def _push(client: Client, account: str) -> Sequence[str]:
    found = await client.request(STATISTICS, timeout=PUSH_SECONDS)
    expected = msgspec.json.decode(found.data, type=_Counted).statsz.active_servers
    inbox = client.new_inbox()
    replies = await client.subscribe(inbox)
    await client.publish(UPDATE, account.encode(), reply=inbox)
    taken: list[str] = []
    try:
        async with asyncio.timeout(PUSH_SECONDS):
            while len(taken) < expected:
                reply = msgspec.json.decode((await replies.next_msg(PUSH_SECONDS)).data, type=_Taken)
                if reply.error is not None:
                    raise errors.UnavailableError(f"server {reply.server.name} refuses it: {reply.error.description}")
                taken.append(reply.server.name)
    except TimeoutError:
        have = f"only {', '.join(sorted(taken))} of {expected} servers have" if taken else "no server has"
        raise errors.UnavailableError(f"{have} confirmed it within {PUSH_SECONDS:g} s") from None
    return sorted(taken)
