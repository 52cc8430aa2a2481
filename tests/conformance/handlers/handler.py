"""A handler as people write them, right unless it is told to make a mistake: `python handler.py [MISTAKE]`."""

import http.client
import json
import os
import sys
import time
import urllib.parse
from typing import Any

MISTAKE = sys.argv[1] if len(sys.argv) > 1 else ""
URL = urllib.parse.urlsplit(os.environ["FORENOTICE_URL"])
ME = os.environ["FORENOTICE_NAME"]
PAUSE = {"polls-slowly": 4.0, "recovers-at-each-poll": 1.5}.get(MISTAKE, 0.25)
newest = 0
"""Of the documents that were seen."""


def ask(method: str, body: str | None = None) -> bytes:
    connection = http.client.HTTPConnection(URL.netloc, timeout=60)
    try:
        headers = {} if MISTAKE == "sends-no-header" else {"Metadata": "true"}
        connection.request(method, f"{URL.path}?{URL.query}", body, headers)
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"answered {answer.status}")
    return said


def poll() -> list[dict[str, object]] | None:
    """None: that is not known."""
    try:
        said = ask("GET")
        if MISTAKE == "dies-on-empty-body":
            said = said or sys.exit("there is nothing in it")
        document = json.loads(said)
        return document["Events"] if can_read(document) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None


def can_read(document: dict[str, Any]) -> bool:
    global newest
    number = document["DocumentIncarnation"]
    older, newest = number < newest, max(number, newest)
    iso = any(event["NotBefore"].endswith("Z") for event in document["Events"])
    return not (MISTAKE == "ignores-lower-numbers" and older) and not (MISTAKE == "reads-no-iso-dates" and iso)


def approve(event_id: str) -> bool:
    """Whether it need not be tried again."""
    if MISTAKE == "never-approves":
        return True
    if MISTAKE == "approves-the-unknown":
        event_id = "00000000" + event_id[8:]
    try:
        ask("POST", json.dumps({"StartRequests": [{"EventId": event_id}]}))
    except (OSError, http.client.HTTPException):
        return MISTAKE == "drops-what-is-refused"
    return True


def note(variable: str, line: str) -> None:
    if MISTAKE not in ("has-no-hooks", "stops-polling"):
        with open(os.environ[variable], "a") as file:
            file.write(f"{line}\n")


def prepare(event_id: str) -> bool:
    if os.environ.get("FORENOTICE_FAIL"):
        note("FORENOTICE_PREPARED", f"failed {event_id}")
        return MISTAKE == "approves-after-failure"
    if MISTAKE != "prepares-for-reboots-only" or os.environ["FORENOTICE_SITUATION"] == "reboot":
        note("FORENOTICE_PREPARED", event_id)
    return True


def recover(event_id: str) -> None:
    for _ in range({"never-recovers": 0, "recovers-twice": 2}.get(MISTAKE, 1)):
        note("FORENOTICE_RECOVERED", event_id)


def handle(event_id: str) -> bool:
    """Whether that is settled."""
    if MISTAKE == "approves-first":
        approve(event_id)
    if not prepare(event_id):
        return False
    if MISTAKE == "recovers-early":
        recover(event_id)
    approved = approve(event_id)
    while MISTAKE == "stops-polling":
        time.sleep(60)
    return approved


def main() -> None:
    begun: set[str] = set()
    settled: set[str] = set()
    while True:
        events = poll()
        for event in events or []:
            event_id, names = str(event["EventId"]), event["Resources"]
            assert isinstance(names, list)
            mine = ME in names or MISTAKE == "approves-others"
            if mine and event["EventStatus"] == "Scheduled" and event_id not in settled:
                begun.add(event_id)
                if handle(event_id):
                    settled.add(event_id)
        if events is not None:
            over = begun - {str(event["EventId"]) for event in events}
            if MISTAKE != "recovers-at-each-poll":
                begun -= over
            for event_id in over if MISTAKE != "recovers-early" else ():
                recover(event_id)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
