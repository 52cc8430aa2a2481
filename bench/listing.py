"""An endpoint that lists hundreds of events of one VM, for measuring what they cost its agent."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forenotice.wire import dates

NAME = "vm-0"
NOTICE = timedelta(hours=2)


@contextmanager
def listing(events: int, *, changes: bool) -> Iterator[str]:
    """Its address. With `changes`, another event is different every second."""
    not_before = dates.http(datetime.now(UTC) + NOTICE)
    begun = time.monotonic()

    def document() -> tuple[str, bytes]:
        incarnation = 2 + int(time.monotonic() - begun) if changes else 2
        listed = [
            {
                "EventId": f"{number:08X}-0000-0000-0000-000000000000",
                "EventStatus": "Scheduled",
                "EventType": "Reboot",
                "ResourceType": "VirtualMachine",
                "Resources": [NAME],
                "NotBefore": not_before,
                "Description": f"Changed at {incarnation}." if number == incarnation % events else "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
            for number in range(events)
        ]
        body = json.dumps({"DocumentIncarnation": incarnation, "Events": listed}).encode()
        return f'"{incarnation}"', body

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            tag, body = document()
            if "instance" in self.path:
                body = NAME.encode()
            if self.headers.get("If-None-Match") == tag:
                self.send_response(304)
                body = b""
            else:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", tag)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
