"""Bearer tokens of operators, known by the digest of their secret."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    id: str
    name: str
    role: str
    digest: str
    created_at: datetime
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None
