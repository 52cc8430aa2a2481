"""Tokens of operators."""

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from forenotice.core.roles import MOST_NETWORKS, Role
from forenotice.views.base import LATER, LongText, Name, Request, Response, Text, example


class Token(Response):
    id: str
    name: str
    role: Role
    scopes: str | None
    """Whose VMs, groups and events it is for, such as `web-*,vm:db`; null: all."""
    networks: list[str]
    """Source networks that it may be used from; empty: anywhere."""
    expires_at: datetime | None
    previous_until: datetime | None
    """The secret from before the last rotation still works until then."""
    created_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class CreatedToken(Token):
    token: str | None
    """Null when it has been shown before, under the same Idempotency-Key."""


class NewToken(Request):
    name: Name
    role: Role
    scopes: Annotated[LongText | None, Meta(examples=["web-*,vm:db"])] = None
    """Whose VMs, groups and events; needed for a tenant, possible for a viewer."""
    expires_in: Annotated[str | None, Meta(examples=["90d"])] = None
    """A duration or `never`; 90 days if left out."""
    networks: Annotated[list[Text], Meta(max_length=MOST_NETWORKS, examples=[["10.0.0.0/8"]])] = []
    """Source networks that it may be used from; anywhere if left out."""


class TokenRotation(Request):
    overlap: Annotated[str, Meta(examples=["1h"])] | UnsetType = UNSET
    """For how long the old secret still works, an hour if left out; `0s` ends it at once."""
    expires_in: Annotated[str | None, Meta(examples=["90d"])] = None
    """A duration or `never`; if left out, the same lifetime as before."""


_TOKEN = example(Token, name="shop", role=Role.TENANT, scopes="web-*,vm:db", networks=["10.0.0.0/8"], expires_at=LATER)
example(CreatedToken, **msgspec.structs.asdict(_TOKEN), token="fn_...")  # noqa: S106
example(NewToken, name="shop", role=Role.TENANT, scopes="web-*,vm:db", expires_in="90d", networks=["10.0.0.0/8"])
example(TokenRotation, overlap="1h", expires_in="90d")
