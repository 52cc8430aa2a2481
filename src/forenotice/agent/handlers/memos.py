"""What a handler found before it acted: the names of what it is to bring back."""

from collections.abc import Sequence

import msgspec

_NAMES = msgspec.json.Decoder(tuple[str, ...])


def write(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def read(memo: str) -> Sequence[str] | None:
    """None: nothing is known, which is not the same as nothing."""
    try:
        return _NAMES.decode(memo) if memo else None
    except msgspec.DecodeError:
        return None
