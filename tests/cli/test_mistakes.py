"""Mistakes: each ends in one sentence and an exit code, 2 for what is typed wrongly, 1 for what the service refuses."""

import pytest
from tests.cli.conftest import Run
from tests.control.running import Control

FLEET = b"""
[hosts]
host-b = {}
rack1-a = {}
rack2-a = {}
[groups.web]
kind = "availability-set"
[vms]
web-0 = { host = "rack1-a", group = "web" }
db = { host = "host-b" }
"""
ROLLOUT = ("rollout", "start", "--hosts", "*", "--kind", "update")
USAGE = [
    (("frob",), "No such command 'frob'; see `forenotice -h`"),
    (("vm", "frob"), "No such command 'frob'; see `forenotice vm -h`"),
    (("vm", "list", "--frob"), "No such option '--frob'"),
    (("vm", "restart"), "Missing argument 'VM...'; see `forenotice vm restart -h`"),
    (("vm", "add", "x"), "Missing option '--host'; see `forenotice vm add -h`"),
    (("vm", "add", "x", "--host", "h", "--update-domain", "one"), "Invalid value for '--update-domain'"),
    (("history", "--limit", "0"), "Invalid value for '--limit'"),
    (("serve", "--speed", "fast"), "--speed: 'fast' is not a speed"),
    (("vm", "list", "--control-url", "ftp://x"), "--control-url: 'ftp://x' is not a URL"),
    (("guest", "events", "--endpoint", "https://x"), "--endpoint: 'https://x' is not a metadata endpoint"),
    (("history", "--format", "xml"), "give --format jsonl or --format csv"),
    (("history", "--format", "csv", "--limit", "3"), "--format exports all matching"),
    (("history", "--vm", "x", "prune", "--before", "90d"), "options of prune come after its name"),
    (("history", "prune", "--before", "90"), "Invalid value for '--before': '90' is not a time"),
    (("history", "prune", "--before", "90x"), "Invalid value for '--before': '90x' is not a duration"),
    (("vm", "set", "db"), "nothing to change"),
    (("vm", "set", "db", "--group", "web", "--no-group"), "an option and its --no- form exclude each other"),
    (("vm", "set", "db", "--fact", "colour=red"), "'colour' is no fact of a VM"),
    (("vm", "set", "db", "--tag", "novalue"), "--tag: 'novalue' is not NAME=VALUE"),
    (("group", "set", "web"), "nothing to change"),
    (("group", "set", "web", "--max-unavailable", "half"), "Invalid value for '--max-unavailable': 'half' is not"),
    (("host", "set", "a", "--no-address", "--address", "1"), "an option and its --no- form exclude each other"),
    (("host", "set", "a", "--no-label", "x", "--label", "x=1"), "label x cannot be both set and removed"),
    (("vm", "policy", "db", "--window", "x", "--no-windows"), "an option and its --no- form exclude each other"),
    (("fleet", "apply", "fleet.yaml"), "cannot tell whether fleet.yaml is TOML or JSON: give --format toml or"),
    (("fleet", "export", "fleet"), "cannot tell whether fleet is TOML or JSON: give --format toml or"),
    (("vm", "restart", "db", "--notice", "soon"), "Invalid value for '--notice': 'soon' is not a duration"),
    (("vm", "restart", "db", "--notice", "9" * 400), f"Invalid value for '--notice': '{'9' * 80}' is too long: give"),
    (("vm", "restart", "db", "--notice", "367d"), "Invalid value for '--notice': '367d' is too long: give at most"),
    (("history", "--since", "yesterday"), "Invalid value for '--since': 'yesterday' is not a time"),
    (("vm", "show", "db\udcff"), r"'db\udcff' is not text: give UTF-8"),
    (("vm", "restart", "db", "--reason", "\udcff"), r"'\udcff' is not text"),
    (("host", "cordon", "host-b", "--idempotency-key", "€"), "--idempotency-key must be printable ASCII characters"),
    (("history", "--until", "9999-12-31T23:59:59-14:00"), "Invalid value for '--until': '9999-12-31T23:59:59-14:00'"),
    ((*ROLLOUT[:4],), "Missing option '--kind'"),
    ((*ROLLOUT[:2], *ROLLOUT[4:]), "Missing option '--hosts'"),
    ((*ROLLOUT[:5], "degrade"), "Invalid value for '--kind': 'degrade' is not one of"),
    ((*ROLLOUT, "--batch", "0"), "Invalid value for '--batch'"),
    ((*ROLLOUT, "--pause", "soon"), "Invalid value for '--pause': 'soon' is not a duration"),
    ((*ROLLOUT, "--wait-limit", "soon"), "Invalid value for '--wait-limit': 'soon' is not a duration"),
]
REFUSED = [
    (("vm", "add", "a b", "--host", "x"), "name in the body must be a name: 1 to 64 letters, digits"),
    (("vm", "show", "../hosts"), "'../hosts' is not a name"),
    (("vm", "show", ""), "'' is not a name"),
    (("vm", "show", "none"), "there is no VM 'none'"),
    (("fleet", "apply", "none.toml"), "none.toml cannot be read: No such file"),
    (("fleet", "export", "none/fleet.toml"), "none/fleet.toml cannot be written"),
    (("vm", "restart", "db", "--notice", "1"), "restart needs at least 15 minutes of notice, not 1"),
    (("event", "explain", "a b"), "event_id in the path"),
]
MISTYPED = [
    (("vm", "show", "web-O"), "there is no VM 'web-O': did you mean web-0?"),
    (("vm", "restart", "wbe-0"), "there is no VM 'wbe-0': did you mean web-0?"),
    (("vm", "add", "x", "--host", "rack1a"), "there is no host 'rack1a': did you mean rack1-a or rack2-a?"),
    ((*ROLLOUT[:3], "rack2-a,rack1a", *ROLLOUT[4:]), "there is no host 'rack1a': did you mean rack1-a or rack2-a?"),
    ((*ROLLOUT[:3], "elsewhere", *ROLLOUT[4:]), "there is no host 'elsewhere': see `forenotice host list`"),
    ((*ROLLOUT[:3], "else*", *ROLLOUT[4:]), "no host is selected by 'else*': see `forenotice host list`"),
    (("group", "show", "wep"), "there is no group 'wep': did you mean web?"),
    (("operation", "show", "none"), "there is no operation 'none': see `forenotice operation list --all`"),
    (("event", "show", "none"), "there is no event 'none': see `forenotice event list --all`"),
]


@pytest.mark.parametrize(("arguments", "sentence"), USAGE)
def test_usage(run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str) -> None:
    monkeypatch.setenv("FORENOTICE_TOKEN", "t")
    monkeypatch.setenv("FORENOTICE_CONTROL", "http://127.0.0.1:9")
    ran = run(*arguments)
    assert (ran.code, ran.err.count("\n"), ran.err.startswith(f"forenotice: {sentence}")) == (2, 1, True), ran.err


@pytest.fixture(scope="module")
def racks(module_control: Control) -> None:
    module_control.post_fleet(FLEET)


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED)
def test_refusals(cli: Run, racks: None, arguments: tuple[str, ...], sentence: str) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.err.count("\n"), ran.err.startswith(f"forenotice: {sentence}")) == (1, 1, True), ran.err


@pytest.mark.parametrize(("arguments", "sentence"), MISTYPED)
def test_what_was_meant(cli: Run, racks: None, arguments: tuple[str, ...], sentence: str) -> None:
    assert cli(*arguments).err == f"forenotice: {sentence}\n"
