"""The emulator's page, by its forms and without a browser; and what it is told while it is open."""

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from html import unescape
from http.client import HTTPConnection, HTTPResponse
from time import monotonic, process_time
from typing import Any

import pytest
import structlog
from tests.acceptance.running import DEADLINE, ask, until
from tests.emulator.controlled import Controlled, controlled
from tests.portal.running import HIDDEN, Answer, Visitor

from forenotice.core.operations import Kind
from forenotice.emulator import faults
from forenotice.emulator.control import Control
from forenotice.emulator.emulator import Emulator
from forenotice.emulator.portal import app
from forenotice.emulator.scenarios import catalogue, preview
from forenotice.emulator.simulation import Announcement
from forenotice.settings import Address
from forenotice.wire import versions

RAW = re.compile(r'aria-label="The document as it is sent">(.*?)</pre>', re.DOTALL)


@dataclass
class Page:
    """In a visitor's hands."""

    emulator: Controlled
    visitor: Visitor

    def get(self, query: str = "") -> Answer:
        return self.visitor.get(f"/{query}")

    def send(self, path: str, status: int = 303, **fields: object) -> Answer:
        """And the page that it leads to, or that refuses it."""
        found = self.visitor.post(path, fields, status=status)
        return self.visitor.get(found.location.partition("#")[0]) if status == 303 else found

    @property
    def statuses(self) -> list[str]:
        return [event["status"] for event in self.emulator.get("/state")["events"]]

    @property
    def clock(self) -> datetime:
        return datetime.fromisoformat(self.emulator.get("/state")["now"])

    @property
    def token(self) -> str:
        found = HIDDEN.search(self.get().html)
        assert found is not None
        return found[1]


@pytest.fixture(scope="module")
def shared() -> Iterator[Page]:
    with controlled() as found:
        yield Page(found, Visitor(int(found.control.rpartition(":")[2])))


@pytest.fixture
def page(shared: Page) -> Page:
    """As if new."""
    shared.emulator.post("/resume")
    shared.emulator.post("/play", scenario="reboot", resources=["web-0"])
    shared.emulator.post("/reset")
    shared.visitor.cookies.clear()
    return shared


def test_a_scenario_is_picked_and_stepped_through_to_its_end(page: Page) -> None:
    picked = page.get("?scenario=rolling-update")
    assert all(catalogue.load(name).title in picked.text for name in catalogue.names())
    assert "All hosts are updated, one update domain after the other. Timing: ours." in picked.text
    assert 'value="web-0, web-1, web-2"' in picked.html
    assert 'id="preview-web-2"' in picked.html
    begun = page.send("/play?scenario=rolling-update", scenario="rolling-update", resources="a, b,c", how="step")
    assert "Rolling update has begun, and the clock stands" in begun.text
    assert "Next: Freeze of a starts: its NotBefore has come, in 15 min" in begun.text
    assert 'value="a, b, c"' in begun.html
    assert [vm["name"] for vm in page.emulator.get("/state")["vms"]] == ["a", "b", "c"]
    seen = [page.statuses]
    for _ in range(5):
        page.send("/step")
        seen.append(page.statuses)
    assert seen == [["Scheduled"], ["Started"]] * 3
    over = page.send("/step")
    assert page.statuses == []
    assert "Rolling update: all is played" in over.text
    assert "Next: nothing by itself" in over.text
    assert "Freeze of c completed." in over.text
    assert len(set(re.findall(r'id="bar-([0-9A-F-]+)-[abc]"', over.html))) == 3
    refused = page.send("/step", 409)
    assert "nothing happens by itself now" in refused.text


def test_a_scenario_that_runs_goes_on_by_the_clock(page: Page) -> None:
    page.send("/play", scenario="reboot", resources="", how="step")
    assert page.emulator.get("/state")["paused"]
    running = page.send("/play", scenario="reboot", resources="web-0", how="play")
    assert not page.emulator.get("/state")["paused"]
    assert "Restart by a user has begun." in running.text
    assert "data-countdown" in running.html
    assert page.statuses == ["Scheduled"]
    assert "The clock was moved on by 15m." in page.send("/advance", by="15m").text
    assert page.statuses == ["Started"]
    # The clock is moved on to a whole second, so that it may be a second more.
    assert re.search(r"Beside this machine's (\d+ h )?\d+ min( 1 s)? ahead", page.get().text)
    assert "The clock stands" in page.send("/pause").text
    assert "paused" in page.get().text
    assert "goes on" in page.send("/resume").text
    ahead = page.clock
    over = page.send("/reset").text
    assert "All is reset" in over
    assert "The clock stays ahead of this machine's" in over
    assert "Nothing is announced." in over
    page.send("/play", scenario="reboot", how="play")
    assert page.clock >= ahead


