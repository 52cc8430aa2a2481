"""Documents and answers as endpoints give them."""

import json
from typing import Any

from forenotice.client.http import Response

EVENT: dict[str, Any] = {
    "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    "EventStatus": "Scheduled",
    "EventType": "Freeze",
    "ResourceType": "VirtualMachine",
    "Resources": ["WestNO_0", "WestNO_1"],
    "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT",
    "Description": "Virtual machine is being paused.",
    "EventSource": "Platform",
    "DurationInSeconds": 5,
}
STARTED = EVENT | {"EventStatus": "Started", "NotBefore": ""}
OTHER = EVENT | {"EventId": "8A506C35-679A-4F78-9D76-C16DBE65EE6F", "EventType": "Reboot", "Resources": ["Other"]}


def document(*events: dict[str, Any], incarnation: object = 2) -> bytes:
    return json.dumps({"DocumentIncarnation": incarnation, "Events": events}).encode()


def said(body: bytes = b"", status: int = 200, **headers: str) -> Response:
    """Names of headers with `_` for `-`."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status=status, reason="Because", headers=fields, body=body)
