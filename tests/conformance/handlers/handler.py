"""A handler as people write them, right unless it is told to make a mistake: `python handler.py [MISTAKE]`."""

import contextlib
import http.client
import json
import os
import sys
import time
import urllib.parse

MISTAKE = sys.argv[1] if len(sys.argv) > 1 else ""
URL = urllib.parse.urlsplit(os.environ["NOTBEFORE_URL"])
ME = os.environ["NOTBEFORE_NAME"]
PAUSE = 4.0 if MISTAKE == "polls-slowly" else 0.25


def ask(method: str, body: str | None = None) -> bytes:
    connection = http.client.HTTPConnection(URL.netloc, timeout=10)
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
        return list(json.loads(said)["Events"])
    except (OSError, http.client.HTTPException, ValueError):
        return None


def approve(event_id: str) -> None:
    if MISTAKE == "never-approves":
        return
    if MISTAKE == "approves-the-unknown":
        event_id = "00000000" + event_id[8:]
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask("POST", json.dumps({"StartRequests": [{"EventId": event_id}]}))


def note(variable: str, line: str) -> None:
    if MISTAKE not in ("has-no-hooks", "stops-polling"):
        with open(os.environ[variable], "a") as file:
            file.write(f"{line}\n")


def prepare(event_id: str) -> bool:
    if os.environ.get("NOTBEFORE_FAIL"):
        note("NOTBEFORE_PREPARED", f"failed {event_id}")
        return MISTAKE == "approves-after-failure"
    note("NOTBEFORE_PREPARED", event_id)
    return True


def recover(event_id: str) -> None:
    for _ in range({"never-recovers": 0, "recovers-twice": 2}.get(MISTAKE, 1)):
        note("NOTBEFORE_RECOVERED", event_id)


def handle(event_id: str) -> bool:
    """Whether that is settled."""
    if MISTAKE == "approves-first":
        approve(event_id)
    if not prepare(event_id):
        return False
    if MISTAKE == "recovers-early":
        recover(event_id)
    approve(event_id)
    while MISTAKE == "stops-polling":
        time.sleep(60)
    return True


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
            begun -= over
            for event_id in over if MISTAKE != "recovers-early" else ():
                recover(event_id)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