def test_every_scenario_is_drawn(page: Page) -> None:
    for name in catalogue.names():
        planned = preview.compute(catalogue.load(name))
        bars = sum(len(each.event.resources) for each in planned.events) + len(planned.faults)
        assert page.get(f"?scenario={name}").html.count('<a id="bar-plan-') == bars, name


def test_steps_between_events_and_deviations_are_shown(page: Page) -> None:
    begun = page.send("/play?scenario=second-impact", scenario="second-impact", resources="", how="step")
    assert "waits for Freeze of web-0 to be started" in begun.text
    assert "waits for its next step at" in page.send("/step?scenario=second-impact").text
    after = page.send("/step?scenario=second-impact")
    assert "Next: frozen is over, in 9 s" in after.text
    assert "Next: the scenario goes on with its next step, in 1 min 51 s" in page.send("/step").text
    page.emulator.post("/play", scenario="maintenance-cancelled")
    page.emulator.post(f"/events/{page.emulator.get('/state')['events'][0]['id']}/approve")
    page.emulator.post("/advance", by="8m")
    assert "it is too late to cancel it" in page.get().text


SHOWN = [
    ([], "?scenario=rolling-update&resources=one", ("give 3 names, not 1", 'value="one"')),
    ([], "?scenario=none&vm=none&api-version=none", ("Restart by a user",)),
    ([("/faults", {"name": "reset"})], "", ("A poll would meet reset now: no response, the connection is reset.",)),
    ([("/faults", {"name": "empty-body"})], "", ("The body is empty.",)),
    ([("/events", {"kind": "freeze", "resources": ["db"]})], "?vm=db", ("Open a port for db",)),
    ([], "", ("web-0 has not polled yet", "Nobody has called yet.", "Nothing is announced.")),
]


@pytest.mark.parametrize(("posts", "query", "shown"), SHOWN)
def test_what_is_shown(page: Page, posts: list[tuple[str, dict[str, Any]]], query: str, shown: tuple[str, ...]) -> None:
    for path, body in posts:
        page.emulator.post(path, **body)
    found = page.get(query)
    assert all(text in found.text or text in found.html for text in shown)


def test_a_defect_is_told() -> None:
    emulator = Emulator(as_vm="web-0")
    emulator.start()
    control = Control(emulator, Address(host="127.0.0.1", port=0))
    control.start()
    emulator.simulation.entries.append(None)  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as logs:
        assert "see the emulator's log" in Visitor(control.address.port).get("/", status=500).text
    assert [line["action"] for line in logs] == ["emulator.page_failed"]
    control.stop()
    emulator.stop()


def test_events_by_hand_are_approved_and_cancelled_in_the_guests_place(page: Page) -> None:
    said = page.send("/announce", kind="redeploy", resources="web-0, db", notice="5m", takes="1m", description="Now.")
    assert "Redeploy of db, web-0 is Scheduled." in said.text
    assert "Redeploy of db and web-0 was announced, not before" in said.text
    page.send("/announce", kind="freeze", resources="", notice="", takes="", description="")
    first, second = page.emulator.get("/state")["events"]
    assert (first["description"], second["resources"]) == ("Now.", ["web-0"])
    assert "was approved in its guests' place: it is Started." in page.send("/approve", event=first["id"]).text
    assert "Freeze of web-0 was cancelled." in page.send("/cancel", event=second["id"]).text
    assert page.statuses == ["Started"]
    late = page.send("/cancel", 409, event=first["id"])
    assert "Refused:" in late.text


WRONG: list[tuple[str, dict[str, object], str, str]] = [
    ("/play", {"scenario": "reboot", "resources": "a, a", "how": "play"}, "give each resource once", 'value="a, a"'),
    ("/play", {"scenario": "rolling-update", "resources": "one"}, "give 3 names, not 1", 'value="one"'),
    ("/announce", {"kind": "reboot", "notice": "soon"}, "notice in the form must be a duration", 'value="soon"'),
    ("/fault-on", {"name": "latency", "times": "many"}, "times is a whole number, not", 'value="many"'),
    ("/fault-on", {"name": "latency", "amount": "-2s"}, "cannot be negative", 'value="-2s"'),
    ("/advance", {"by": ""}, "by in the form must be a duration", ""),
    ("/endpoint", {"vm": "not a name"}, "must be a name", ""),
    ("/approve", {"event": "none"}, "there is no event", ""),
    ("/play", {"scenario": "none"}, "there is no scenario", ""),
]


