"""The files that pages load: stylesheet, modules, icon. Their address changes with what is in them."""

import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Final

from starlette.responses import Response

PLACE = "/static"
TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
FOR_EVER = "public, max-age=31536000, immutable"


class Assets:
    """In memory: a few files of a few KiB."""

    def __init__(self) -> None:
        found = resources.files("forenotice.portal").joinpath("static").iterdir()
        self._files = {file.name: file.read_bytes() for file in found if file.name.rpartition(".")[2] in TYPES}
        digest = hashlib.sha256()
        for name in sorted(self._files):
            digest.update(name.encode() + b"\0" + self._files[name])
        # One for all, so that a module finds the others beside it.
        self.version = digest.hexdigest()[:12]

    def url(self, name: str) -> str:
        if name not in self._files:
            raise LookupError(name)
        return f"{PLACE}/{self.version}/{name}"

    def answer(self, version: str, name: str) -> Response | None:
        """None: there is no such file. A page of another version of ours gets what there is, and keeps it not."""
        content = self._files.get(name)
        if content is None:
            return None
        kept = FOR_EVER if version == self.version else "no-store"
        return Response(content, headers={"Content-Type": TYPES[name.rpartition(".")[2]], "Cache-Control": kept})
