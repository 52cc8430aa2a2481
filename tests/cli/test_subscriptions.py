"""Subscriptions on the command line."""

import re
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.control.running import Control
from tests.delivery.receiving import receiving
from tests.delivery.telling import Teller

from forenotice.cli.main import main
from forenotice.ssrf import EVERYWHERE, OutgoingClient

URL = "https://hooks.example.com/forenotice"


def test_a_subscription_from_its_making_to_its_end(cli: Run, tmp_path: Path) -> None:
    assert "add one with `forenotice subscription add`" in cli("subscription", "list").out
    for group in ("web-1", "db"):
        cli("group", "add", group)
    secret = cli("subscription", "add", "pager", URL, "--type", "event.*", "--status", "Failed").out
    assert re.fullmatch(r"fns_[A-Za-z0-9_-]{43}\n", secret)
    file = tmp_path / "secret"
    file.write_text("one that I have already\n")
    said = cli("subscription", "add", "chat", URL, "--groups", "web-*", "--secret-file", str(file)).out
    assert re.fullmatch(r"chat gets matching entries from \d+ on.\n", said)
    shown = cli("subscription", "show", "pager").out
    assert re.search(r"^types +forenotice\.event\.\*$", shown, re.MULTILINE)
    assert re.search(r"^statuses +Failed$", shown, re.MULTILINE)
    assert secret.strip() not in shown
    assert cli("subscription", "show", "pager", "--json").json["deliveries"] == []
    assert [each["name"] for each in cli("subscription", "list", "--json").json] == ["chat", "pager"]
    assert re.search(rf"^chat +active +0 +\d+ +{URL}$", cli("subscription", "list").out, re.MULTILINE)
    changed = cli("subscription", "set", "pager", "--url", URL + "2", "--groups", "db", "--json").json
    assert (changed["url"], changed["groups"], changed["types"]) == (URL + "2", "db", ["forenotice.event.*"])
    assert "give at least one option" in cli("subscription", "set", "pager").err
    assert re.search(r"^position +1$", cli("subscription", "replay", "pager", "--after", "1").out, re.MULTILINE)
    assert re.search(r"^status +active$", cli("subscription", "resume", "pager").out, re.MULTILINE)
    assert cli("subscription", "remove", "pager", "--yes").out == "Subscription pager is removed.\n"
    assert cli("subscription", "remove", "chat", "--json").json == {"removed": "chat"}


def test_a_receiver_is_tried(cli: Run, module_control: Control) -> None:
    module_control.service.outgoing = OutgoingClient(private=EVERYWHERE)
    with receiving() as receiver:
        receiver.secret = cli("subscription", "add", "pager", receiver.url, "--json").json["secret"]
        assert cli("subscription", "test", "pager").out == "The receiver of pager accepted it (204).\n"
        receiver.decide = lambda _: (500, {})
        refused = cli("subscription", "test", "pager")
        assert (refused.code, refused.err) == (
            1,
            "forenotice: the receiver of pager did not accept it: it answered 500\n",
        )
        assert cli("subscription", "test", "pager", "--json").json["status"] == 500
        with Teller(module_control.service.store).delivering():
            receiver.until(lambda receiver: len(receiver.asked) >= 6)
    shown = cli("subscription", "show", "pager").out
    assert re.search(r"^\d+ +\d+ .* it answered 500$", shown, re.MULTILINE)
    assert re.search(
        r"^pager +active .* entry \d+ was not taken, try \d+:", cli("subscription", "list").out, re.MULTILINE
    )
    cli("subscription", "remove", "pager", "--yes")


def test_groups_may_come_later(cli: Run, capsys: pytest.CaptureFixture[str]) -> None:
    cli("group", "add", "shop")
    # Not with the secret, which somebody may keep as it is printed.
    assert main(("subscription", "add", "early", URL, "--groups", "shop,shop-9,shpo-*,vm:nobody,!web-1")) == 0
    said = capsys.readouterr()
    assert re.fullmatch(r"fns_\S+\n", said.out)
    assert said.err.splitlines() == [
        f"forenotice: there is no {key} yet: nothing of it is sent until there is one"
        for key in ("group shop-9", "group shpo-*", "vm nobody")
    ]
    assert cli("subscription", "set", "early", "--groups", "sh*").code == 0


def test_what_is_wrong_is_told(cli: Run, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for file, said in (
        (tmp_path / "none", "cannot be read: No such file"),
        (binary, "cannot be read: it is not ASCII"),
    ):
        ran = cli("subscription", "add", "pager", URL, "--secret-file", str(file))
        assert (ran.code, said in ran.err) == (2, True), ran.err
    mistyped = cli("subscription", "add", "pager", URL, "--type", "evnt.started")
    assert (mistyped.code, mistyped.err) == (
        1,
        "forenotice: nothing is ever of the type forenotice.evnt.started: did you mean forenotice.event.started?\n",
    )
    assert "there is no subscription 'nobody'" in cli("subscription", "show", "nobody").err
