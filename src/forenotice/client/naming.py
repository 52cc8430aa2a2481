"""This VM's own name, as the endpoint writes it into Resources."""

import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from forenotice.client import refusals
from forenotice.client.endpoint import Endpoint
from forenotice.client.errors import EndpointError
from forenotice.client.events import Document, Event
from forenotice.client.flow import Flow
from forenotice.client.negotiating import NEWEST

VARIABLE = "FORENOTICE_NAME"
TARGET = "/metadata/instance/compute/name?api-version={version}&format=text"
VERSION = "2021-02-01"
HOST_NAME = "host name"

_NAME = re.compile(r'[^\s<>{}"]{1,256}')


@dataclass(frozen=True, slots=True)
class Name:
    text: str
    how: str
    """How it was come by, in words."""


class Naming:
    def __init__(self, endpoint: Endpoint, given: str | None, environ: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self.known: Name | None = None
        """For good; a host name is only a guess, and the endpoint is asked again."""
        variable = environ.get(VARIABLE)
        if name := given or variable:
            self.known = Name(name, VARIABLE if name == variable else "given")

    def find(self) -> Flow[Name]:
        """EndpointError: it could not be asked. A guess then would make us deaf to our own events."""
        if self.known is not None:
            return self.known
        negotiation = self._endpoint.negotiation
        # An older endpoint knows the version of its events, but may not know ours.
        first = VERSION if negotiation.version == NEWEST else negotiation.version
        answer = yield from self._endpoint.ask("GET", TARGET.format(version=first))
        if answer.status == 400:
            if not negotiation.accepted:
                with suppress(EndpointError):
                    yield from self._endpoint.poll()
            second = VERSION if first != VERSION else negotiation.version
            answer = yield from self._endpoint.ask("GET", TARGET.format(version=second))
        text = answer.body.decode("utf-8-sig", "replace").strip()
        if answer.status == 200 and _NAME.fullmatch(text):
            self.known = Name(text, "the endpoint")
            return self.known
        if answer.status in (400, 404) or (answer.status == 200 and text):
            # An endpoint that has no /metadata/instance: emulators.
            return Name(socket.gethostname().partition(".")[0], HOST_NAME)
        raise refusals.no_name(self._endpoint.at, answer)


def relevant(document: Document, naming: Naming | None) -> Flow[tuple[Event, ...]]:
    """The events that are about this VM, as far as its name is known; without a naming, all of them."""
    if naming is None or not document.events:
        return document.events
    me = (yield from naming.find()).text
    return tuple(event for event in document.events if event.names(me))