def test_a_form_that_is_filled_in_wrongly_is_refused_and_kept(page: Page) -> None:
    for path, fields, reason, kept in WRONG:
        refused = page.send(path, 404 if reason.startswith("there is no") else 400, **fields)
        assert refused.html.count('role="alert"') == 1
        assert reason in refused.html
        assert kept in refused.html
        # A page that is live requests itself again.
        assert page.visitor.get(path, status=303).location == "/"


PRESSED: list[tuple[str, dict[str, object], str]] = [
    ("/pause?vm=web-0", {}, "/?vm=web-0#go"),
    ("/resume", {}, "/#go"),
    ("/advance", {"by": "5m"}, "/#advance-5m"),
    ("/advance", {"by": "5 m"}, "/"),
    ("/fault-on", {"name": "latency"}, "/#switch-latency"),
    ("/fault-off", {"name": "latency"}, "/#switch-latency"),
    ("/play", {"scenario": "reboot", "how": "play"}, "/#run-play"),
    ("/play?scenario=reboot", {"scenario": "reboot", "how": "step"}, "/?scenario=reboot#run-step"),
    ("/reset", {}, "/#reset"),
    ("/announce", {"kind": "freeze"}, "/#events"),
    ("/endpoint", {"vm": "web-0"}, "/"),
]


def test_users_are_led_back_to_the_button_that_they_pressed(page: Page) -> None:
    for path, fields, pressed in PRESSED:
        assert page.visitor.post(path, fields).location == pressed
        found = pressed.partition("#")[2]
        assert not found or page.get().html.count(f' id="{found}"') == 1


def test_faults_are_switched_on_and_off(page: Page) -> None:
    before = page.get()
    assert all(fault.symptom in unescape(before.html) for fault in faults.ALL)
    assert before.text.count("Switch on") == len(faults.ALL)
    page.send("/fault-on", name="error-503", amount="9s", times="2", lasts="", on="polls")
    page.send("/fault-on", name="latency", amount="1ms", times="", lasts="1h", on="approvals")
    found = page.get()
    assert "on for polls, amount 9 s, 2 more times Switch off error-503" in found.text
    assert "on for approvals, amount 0.001 s, until" in found.text
    assert "A poll would meet error-503 now, and be answered 503." in found.text
    first = page.emulator.poll()
    assert (first.status, first.headers["retry-after"]) == (503, "9")
    assert "1 more time Switch off error-503" in page.get().text
    assert "error-503 is switched off." in page.send("/fault-off", name="error-503").text
    assert page.emulator.poll().status == 200
    assert "All faults are switched off." in page.send("/fault-off").text
    assert page.emulator.get("/state")["faults"] == []


def test_the_document_is_what_a_guest_gets(page: Page) -> None:
    page.emulator.post("/events", kind="freeze", resources=["web-0"], description="<b>&\"'")
    for version in versions.ALL:
        target = f"/metadata/scheduledevents?api-version={version.name}"
        polled = ask(page.emulator.guests, "GET", target, None, {"Metadata": "true"})
        found = page.get(f"?api-version={version.name}")
        assert [unescape(raw).encode() for raw in RAW.findall(found.html)] == [polled.body]
        assert f"curl -H Metadata:true 'http://{page.emulator.guests}{target}'" in unescape(found.html)


def test_who_has_called(page: Page) -> None:
    made = page.emulator.post("/events", kind="reboot")
    page.emulator.poll()
    page.emulator.approve(made["id"])
    ask(page.emulator.guests, "GET", "/metadata/scheduledevents", None, {})
    found = page.get().text
    assert "GET /metadata/scheduledevents 2020-07-01 200" in found
    assert f"POST /metadata/scheduledevents 2020-07-01 200 {made['id'][:8]}" in found
    assert "GET /metadata/scheduledevents – 400" in found
    assert re.search(r"web-0 polled (now|\d+ s ago)", found)
    for _ in range(20):
        page.emulator.poll()
    many = page.get()
    assert re.findall(r'<tr id="request-(\d+)"', many.html) == [str(place) for place in range(22, 2, -1)]
    assert "The last 20 of 23 requests" in many.text
    # Requests push no button away.
    assert many.html.index('id="faults"') < many.html.index('id="callers"')
    page.emulator.post("/events", kind="freeze", resources=["db"])
    opened = page.send("/endpoint?vm=db", vm="db")
    address = re.search(r"Every caller of http://(\S+) is db\.", opened.text)
    assert address is not None
    assert f"'http://{address[1]}/metadata/scheduledevents" in unescape(opened.html)
    assert page.emulator.poll(address[1]).status == 200
    assert "db polled" in page.get().text


