import re
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from forenotice.agent import config
from forenotice.agent.config import Config
from forenotice.agent.handlers import tables
from forenotice.agent.handlers.tables import When
from forenotice.agent.rules.policy import EVENT_TYPES, Match, Phase, Rule
from forenotice.client.events import Event
from forenotice.settings.values import Span

COMMAND = '[[handler]]\nname = "drain"\ntype = "command"\nprepare = ["true"]\n'
WEBHOOK = '[[handler]]\nname = "hook"\ntype = "webhook"\n'
URL = 'url = "http://a"\n'
PEERS = 'listen = "a:1"\n[peers]\nsecret_file = "/x"\n'


def handler(kind: str, **keys: str) -> str:
    table = {"name": '"h"', "type": f'"{kind}"', **keys}
    return "[[handler]]\n" + "".join(f"{key} = {value}\n" for key, value in table.items())


def load(directory: Path, text: str) -> config.Config:
    path = directory / "agent.toml"
    path.write_text(text)
    return config.load(path)


def complaint(directory: Path, text: str) -> str:
    with pytest.raises(config.ConfigError) as caught:
        load(directory, text)
    return re.sub(rf"^{directory}/agent.toml:\d+:\d+: ", "", str(caught.value))


def test_an_empty_file_is_enough_and_approves_nothing(tmp_path: Path) -> None:
    found = load(tmp_path, "")
    assert found == Config()
    assert (found.state, found.approve.when, found.handlers) == ("/var/lib/forenotice-agent", "prepared", ())
    assert (found.policy.unprepared, found.unapproved) == (False, EVENT_TYPES)


def test_approval_of_events_that_no_handler_prepares_for(tmp_path: Path) -> None:
    short = load(tmp_path, 'approve = "always"')
    assert short == load(tmp_path, '[approve]\nwhen = "always"')
    assert (short.policy.approves, short.policy.unprepared, short.unapproved) == (True, True, ())
    assert load(tmp_path, 'approve = "never"').unapproved == load(tmp_path, COMMAND).unapproved == ()
    some = COMMAND + 'types = ["Reboot", "Redeploy"]\n'
    assert load(tmp_path, some).unapproved == ("Freeze", "Preempt", "Terminate")
    at_once = '[[approve.at_once]]\ntypes = ["Freeze"]\n'
    only_after = some + handler("command", recover='["true"]')
    assert load(tmp_path, at_once + only_after).unapproved == ("Preempt", "Terminate")


EVERYTHING = """
name = "web-1"
endpoint = "http://127.0.0.1:8080"
state = "/var/lib/x"
listen = "0.0.0.0:8256"
act_for = ["web-2"]

[approve]
when = "never"
at_once = [{ types = ["Freeze"], shorter_than = "10s" }, { sources = ["User"] }]

[peers]
secret_file = "/etc/secret"
addresses = { web-2 = "10.0.0.2:8256" }
port = 9000
timeout = "1m"

[[handler]]
name = "drain"
type = "command"
stage = 2
types = ["Reboot", "Redeploy"]
sources = ["Platform"]
shorter_than = "1h"
longer_than = "1500ms"
when = "NotBefore - 5m"
timeout = "90s"
retries = 5
on_failure = "continue"
always_recover = true
prepare = ["drain", "now"]
recover = ["ready"]
environment = { A = "b" }
directory = "/srv"

[[handler]]
name = "hook"
type = "webhook"
url = "https://user:pass@[::1]:8443/x?y=z"
method = "PUT"
headers = { X-Team = "web" }
header_files = { Authorization = "/etc/token" }
body = "$EVENT_TYPE"
ca_file = "/etc/ca.pem"
phases = ["on_started"]

[[handler]]
name = "units"
type = "systemd"
units = ["nginx.service"]

[[handler]]
name = "flag"
type = "file"
path = "/run/flag"

[[handler]]
name = "lb"
type = "haproxy"
socket = "[::1]:9999"
servers = ["web/web-1", "api:2/web.1"]
wait = false
"""


