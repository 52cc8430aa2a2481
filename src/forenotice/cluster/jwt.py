"""NATS's JWTs, as far as we sign them: the claims of an operator, of accounts and of users, and their keys."""

import base64
import hashlib
import os
from collections.abc import Mapping

import msgspec
import nkeys  # type: ignore[import-untyped]

VERSION = 2
HEADER = b'{"typ":"JWT","alg":"ed25519-nkey"}'
UNLIMITED = -1
OPERATOR, ACCOUNT, USER = nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER


class Key:
    """A pair of keys, whose seed is the secret."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self._pair = nkeys.from_seed(bytearray(seed.encode()))
        self.public: str = self._pair.public_key.decode()

    @classmethod
    def make(cls, kind: int) -> "Key":
        return cls(nkeys.encode_seed(os.urandom(32), kind).decode())

    def sign(self, data: bytes) -> bytes:
        signature: bytes = self._pair.sign(data)
        return signature


class Allowed(msgspec.Struct, frozen=True):
    """Subjects; everything else is refused."""

    allow: tuple[str, ...]


class Responses(msgspec.Struct, frozen=True):
    """May publish to the reply subject of what it receives, this often and this long."""

    max: int
    ttl: int
    """In nanoseconds."""


class Permissions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pub: Allowed | None = None
    sub: Allowed | None = None
    resp: Responses | None = None
    allowed_connection_types: tuple[str, ...] = ()
    subs: int = 0
    data: int = 0
    payload: int = 0


class SigningKey(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="user_scope"):
    """Signs users of an account, who have the permissions of the template and no others."""

    key: str
    role: str
    template: Permissions


class Shared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Subjects that one account exports and another imports."""

    name: str
    subject: str
    type: str
    account: str = ""
    """In an import: whose they are."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    subs: int = UNLIMITED
    data: int = UNLIMITED
    payload: int = UNLIMITED
    conn: int = UNLIMITED
    imports: int = UNLIMITED
    exports: int = UNLIMITED
    wildcards: bool = True
    disallow_bearer: bool = True
    leaf: int = 0
    mem_storage: int = 0
    disk_storage: int = 0
    streams: int = 0
    consumer: int = 0


class Operator(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="operator"):
    version: int = VERSION
    system_account: str


class Account(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="account"):
    version: int = VERSION
    limits: Limits
    signing_keys: tuple[SigningKey, ...] = ()
    exports: tuple[Shared, ...] = ()
    imports: tuple[Shared, ...] = ()
    revocations: Mapping[str, int] = {}
    """Public keys of users; those whose JWT was issued up to then are refused."""


class User(Permissions, frozen=True, kw_only=True, tag_field="type", tag="user"):
    """One that a signing key signs has the permissions of its template, and must have none of its own."""

    version: int
    issuer_account: str = ""
    """Whose signing key it is, if one signs it."""


class Claims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    sub: str
    """The public key that this is about."""
    iss: str = ""
    name: str
    iat: int
    jti: str = ""
    nats: Operator | Account | User


def sign(claims: Claims, key: Key) -> str:
    """Servers take a JWT for the one they have if its id is the same, so the id depends on everything in it."""
    issued = msgspec.structs.replace(claims, iss=key.public, jti="")
    digest = hashlib.sha256(msgspec.json.encode(issued)).digest()
    complete = msgspec.structs.replace(issued, jti=base64.b32encode(digest).decode().rstrip("="))
    signed = b".".join(map(_encode, (HEADER, msgspec.json.encode(complete))))
    return b".".join((signed, _encode(key.sign(signed)))).decode()


def read(text: str) -> Claims:
    """Of a JWT that is our own: its signature is not checked."""
    body = text.split(".")[1]
    return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Claims)


def credentials(text: str, key: Key) -> str:
    """What a user connects with, as a file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{text}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
    )


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