def test_a_scenario_of_ones_own_can_be_played_again(page: Page) -> None:
    """Also one that is named as one of the catalogue."""
    toml = catalogue.load("reboot").text.content.replace("Restart by a user", "Mine")
    for source, key in (("my.toml", "my"), ("there/reboot.toml", "reboot.toml")):
        page.emulator.post("/play", scenario=toml, source=source)
        found = page.get()
        assert f'<option value="{key}" selected>Mine ({key})</option>' in found.html
        assert "Restart by a user (reboot)" in found.text
        page.emulator.post("/reset")
        for scenario, title in (("reboot", "Restart by a user"), (key, "Mine")):
            page.send("/play", scenario=scenario, resources="app_3", how="play")
            state = page.emulator.get("/state")
            assert (state["scenario"]["title"], state["as"]) == (title, "app_3")


def test_a_button_that_is_pressed_twice_does_it_once_and_others_of_the_same_look_are_carried_out(page: Page) -> None:
    page.emulator.post("/pause")
    fields = {"form_token": page.token, "form_key": "one", "kind": "reboot"}
    assert [page.visitor.send("/announce", fields).status for _ in range(2)] == [303, 303]
    assert len(page.statuses) == 1
    wrong = {**fields, "form_key": "two", "notice": "soon"}
    assert [page.visitor.send("/announce", wrong).status for _ in range(2)] == [400, 400]
    page.visitor.send("/announce", {**fields, "form_key": ""})
    page.visitor.send("/announce", {**fields, "form_key": ""})
    assert len(page.statuses) == 3
    assert "is Scheduled." in page.get().text
    look = {"form_token": fields["form_token"], "form_key": "of-this-look"}
    for path, filled in (
        ("/reset", {}),
        ("/fault-on", {"name": "latency"}),
        ("/fault-on", {"name": "frozen"}),
        ("/announce", {"kind": "reboot"}),
        ("/announce", {"kind": "freeze"}),
        ("/pause", {}),
    ):
        assert page.visitor.send(path, {**look, **filled}).status == 303
    state = page.emulator.get("/state")
    assert [each["name"] for each in state["faults"]] == ["latency", "frozen"]
    assert (len(state["events"]), state["paused"]) == (2, True)


def test_a_form_is_carried_out_once_until_it_is_forgotten() -> None:
    done: list[str] = []

    def do() -> str:
        done.append("it")
        return f"done {len(done)}"

    async def press() -> None:
        found = app.FormResults()
        assert await asyncio.gather(*(found.once("a", do) for _ in range(3))) == ["done 1"] * 3
        for number in range(app.MOST_FORMS):
            await found.once(str(number), do)
        assert await found.once("a", do) == f"done {app.MOST_FORMS + 2}"

    asyncio.run(press())


def test_an_address_that_says_too_much(page: Page) -> None:
    names = ",".join(f"v{number}" for number in range(9000))
    began = process_time()
    found = page.get(f"?scenario=reboot&resources={names}").html
    assert f'value="{names[:2000]}"' in found
    assert names[:2001] not in found
    assert process_time() - began < 3


def test_an_address_that_names_no_resources_leaves_the_scenario_its_own(page: Page) -> None:
    assert 'role="alert"' not in page.get("?scenario=rolling-update&resources=%20,").html


def test_a_form_of_another_site_is_refused(page: Page) -> None:
    page.emulator.post("/events", kind="reboot")
    right = page.token
    for token, headers in (
        (right, {"Sec-Fetch-Site": "cross-site"}),
        (right, {"Origin": "http://127.0.0.1:1"}),
        ("0" * 32, {}),
        ("", {}),
    ):
        assert page.visitor.send("/reset", {"form_token": token}, headers).status == 403
    assert len(page.statuses) == 1
    own = {"Origin": f"http://{page.emulator.control}", "Sec-Fetch-Site": "same-origin"}
    assert page.visitor.send("/reset", {"form_token": right}, own).status == 303
    assert page.statuses == []


EVIL = {"Host": "evil.example", "Accept": "text/html"}
REFUSED: list[tuple[str, str, bytes | None, dict[str, str], int, str]] = [
    *(("GET", path, None, EVIL, 400, "in the Host header is not") for path in ("/", "/live", "/static/x/portal.css")),
    *((method, path, None, {}, 405, "is not possible here") for method, path in (("POST", "/live"), ("PUT", "/reset"))),
    ("GET", "/nowhere", None, {"Accept": "text/html"}, 404, "There is no page /nowhere."),
    ("POST", "/reset", b"a" * (2**18 + 1), {}, 413, ""),
]