def test_everything_that_may_be_configured(tmp_path: Path) -> None:
    found = load(tmp_path, EVERYTHING)
    assert found.policy.at_once == (
        Match(types=frozenset({"Freeze"}), shorter_than=timedelta(seconds=10.0)),
        Match(sources=frozenset({"User"})),
    )
    assert (found.policy.approves, found.policy.peer_timeout) == (False, timedelta(minutes=1))
    assert found.handlers[0].rule == Rule(
        name="drain",
        phases=frozenset({Phase.PREPARE, Phase.RECOVER, Phase.UNDO}),
        match=Match(
            types=frozenset({"Reboot", "Redeploy"}),
            sources=frozenset({"Platform", None}),
            shorter_than=timedelta(hours=1),
            longer_than=timedelta(seconds=1.5),
        ),
        stage=2,
        lead=timedelta(minutes=5),
        timeout=timedelta(seconds=90),
        retries=5,
        blocks=False,
        always_recover=True,
    )
    assert found.handlers[1].rule.phases == {Phase.ON_STARTED}
    kinds = [tables.Command, tables.Webhook, tables.Systemd, tables.File, tables.Haproxy]
    assert [type(handler) for handler in found.handlers] == kinds
    written = msgspec.json.encode(found.handlers, enc_hook=tables.write)
    assert msgspec.json.decode(written, type=tuple[tables.Handler, ...], dec_hook=tables.read) == found.handlers


def test_an_event_of_unknown_source_is_prepared_for_and_not_approved_at_once() -> None:
    unknown = Event(id="E1", status="Scheduled", type="Reboot", resources=("web-0",), source=None)
    match = tables.Command(name="a", prepare=("down",), sources=("User",)).rule.match
    assert match.fits(unknown)
    assert not config.AtOnce(sources=("User",)).match.fits(unknown)
    assert not match.fits(msgspec.structs.replace(unknown, source="Platform"))


def test_without_undo_recover_is_what_undoes() -> None:
    command = tables.Command(name="a", recover=("up",))
    assert command.commands == {Phase.RECOVER: ("up",), Phase.UNDO: ("up",)}
    assert tables.Command(name="a", recover=("up",), undo=("down",)).commands[Phase.UNDO] == ("down",)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("5min", 300), ("2h", 7200), ("1d", 86400), ("500ms", 0.5), ("1.5 m", 90), (" 0s ", 0)],
)
def test_spans_and_times_to_begin(text: str, seconds: float) -> None:
    span, lead = Span.read(text), timedelta(seconds=seconds)
    assert (span, type(span), Span.read(tables.write(span))) == (lead, Span, lead)
    for when in ("At once", f"NotBefore-{text}".lower(), f"NotBefore - {text}"):
        found = When.read(when)
        assert found.lead == (None if when == "At once" else lead)
        assert When.read(tables.write(found)) == found != when
        assert hash(When.read(tables.write(found))) == hash(found)


@pytest.mark.parametrize("text", ["", "5", "m", "-5s", "5 parsecs", "1h30m", "٥s", "5S", 5, None, True, ["5s"], "367d"])
def test_wrong_spans_and_times_to_begin_are_refused(text: object) -> None:
    problem = f'{text!r} is not a duration: give one such as "30s", "5m" or "2h"'
    if text == "367d":
        problem = "'367d' is too long: give at most 366d"
    with pytest.raises(ValueError, match=re.escape(problem)):
        Span.read(text)
    for when in (text, f"NotBefore - {text}", "NotBefore", "NotBefore + 5m"):
        with pytest.raises(ValueError, match="give "):
            When.read(when)


def test_other_types_are_not_read_or_written() -> None:
    with pytest.raises(NotImplementedError, match="no way to read a complex"):
        tables.read(complex, 1)
    with pytest.raises(NotImplementedError, match="no way to write a complex"):
        tables.write(1j)


