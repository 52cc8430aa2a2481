"""Users of NATS in tests: their credentials, and connections that keep what the server complains of."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from nats.aio.client import Client

from forenotice.cluster import jwt
from forenotice.cluster.keys import Keys
from forenotice.cluster.subjects import CENTRE_INBOX, Subjects, token

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REFUSED = "permissions violation"


class Connection(Client):
    def __init__(self) -> None:
        super().__init__()
        self.complaints: list[str] = []

    async def complaint(self) -> str:
        """All that came so far, when everything that was sent has reached the server."""
        # The first ping may overtake what was sent before it.
        await self.flush()
        await self.flush()
        found, self.complaints = "; ".join(self.complaints), []
        return found


@asynccontextmanager
async def connected(urls: Sequence[str], credentials: Path, inbox: str, **options: Any) -> AsyncIterator[Connection]:
    client = Connection()

    async def keep(error: Exception) -> None:
        client.complaints.append(str(error))

    try:
        await client.connect(
            list(urls),
            user_credentials=str(credentials),
            inbox_prefix=inbox,
            error_cb=keep,
            **{"allow_reconnect": False, **options},
        )
        yield client
    finally:
        await client.close()


def edge(urls: Sequence[str], credentials: Path, host: str) -> "Any":
    return connected(urls, credentials, Subjects.of(host).inbox)


def centre(urls: Sequence[str], keys: Keys) -> "Any":
    return connected(urls, keys.centre_credentials, CENTRE_INBOX)


def signing_key(keys: Keys, name: str) -> jwt.Key:
    return jwt.Key((keys.directory / f"{name}.seed").read_text().strip())


def account(keys: Keys, name: str) -> jwt.Claims:
    return jwt.read((keys.directory / f"{name}.jwt").read_text())


def credentials(signer: jwt.Key, host: str, user: jwt.User) -> str:
    """Of a user that we have never heard of."""
    key = jwt.Key.make(jwt.USER)
    claims = jwt.Claims(sub=key.public, name=token(host), iat=int(NOW.timestamp()), nats=user)
    return jwt.credentials(jwt.sign(claims, signer), key)


def user(permissions: jwt.Permissions, issuer_account: str = "") -> jwt.User:
    granted = msgspec.structs.asdict(permissions)
    return jwt.User(version=jwt.VERSION, issuer_account=issuer_account, **granted)