def test_a_request_that_makes_no_sense_is_refused(page: Page) -> None:
    for method, path, body, headers, status, shown in REFUSED:
        found = page.visitor.ask(method, path, body, headers=headers)
        assert (found.status, shown in found.text) == (status, True), path
        if status == 405:
            assert "GET" in found.headers["allow"]
            assert found.headers["content-security-policy"].startswith("default-src 'none'")


def test_every_response_keeps_others_out(page: Page) -> None:
    html = page.get().html
    assert not re.search(r"<style|\sstyle=|\son\w+=", html)
    style = re.search(r'href="(/static/[^"]+/portal\.css)"', html)
    assert style is not None
    assert "immutable" in page.visitor.get(style[1]).headers["cache-control"]
    for path, status in (("/", 200), ("/nowhere", 404), ("/reset", 303), (style[1], 200), ("/static/x/none.css", 404)):
        headers = page.visitor.get(path, status=status).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert (headers["cache-control"] == "no-store") == (path != style[1])
    assert page.visitor.ask("HEAD", "/").body == b""


def test_nothing_of_the_service_is_needed() -> None:
    absent = ("sqlalchemy", "alembic", "psycopg", "httpx", "prometheus_client")
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.modules |= dict.fromkeys({absent}); import forenotice.emulator.api",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (said.returncode, said.stderr) == (0, "")


# What an open page is told


@contextmanager
def following(control: str, after: str) -> Iterator[HTTPResponse]:
    host, _, port = control.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=DEADLINE)
    connection.request("GET", f"/live?after={after}")
    response = connection.getresponse()
    try:
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield response
    finally:
        response.close()
        connection.close()


def next_id(response: HTTPResponse) -> str:
    """Of the next message."""
    found = ""
    while (line := response.readline().decode().strip()) != "data: changed":
        assert line != ": alive", "no change is reported"
        found = line.removeprefix("id: ")
    return found


def test_each_change_is_reported(page: Page) -> None:
    emulator = page.emulator
    # So that nothing is reported because time passes.
    emulator.post("/pause")
    with following(emulator.control, "the-page-is-older") as response:
        seen = [next_id(response)]
        for change in (
            lambda: emulator.post("/events", kind="freeze"),
            lambda: emulator.post("/faults", name="error-410", times=1),
            emulator.poll,
            emulator.poll,
            lambda: emulator.post("/advance", by="1m"),
            lambda: emulator.post("/resume"),
            lambda: emulator.post("/reset"),
        ):
            change()
            seen.append(next_id(response))
        assert len(set(seen)) == len(seen)


def test_an_up_to_date_page_is_told_of_changes_only_and_does_not_hold_up_the_end() -> None:
    emulator = Emulator(as_vm="web-0", speed=10)
    emulator.start()
    control = Control(emulator, Address(host="127.0.0.1", port=0))
    control.start()
    with following(str(control.address), app.position(emulator)) as response:
        assert response.readline() == b"retry: 1000\n"
        emulator.pause()
        assert next_id(response) == app.position(emulator)
        began = monotonic()
        ending = threading.Thread(target=control.stop)
        ending.start()
        assert response.read() == b"\n"
        ending.join(DEADLINE)
        assert monotonic() - began < 30
    # The line of now moves on only while something is to come.
    emulator.announce(Announcement(kind=Kind.RESTART, resources=("web-0",)))
    before = app.position(emulator)
    assert app.position(emulator) == before
    emulator.resume()
    before = app.position(emulator)
    until(lambda: app.position(emulator) != before)
    emulator.stop()


def test_a_page_without_changes_is_kept_alive() -> None:
    emulator = Emulator(as_vm="web-0", virtual=True)

    async def listen() -> list[bytes]:
        stream = app.Live(emulator, alive=0).stream(app.position(emulator))
        found = [await anext(stream) for _ in range(3)]
        await stream.aclose()
        return found

    assert asyncio.run(listen()) == [b"retry: 1000\n\n", b": alive\n\n", b": alive\n\n"]


def test_only_so_many_pages_are_followed(page: Page) -> None:
    with ExitStack() as opened:
        for _ in range(app.MOST_FOLLOWED):
            next_id(opened.enter_context(following(page.emulator.control, "x")))
        assert page.visitor.ask("GET", "/live?after=x").status == 503
    with following(page.emulator.control, "x") as response:
        next_id(response)