DRAIN = 'handler "drain"'
KINDS = "command, webhook, systemd, file, haproxy, kubernetes, notify, python"
ABSOLUTE = "in {} is not an absolute path"
BAD = [
    ('approve = "now"', "approve: 'now' in when is not one of prepared, always, never"),
    ("approve = true", "approve in agent.toml must be an object"),
    ('nme = "x"', "there is no key 'nme'; did you mean 'name'?"),
    ("zzz = 1", "there is no key 'zzz'; there are "),
    ("name = 3", "name in agent.toml must be a string"),
    ('listen = "8256"', "'8256' in listen is not HOST:PORT"),
    *((f'endpoint = "{url}"', "endpoint: this is not") for url in ("ftp://x", "https://x", "http://x/path")),
    ('endpoint = "http://me:hunter2@x"', "endpoint: this is not a metadata endpoint: give one such as http://169.254"),
    ('state = "here"', ABSOLUTE.format("state")),
    (COMMAND + 'recover = [""]', f"{DRAIN}: recover names no program"),
    (COMMAND + 'recover = [" "]\nshell = true', f"{DRAIN}: recover names no program"),
    (COMMAND + "tiemout = 5", f"{DRAIN}: there is no key 'tiemout'; did you mean 'timeout'?"),
    (COMMAND + "timeout = 5", f"{DRAIN}.timeout: 5 is not a duration"),
    (COMMAND + 'timeout = "0s"', f"{DRAIN}: timeout is no time at all"),
    (COMMAND + 'when = "soon"', f"{DRAIN}.when: 'soon' is not a time to begin"),
    (COMMAND + "retries = -1", f"{DRAIN}.retries in agent.toml must be at least 0"),
    (COMMAND + "retries = 1000", "must be at most 100"),
    (COMMAND + 'retries = "2"', "must be an integer"),
    (COMMAND + 'always_recover = "yes"', "must be true or false"),
    (COMMAND + 'types = ["reboot"]', f"{DRAIN}: 'reboot' in types is not one of Freeze, Reboot"),
    (COMMAND + 'sources = ["user"]', "'user' in sources is not one of Platform, User"),
    (COMMAND + 'on_failure = "stop"', "'stop' in on_failure is not one of block, continue"),
    (COMMAND + 'undo = "false"', "must be a list"),
    (COMMAND + "undo = []", "must have at least 1 items"),
    (COMMAND + 'undo = ["a\\u0000"]', "undo holds a NUL character"),
    (COMMAND + 'undo = ["a", "b"]\nshell = true', "with shell = true each command is a list of one text"),
    (COMMAND + 'environment = { "A=B" = "x" }', "'A=B' in environment cannot be a variable"),
    (COMMAND + 'directory = "here"', ABSOLUTE.format("directory")),
    (COMMAND + 'directory = ""', ABSOLUTE.format("directory")),
    (COMMAND + COMMAND, "two handlers are called 'drain'"),
    (WEBHOOK, 'handler "hook".url in agent.toml is missing'),
    (WEBHOOK + URL + "phases = []", "must have at least 1 items"),
    (WEBHOOK + URL + 'phases = ["prepaer"]', 'handler "hook".phases'),
    (WEBHOOK + URL + 'ca_file = "ca.pem"', ABSOLUTE.format("ca_file")),
    (WEBHOOK + URL + 'header_files = { Authorization = "~/token" }', ABSOLUTE.format("header_files")),
    (WEBHOOK + URL + 'body = "$EVENT_TPYE"', "body: $EVENT_TPYE is not known: the names are FORENOTICE_PHASE, "),
    (WEBHOOK + URL + 'body = "5$"', "body: a $ stands alone"),
    (WEBHOOK + URL + 'method = "post"', "'post' in method is not one of GET, POST, PUT, PATCH, DELETE"),
    (WEBHOOK + URL + 'method = "CONNECT"', "'CONNECT' in method is not one of"),
    (WEBHOOK + URL + 'headers = { "X Y" = "z" }', "'X Y' in headers cannot be a header"),
    (WEBHOOK + URL + 'header_files = { host = "/etc/token" }', "'host' in header_files is set by the request itself"),
    (handler("notify"), "say where to notify"),
    (handler("notify", urls='["json://a"]', title='"$HOME"'), "title: $HOME is not known"),
    (handler("notify", urls='["json://a"]', body='"$"'), "body: a $ stands alone"),
    (handler("notify", urls_file='"urls"'), ABSOLUTE.format("urls_file")),
    (handler("kubernetes", kubeconfig='"~/.kube/config"'), ABSOLUTE.format("kubeconfig")),
    *((handler("python", entry_point=f'"{name}"'), "names no function") for name in ("", " ", ":f", "m:")),
    (handler("file", path='"flag"'), ABSOLUTE.format("path")),
    (handler("file", path='""'), ABSOLUTE.format("path")),
    (handler("systemd", units="[]"), "must have at least 1 items"),
    (handler("systemd", units='["a", ""]'), "units holds an empty name"),
    (handler("haproxy", socket='"admin.sock"', servers='["a/b"]'), "neither an absolute path nor HOST:PORT"),
    (handler("haproxy", socket='"/run/s"', servers='["web/a; shutdown"]'), "is not BACKEND/SERVER"),
    (handler("command"), 'handler "h": give it something to run'),
    ("handler = 3", "must be a list, not an integer: begin it with [[handler]], in two brackets"),
    ('[handler]\nname = "a"', "begin it with [[handler]], in two brackets"),
    ("handler = [3]", "handler 1 in agent.toml must be an object"),
    ('[[handler]]\nname = "a"', f'handler "a".type in agent.toml is missing: give one of {KINDS}'),
    (handler("comand"), f": give one of {KINDS}"),
    ('[[handler]]\nname = "a"\ntype = 3', 'handler "a".type in agent.toml must be a string'),
    ('[[handler]]\nprepare = ["a"]\ntype = "command"', "handler 1.name in agent.toml is missing"),
    ('[[handler]]\nname = "a b"\ntype = "command"', "must be a name: 1 to 64 letters, digits"),
    ("[approve]\nat_once = [{}]", "approve.at_once[0]: say which events need no preparation"),
    ('[[approve.at_once]]\ntype = "Freeze"', "approve.at_once[0]: there is no key 'type'; did you mean"),
    ('[[approve.at_once]]\ntypes = ["freeze"]', "'freeze' in types is not one of Freeze, Reboot"),
    ('[peers]\nsecret_file = "/x"', "peers need an address to send to: give listen"),
    ('[peers]\nsecret_file = "secret"', ABSOLUTE.format("secret_file")),
    ('[peers]\nport = 0\nsecret_file = "/x"', "peers.port in agent.toml must be at least 1"),
    ("[peers]\n", "peers.secret_file in agent.toml is missing"),
    ("[peers]\nsecret = 1", "did you mean 'secret_file'?"),
    *(
        (PEERS + f'addresses = {{ bob = "{address}" }}', f"peers: '{address}' in addresses is not HOST:PORT")
        for address in ("", "x", "x:", ":80", "x:http", "x:99999", "x:0", "a@b:80", "http://b:80", "[::1:80", "b:80/")
    ),
]


