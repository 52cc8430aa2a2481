"""Endpoints that know older api-versions only, and what they say to newer ones."""

import json
import threading
from collections.abc import Sequence

from tests.client import samples
from tests.client.samples import document
from tests.client.scripted import Asked, Script, answer

from forenotice.client.negotiation import NAMES
from forenotice.wire import versions

WORDS = "Bad request. api-version is invalid or was not specified in the request."
AZURE = "Bad request. api-version was not specified in the request. For more information refer to aka.ms/azureimds"
OLDEST = NAMES[0]

EVENT = samples.EVENT | {"EventType": "Reboot", "Resources": ["WestNO_0"], "Description": "", "DurationInSeconds": -1}


def refusal(error: str = "", listed: Sequence[str] = ()) -> bytes:
    said = {"error": error} if error else {}
    return answer("400 Bad Request", json.dumps(said | ({"newest-versions": listed} if listed else {})).encode())


def shown(name: str, **changed: object) -> dict[str, object]:
    version = versions.lookup(name)
    assert version is not None
    return {key: value for key, value in (EVENT | changed).items() if key in version.keys}


def version_of(asked: Asked) -> str:
    return asked.target.partition("api-version=")[2].partition("&")[0]


def knowing(known: Sequence[str], refused: bytes, **changed: object) -> Script:
    """An endpoint that knows these versions; `changed` is of its event."""

    def script(asked: Asked, ended: threading.Event) -> bytes:
        version = version_of(asked)
        if version not in known:
            return refused
        if asked.target.startswith("/metadata/instance"):
            return answer(body=b"WestNO_0")
        if asked.method == "POST":
            return answer()
        if asked.headers.get("if-none-match") == '"2"':
            return answer("304 Not Modified", b"", 'ETag: "2"')
        return answer("200 OK", document(shown(version, **changed)), 'ETag: "2"')

    return script
