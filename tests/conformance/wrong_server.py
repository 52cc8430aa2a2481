"""An endpoint that is right, but for the mistakes that are switched on. It shares no code with ours."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.client.scripted import Asked, scripted

KEYS = ["EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore"]
ADDED = {"2019-04-01": "Description", "2019-08-01": "EventSource", "2020-07-01": "DurationInSeconds"}
VERSIONS = ["2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", *ADDED]
TYPES = {"Freeze": VERSIONS[0], "Reboot": VERSIONS[0], "Preempt": "2017-11-01", "Terminate": "2019-01-01"}
HEADER = "Bad request. Required metadata header not specified"
VERSION = "Bad request. api-version is invalid or was not specified in the request."
LASTS = 0.2
"""For so many seconds an event is Started."""
POLLS = 16
"""So often every status can be seen, however slow the machine is."""
CAPTURED = {
    HEADER: "Bad request: . Required metadata header not specified",
    VERSION: f"{VERSION} For more information refer to aka.ms/azureimds",
}
"""What the real service said instead."""
COMPUTE: Mapping[str, object] = {
    **dict.fromkeys(("vmId", "location", "resourceGroupName", "subscriptionId", "vmSize", "osType"), "x"),
    **dict.fromkeys(("platformUpdateDomain", "platformFaultDomain", "placementGroupId", "vmScaleSetName"), "0"),
    **dict.fromkeys(("zone", "priority", "evictionPolicy", "tags", "resourceId"), ""),
    "name": "web-0",
    "tagsList": [{"name": "a", "value": "b"}],
}


VALUES: Mapping[str, tuple[str, object]] = {
    "other-resource-type": ("ResourceType", "VM"),
    "no-resources": ("Resources", []),
    "no-description-text": ("Description", None),
    "other-source": ("EventSource", "Nobody"),
    "duration-as-text": ("DurationInSeconds", "5"),
}
"""Of events, by the mistake that they are."""


@dataclass
class Event:
    id: str
    status: str = "Scheduled"
    began: float = 0.0
    steps: int = 0
    """It has taken where it should not."""
    polls: int = 0
    """It was seen in, as it is now."""
    made: datetime = field(default_factory=lambda: datetime.now(UTC))


class Refusal(Exception):  # noqa: N818 - it is an answer
    def __init__(
        self, status: int, said: str, headers: Mapping[str, str] | None = None, newest: Sequence[str] = ()
    ) -> None:
        more = {"newest-versions": newest} if newest else {}
        self.status, self.body = status, json.dumps({"error": said, **more}).encode()
        self.headers = headers or {}


Reply = tuple[int, dict[str, str], bytes]


class WrongServer:
    def __init__(
        self,
        *mistakes: str,
        kind: str = "Reboot",
        lasts: float = LASTS,
        hesitates: int = 0,
        born_started: bool = False,
        notice: float = 900,
        newest: str = VERSIONS[-1],
        rfc_dates: bool = False,
    ) -> None:
        self._versions = [version for version in VERSIONS if version <= newest]
        self._rfc_dates = rfc_dates
        """Also in the oldest version, as the real service was seen to send."""
        self._mistakes = frozenset(mistakes)
        self._kind = kind
        self._lasts = lasts
        self._hesitates = hesitates
        self._notice = timedelta(seconds=notice)
        self._born_started = born_started
        self.posts = 0
        self.silent = False
        self.silent_on: frozenset[str] = frozenset()
        """Methods that get no answer."""
        self.refuses_first = 0
        """So many polls are refused with 429."""
        self.retry_after: str | None = "0"
        self._changed = threading.Condition()
        self._id = uuid.uuid4()
        self._incarnation = 1
        self._event: Event | None = None
        self._ended: set[str] = set()
        self._approved: set[str] = set()
        self.url = ""

    def has(self, *mistakes: str) -> bool:
        """Any of them."""
        return not self._mistakes.isdisjoint(mistakes)

    # Its one event

    def provoke(self) -> "WrongServer":
        with self._changed:
            if not self.has("never-appears"):
                self._event = Event(self._new_id())
                self._change()
                if self._born_started:
                    self._start(self._event)
        return self

    def failure(self) -> str:
        return ""

    def close(self, *, at_once: bool = False) -> None:
        """As a command that has ended."""

    def _new_id(self) -> str:
        found = str(self._id if self.has("same-id-again") else uuid.uuid4())
        return found if self.has("lower-case-ids") else found.upper()

    def _change(self) -> None:
        if not self.has("number-stands"):
            self._incarnation += 1
        self._changed.notify_all()

    def _become(self, event: Event, status: str) -> None:
        if self.has("new-id-at-every-state"):
            self._ended.add(event.id)
            event.id = self._new_id()
        event.status, event.began, event.polls = status, monotonic(), 0
        self._change()

    def _tick(self) -> None:
        event = self._event
        if event is None or event.began == 0 or self.has("never-gone") or event.polls < POLLS:
            return
        age = monotonic() - event.began
        if self.has("back-to-scheduled") and event.steps < 2:
            if age > self._lasts / 3:
                self._become(event, ("Scheduled", "Started")[event.steps])
                event.steps += 1
            return
        if age < (self._lasts / 3 if self.has("briefly-started") else self._lasts):
            return
        if event.status == "Started" and self.has("completed-shown", "completed-stays"):
            self._become(event, "Completed")
            return
        if self.has("completed-stays"):
            return
        self._ended.add(event.id)
        self._event = None
        self._change()

    def _start(self, event: Event) -> None:
        if event.status != "Scheduled" or self.has("no-effect"):
            return
        self._become(event, "Started")
        if self.has("never-started"):
            self._ended.add(event.id)
            self._event = None

    # Answers

    def answer(self, asked: Asked) -> Reply:
        with self._changed:
            self._tick()
            self.posts += asked.method == "POST"
            try:
                status, headers, body = self._serve(asked)
            except Refusal as refusal:
                status, body = refusal.status, refusal.body
                headers = {"Content-Type": "application/json; charset=utf-8", **refusal.headers}
                if self.has("other-words"):
                    # As the real service writes it.
                    body = b"{ " + body[1:-1] + b" }"
                text = self.has("errors-as-text")
                if text or (self.has("approval-errors-as-text") and asked.method == "POST"):
                    headers["Content-Type"], body = "text/plain", b"Bad request"
        if not self.has("no-date"):
            late = timedelta(days=self.has("date-of-yesterday"))
            headers["Date"] = format_datetime(datetime.now(UTC) - late, usegmt=True)
        return status, headers, body

    def _serve(self, asked: Asked) -> Reply:
        split, headers = urlsplit(asked.target), asked.headers
        path = split.path if self.has("path-case") else split.path.lower()
        self._refuse(asked.protocol == "HTTP/1.0" and self.has("http-1-0-refused"), 505)
        self._refuse("expect" in headers and self.has("expectation-failed"), 417)
        self._refuse(bool(split.netloc) and self.has("absolute-form-unknown"), 404)
        serve, methods = self._place(path)
        if asked.method not in methods and not (asked.method == "HEAD" and self.has("head-like-get")):
            allow = {} if self.has("no-allow") else {"Allow": ", ".join(methods)}
            raise Refusal(404 if self.has("not-found-for-method") else 405, "Not allowed", allow)
        pairs = parse_qsl(split.query)
        query = dict(pairs)
        on_post = asked.method == "POST"
        checks_proxy = not self.has("no-proxy-check") and not (on_post and self.has("proxy-unchecked-on-post"))
        self._refuse("x-forwarded-for" in headers and checks_proxy)
        self._refuse(("forwarded" in headers or "via" in headers) and not self.has("via-accepted"))
        host = headers.get("host")
        self._refuse(host is None and asked.protocol == "HTTP/1.1" and not self.has("no-host-accepted"))
        self._refuse(host is not None and not host.startswith("127.") and not self.has("any-host"))
        checks_twice = not self.has("repeated-accepted") and not (on_post and self.has("repeated-on-post"))
        self._refuse(len(pairs) != len(query) and checks_twice)
        misordered = self.has("version-before-header") and path == "/metadata/scheduledevents"
        if misordered and query.get("api-version") not in self._versions:
            self._refuse_version()
        self._check_header(asked, query)
        return serve(asked, path, query)

    def _refuse(self, wrong: bool, status: int = 400) -> None:
        if wrong:
            raise Refusal(status, "Refused")

    def _place(self, path: str) -> tuple[Callable[[Asked, str, dict[str, str]], Reply], list[str]]:
        if path == "/metadata/scheduledevents":
            return self._scheduled_events, ["GET", "POST"]
        if path in ("/metadata/latest/scheduledevents", "/metadata/2017-03-01/scheduledevents"):
            if not self.has("historic-path-unknown"):
                return self._scheduled_events, ["GET", "POST"]
        elif path == "/metadata/versions" and not self.has("no-instance"):
            listed = [1, None] if self.has("versions-are-numbers") else VERSIONS
            return lambda *_: self._json({"apiVersions": listed}), ["GET"]
        elif path.startswith("/metadata/instance") and not self.has("no-instance"):
            return self._instance, ["GET"]
        raise Refusal(400 if self.has("unknown-path-400") else 404, "Not found")

    def _check_header(self, asked: Asked, query: Mapping[str, str]) -> None:
        if self.has("no-header-check"):
            return
        value = asked.headers.get("metadata", "")
        if not self.has("header-value-exact"):
            value = value.lower()
        free = query.get("api-version") == VERSIONS[0] and not self.has("header-on-every-post")
        if asked.method == "POST" and value == "false" and self.has("false-header-on-post"):
            return
        if value != "true" and not (asked.method == "POST" and free):
            raise Refusal(400, CAPTURED[HEADER] if self.has("other-words") else HEADER)

    def _refuse_version(self) -> None:
        newest = [] if self.has("no-newest-versions") else self._versions[:-4:-1]
        if self.has("oldest-versions-named"):
            newest = self._versions[2::-1]
        raise Refusal(400, CAPTURED[VERSION] if self.has("other-words") else VERSION, newest=newest)

    def _scheduled_events(self, asked: Asked, path: str, query: Mapping[str, str]) -> Reply:
        version = query.get("api-version", "")
        if self.has("version-unread") or (self.has("latest-accepted") and version == "latest"):
            version = VERSIONS[-1]
        left_out = version == "2019-04-01" and self.has("version-not-served")
        if path.count("/") > 2 or version not in self._versions or left_out:
            unchecked = asked.method == "POST" and self.has("version-unchecked-on-post")
            if path.count("/") > 2 or not (unchecked or self.has("no-version-check")):
                self._refuse_version()
            version = self._versions[-1]
        return self._approve(asked) if asked.method == "POST" else self._poll(asked, version)

    # The document

    def _poll(self, asked: Asked, version: str) -> Reply:
        if self.refuses_first:
            self.refuses_first -= 1
            raise Refusal(429, "Too many", {} if self.retry_after is None else {"Retry-After": self.retry_after})
        if self._hesitates:
            self._hesitates -= 1
            return 200, {"Content-Type": "application/json; charset=utf-8"}, b""
        if self.has("number-restless"):
            self._incarnation += 1
        condition = asked.headers.get("if-none-match")
        waits = "wait=" in asked.headers.get("prefer", "") and not self.has("no-wait")
        if waits and (condition is not None or self.has("wait-unconditional")):
            self._wait(condition, float(asked.headers["prefer"].partition("=")[2]))
        tag = self._tag()
        if condition is not None and self._matches(condition):
            return 304, {"ETag": tag}, b""
        status, headers, body = self._json(self._document(version))
        if not self.has("no-tag"):
            headers["ETag"] = f'"{uuid.uuid4()}"' if self.has("random-tag") else tag
        if self.has("html"):
            headers["Content-Type"] = "text/html"
        return status, headers, body

    def _wait(self, condition: str | None, seconds: float) -> None:
        deadline = monotonic() + seconds
        while condition is None or self._matches(condition) or self.has("wait-sleeps"):
            left = deadline - monotonic()
            if left <= 0:
                return
            self._changed.wait(min(left, 0.05))
            self._tick()

    def _tag(self) -> str:
        return f'"{self._incarnation}-x"'

    def _matches(self, condition: str) -> bool:
        if self.has("tag-ignored"):
            return False
        if self.has("tag-exact"):
            return condition == self._tag()
        named = [part.strip().removeprefix("W/").strip('"') for part in condition.split(",")]
        return self._tag().strip('"') in named or self.has("any-tag-matches")

    def _document(self, version: str) -> dict[str, object]:
        number: object = self._incarnation
        if self.has("number-as-text"):
            number = str(number)
        if self.has("number-by-version"):
            number = self._incarnation * 2 - (version != VERSIONS[-1])
        event = self._event
        if event is not None:
            event.polls += 1
        shown = event is not None and (TYPES[self._kind] <= version or self.has("type-too-early"))
        if self.has("hidden-from-old") and version == VERSIONS[0]:
            shown = False
        document: dict[str, object] = {"DocumentIncarnation": number}
        times = 2 if self.has("listed-twice") else 1
        document["Events"] = [self._shown(event, version)] * times if shown and event else []
        if self.has("extra-key"):
            document["Extra"] = True
        return dict(reversed(document.items())) if self.has("other-order") else document

    def _shown(self, event: Event, version: str) -> dict[str, object]:
        keys = KEYS + [key for since, key in ADDED.items() if version >= since]
        if self.has("description-too-early") and "Description" not in keys:
            keys.append("Description")
        underscore = version == VERSIONS[0] and not self.has("no-underscore")
        prefix = "_" if underscore or self.has("underscores-everywhere") else ""
        everything = {
            "EventId": event.id,
            "EventStatus": event.status.lower() if self.has("lower-case-status") else event.status,
            "EventType": self._kind,
            "ResourceType": "VirtualMachine",
            "Resources": [f"{prefix}web-0"],
            "NotBefore": self._not_before(event, version),
            "Description": f"Something of {version}" if self.has("description-by-version") else "Something",
            "EventSource": "User",
            "DurationInSeconds": -1,
            **{key: value for mistake, (key, value) in VALUES.items() if self.has(mistake)},
        }
        return {key: everything[key] for key in keys if key != "EventId" or not self.has("no-id")}

    def _not_before(self, event: Event, version: str) -> str:
        if event.status != "Scheduled" and not self.has("not-before-kept"):
            return ""
        notice = timedelta(seconds=20) if self.has("short-notice") else self._notice
        if self.has("not-before-moves"):
            event.steps += 1
            self._incarnation += 1
            notice += timedelta(minutes=event.steps)
        moment = (event.made + notice + timedelta(seconds=1)).replace(microsecond=0)
        if (version == VERSIONS[0] and not self._rfc_dates) or self.has("iso-dates"):
            return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
        return format_datetime(moment, usegmt=True)

    def _json(self, found: object) -> Reply:
        text = json.dumps(found, indent=2) if self.has("pretty") else json.dumps(found, separators=(",", ":"))
        return 200, {"Content-Type": "application/json; charset=utf-8"}, text.encode()

    # Approving

    def _approve(self, asked: Asked) -> Reply:
        headers = asked.headers
        self._refuse("if-none-match" in headers and self.has("tag-on-post"), 412)
        if self.has("unchanged-on-post") and headers.get("if-none-match") == self._tag():
            return 304, {"ETag": self._tag()}, b""
        form = headers.get("content-type") == "application/x-www-form-urlencoded"
        self._refuse(form and self.has("form-refused"), 415)
        unread = "transfer-encoding" in headers and self.has("chunks-unread")
        event_ids = self._requested(b"" if unread else asked.body)
        self._refuse(self.has("all-refused"))
        live = {self._event.id} if self._event else set()
        known = live if self.has("forgets-the-ended") else live | self._ended
        if not self.has("id-case"):
            known, event_ids = {each.upper() for each in known}, [each.upper() for each in event_ids]
        if self._event is not None and self.has("any-id-starts"):
            self._start(self._event)
        elif not self.has("unknown-accepted") and not known.issuperset(event_ids):
            if self._event is not None and self.has("starts-though-refused"):
                self._start(self._event)
            raise Refusal(400, "No such event")
        self._refuse(self.has("only-once") and bool(self._approved & set(event_ids)), 409)
        self._approved |= set(event_ids)
        event = self._event
        if event is not None and (event.id if self.has("id-case") else event.id.upper()) in event_ids:
            self._start(event)
        body = b"{}" if self.has("answers-with-body") else b""
        return 202 if self.has("answers-202") else 200, {}, body

    def _requested(self, body: bytes) -> list[str]:
        self._refuse(len(body) > 65536 and not self.has("large-accepted"))
        self._refuse(len(body) > 200 and self.has("only-small-accepted"))
        try:
            found: Any = json.loads(body)
            requests = found["StartRequests"]
            event_ids = [str(uuid.UUID(request["EventId"])) and request["EventId"] for request in requests]
        except (ValueError, TypeError, KeyError, AttributeError):
            if self.has("malformed-accepted"):
                return []
            raise Refusal(400, "Malformed") from None
        self._refuse(not event_ids and not self.has("empty-list-accepted"))
        self._refuse("DocumentIncarnation" in found and self.has("number-beside-refused"))
        unknown = set(found) - {"StartRequests", "DocumentIncarnation"}
        self._refuse(bool(unknown) and self.has("unknown-keys-refused"))
        return event_ids[:1] if self.has("first-only") else event_ids

    # What a VM is told of itself

    def _instance(self, asked: Asked, path: str, query: Mapping[str, str]) -> Reply:
        known = not self.has("instance-one-version") or query.get("api-version") == "2021-02-01"
        version = query.get("api-version", "")
        known &= len(version) == 10 and version >= "2017-04-02"
        if not known and not self.has("instance-any-version"):
            self._refuse_version()
        compute = dict(COMPUTE)
        if self.has("few-keys"):
            del compute["vmId"]
        if self.has("numbers-in-instance"):
            compute["platformUpdateDomain"] = 0
        if self.has("other-name"):
            compute["name"] = "WEB-0"
        if path == "/metadata/instance":
            return self._json({"compute": compute, "network": {"interface": []}})
        self._refuse(query.get("format") != "text" and not self.has("leaf-in-json"))
        name = str(compute["name"])
        return 200, {"Content-Type": "text/plain"}, (f'"{name}"' if self.has("leaf-quoted") else name).encode()


@contextmanager
def serving(wrong: WrongServer) -> Iterator[WrongServer]:
    def respond(asked: Asked, ended: threading.Event) -> bytes:
        if wrong.silent or asked.method in wrong.silent_on:
            ended.wait()
        status, headers, body = wrong.answer(asked)
        lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
        if status != 304:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body

    with scripted(respond) as server:
        wrong.url = server.url
        yield wrong