@pytest.mark.parametrize(("text", "problem"), BAD)
def test_a_mistake_is_named_with_its_remedy(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in complaint(tmp_path, text)
    assert "hunter2" not in complaint(tmp_path, text)


URLS = ["hunter2", "ftp://hunter2", "http://", "http:///hunter2", "http://a:hunter2/", "http://a:99999/"]
URLS += ["http://[hunter2/", "http://a/hunter 2", "http://a/hunter2é", "http://a/\\nhunter2", "http://a/#hunter2"]


def test_secrets_in_urls_and_headers_are_not_repeated(tmp_path: Path) -> None:
    for url in URLS:
        problem = complaint(tmp_path, WEBHOOK + f'url = "{url}"')
        assert 'handler "hook": url is not one to send to' in problem
        assert "hunter" not in problem
    problem = complaint(tmp_path, WEBHOOK + URL + 'headers = { Authorization = "hunter2\\n" }')
    assert "'Authorization' in headers cannot be a header" in problem
    assert "hunter2" not in problem


def test_a_file_that_cannot_be_read_or_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    for content in (b"x =", b"\xff", b"a = " + b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(config.ConfigError, match=f"^{re.escape(str(path))}:1:[0-9]+: this is "):
            config.load(path)
    with pytest.raises(config.ConfigError, match=r"none\.toml cannot be read: no such file or directory$"):
        config.load(tmp_path / "none.toml")
    with pytest.raises(config.ConfigError, match=r"cannot be read: it is not a file$"):
        config.load(tmp_path)


def test_a_file_that_others_can_change_is_refused(tmp_path: Path) -> None:
    """It says what is run, as root."""
    load(tmp_path, COMMAND)
    path = tmp_path / "agent.toml"
    path.chmod(0o646)
    with pytest.raises(config.ConfigError, match=f"^the configuration {path} can be changed by other users"):
        config.load(path)
    path.chmod(0o644)
    tmp_path.chmod(0o777)
    with pytest.raises(config.ConfigError, match=f"^{tmp_path}, which leads to {path}, can be changed by other users"):
        config.load(path)
    tmp_path.chmod(0o700)
    (tmp_path / "link.toml").symlink_to(path)
    with pytest.raises(config.ConfigError, match="is a link: give the file that it leads to"):
        config.load(tmp_path / "link.toml")
