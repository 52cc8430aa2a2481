import re
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from forenotice.agent import config
from forenotice.agent.config import Config
from forenotice.agent.handlers import tables
from forenotice.agent.handlers.tables import When
from forenotice.agent.rules.policy import EVENT_TYPES, Match, Phase
from forenotice.client.events import Event
from forenotice.settings.spans import Span

KINDS = "command, webhook, systemd, file, haproxy, kubernetes, notify, python"
COMMAND = '[[handler]]\nname = "drain"\ntype = "command"\nprepare = ["true"]\n'
WEBHOOK = '[[handler]]\nname = "hook"\ntype = "webhook"\n'
NOTIFY = '[[handler]]\nname = "tell"\ntype = "notify"\n'
HAPROXY = '[[handler]]\nname = "lb"\ntype = "haproxy"\n'


def load(directory: Path, text: str) -> config.Config:
    path = directory / "agent.toml"
    path.write_text(text)
    return config.load(path)


def complaint(directory: Path, text: str) -> str:
    with pytest.raises(config.ConfigError) as caught:
        load(directory, text)
    return str(caught.value).removeprefix(f"{directory}/agent.toml: ")


def test_an_empty_file_says_enough(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert config == Config()
    assert (config.state, config.approve.when, config.handlers) == ("/var/lib/forenotice-agent", "prepared", ())


def test_an_empty_file_approves_nothing(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert (config.policy.unprepared, config.unapproved) == (False, EVENT_TYPES)


def test_approving_what_nothing_prepares_for_is_said_in_one_word_or_in_a_table(tmp_path: Path) -> None:
    short = load(tmp_path, 'approve = "always"')
    assert short == load(tmp_path, '[approve]\nwhen = "always"')
    assert (short.policy.approves, short.policy.unprepared, short.unapproved) == (True, True, ())
    assert load(tmp_path, 'approve = "never"').unapproved == ()


def test_types_that_nothing_prepares_for(tmp_path: Path) -> None:
    assert load(tmp_path, COMMAND).unapproved == ()
    some = COMMAND + 'types = ["Reboot", "Redeploy"]\n'
    assert load(tmp_path, some).unapproved == ("Freeze", "Preempt", "Terminate")
    at_once = '[[approve.at_once]]\ntypes = ["Freeze"]\n'
    only_after = some + '[[handler]]\nname = "b"\ntype = "command"\nrecover = ["true"]\n'
    assert load(tmp_path, at_once + only_after).unapproved == ("Preempt", "Terminate")


def test_everything_that_may_be_said(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
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
longer_than = "5s"
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
""",
    )
    assert config.policy.at_once == (
        Match(types=frozenset({"Freeze"}), shorter_than=timedelta(seconds=10.0)),
        Match(sources=frozenset({"User"})),
    )
    assert config.policy.peer_timeout == timedelta(minutes=1)
    assert not config.policy.approves
    rule = config.handlers[0].rule
    assert rule.match == Match(
        types=frozenset({"Reboot", "Redeploy"}),
        sources=frozenset({"Platform", None}),
        shorter_than=timedelta(seconds=3600.0),
        longer_than=timedelta(seconds=5.0),
    )
    assert (rule.stage, rule.lead, rule.timeout, rule.retries) == (2, timedelta(minutes=5), timedelta(seconds=90), 5)
    assert (rule.blocks, rule.always_recover) == (False, True)
    assert rule.phases == {Phase.PREPARE, Phase.RECOVER, Phase.UNDO}
    assert config.handlers[1].rule.phases == {Phase.ON_STARTED}
    assert [type(handler) for handler in config.handlers] == [
        tables.Command,
        tables.Webhook,
        tables.Systemd,
        tables.File,
        tables.Haproxy,
    ]


def test_an_event_whose_source_is_not_told_is_prepared_for_and_not_approved_at_once() -> None:
    untold = Event(id="E1", status="Scheduled", type="Reboot", resources=("web-0",), source=None)
    assert tables.Command(name="a", prepare=("down",), sources=("User",)).rule.match.fits(untold)
    assert not config.AtOnce(sources=("User",)).match.fits(untold)
    told = msgspec.structs.replace(untold, source="Platform")
    assert not tables.Command(name="a", prepare=("down",), sources=("User",)).rule.match.fits(told)


def test_without_undo_recover_is_what_undoes() -> None:
    command = tables.Command(name="a", recover=("up",))
    assert command.commands == {Phase.RECOVER: ("up",), Phase.UNDO: ("up",)}
    assert tables.Command(name="a", recover=("up",), undo=("down",)).commands[Phase.UNDO] == ("down",)


def test_a_handler_can_be_written_down_and_read_again(tmp_path: Path) -> None:
    [handler] = load(tmp_path, COMMAND + 'when = "NotBefore - 90s"\nshorter_than = "1500ms"\n').handlers
    written = msgspec.json.encode(handler, enc_hook=tables.write)
    assert msgspec.json.decode(written, type=tables.Handler, dec_hook=tables.read) == handler
    assert handler.when == When(Span(seconds=90))


BAD = [
    ('approve = "now"', "approve: 'now' in when is not one of prepared, always, never"),
    ("approve = true", 'approve: this must be a text or a table, such as approve = "always"'),
    ('nme = "x"', "there is no key 'nme'; did you mean 'name'?"),
    ("zzz = 1", "there is no key 'zzz'; there are name, endpoint, state, listen, act_for, approve, peers, handler"),
    ("name = 3", 'name: this must be a text in quotes, such as "a"'),
    ('listen = "8256"', "'8256' in listen is not HOST:PORT: give one such as 127.0.0.1:8256"),
    *(
        (f'endpoint = "{url}"', "endpoint: this is not a metadata endpoint: give one such as http://169.254.169.254")
        for url in ("ftp://x", "https://x", "http://x/path", "http://me:hunter2@x")
    ),
    ('state = "here"', "'here' in state is not an absolute path: give one such as /var/lib/forenotice-agent"),
    (
        COMMAND + 'recover = [""]',
        'handler "drain": recover names no program: give one such as ["/usr/local/bin/drain", "now"]',
    ),
    (
        COMMAND + 'recover = [" "]\nshell = true',
        'handler "drain": recover names no program: give one such as ["/usr/local/bin/drain", "now"]',
    ),
    (WEBHOOK + 'url = "http://a"\nphases = []', 'handler "hook": phases: this list must not be empty'),
    (
        WEBHOOK + 'url = "http://a"\nca_file = "ca.pem"',
        "handler \"hook\": 'ca.pem' in ca_file is not an absolute path: give one such as /etc/forenotice/ca.pem",
    ),
    (
        WEBHOOK + 'url = "http://a"\nheader_files = { Authorization = "~/token" }',
        "handler \"hook\": '~/token' in header_files is not an absolute path: give one such as /etc/forenotice/token",
    ),
    (
        WEBHOOK + 'url = "http://a"\nbody = "$EVENT_TPYE"',
        re.compile(r'handler "hook": body: \$EVENT_TPYE is not known: the names are FORENOTICE_PHASE, .*'),
    ),
    (
        WEBHOOK + 'url = "http://a"\nbody = "5$"',
        'handler "hook": body: a $ stands alone: write $$ for a dollar sign',
    ),
    (
        NOTIFY + 'urls = ["json://a"]\ntitle = "$HOME"',
        re.compile(r'handler "tell": title: \$HOME is not known: .*'),
    ),
    (
        NOTIFY + 'urls = ["json://a"]\nbody = "$"',
        'handler "tell": body: a $ stands alone: write $$ for a dollar sign',
    ),
    (
        NOTIFY + 'urls_file = "urls"',
        "handler \"tell\": 'urls' in urls_file is not an absolute path: give one such as /etc/forenotice/urls",
    ),
    (
        '[[handler]]\nname = "k"\ntype = "kubernetes"\nkubeconfig = "~/.kube/config"',
        "handler \"k\": '~/.kube/config' in kubeconfig is not an absolute path:"
        " give one such as /etc/forenotice/kubeconfig",
    ),
    *(
        (
            f'[[handler]]\nname = "p"\ntype = "python"\nentry_point = "{point}"',
            f"handler \"p\": '{point}' in entry_point names no function: give MODULE:FUNCTION or an entry point's name",
        )
        for point in ("", " ", ":f", "m:")
    ),
    (
        '[peers]\nsecret_file = "secret"',
        "peers: 'secret' in secret_file is not an absolute path: give one such as /etc/forenotice/peers.secret",
    ),
    *(
        (
            f'listen = "a:1"\n[peers]\nsecret_file = "/x"\naddresses = {{ bob = "{address}" }}',
            f"peers: '{address}' in addresses is not HOST:PORT: give one such as 10.0.0.5:8256",
        )
        for address in (
            "",
            "x",
            "x:",
            ":80",
            "x:http",
            "x:99999",
            "x:0",
            "a@b:80",
            "http://b:80",
            "[::1:80",
            "b:80/",
            "b :80",
        )
    ),
    ("handler = 3", "handler: begin it with [[handler]], in two brackets"),
    ('[handler]\nname = "a"', "handler: begin it with [[handler]], in two brackets"),
    ("handler = [3]", "handler 1: this must be a table"),
    ('[[handler]]\nname = "a"', f"handler \"a\": the key 'type' is missing: give one of {KINDS}"),
    (
        '[[handler]]\nname = "a"\ntype = "comand"',
        f"handler \"a\": type: 'comand' is not a type of handler: give one of {KINDS}",
    ),
    ('[[handler]]\nname = "a"\ntype = 3', 'handler "a": type: this must be a text in quotes, such as "a"'),
    ('[[handler]]\nprepare = ["a"]\ntype = "command"', "handler 1: the key 'name' is missing"),
    (
        '[[handler]]\nname = "a b"\ntype = "command"',
        "handler \"a b\": name: this must be 1 to 64 letters, digits, '.', '_' or '-'",
    ),
    (COMMAND + COMMAND, "two handlers are called 'drain'"),
    (COMMAND + "tiemout = 5", "handler \"drain\": there is no key 'tiemout'; did you mean 'timeout'?"),
    (
        COMMAND + 'url = "x"',
        re.compile("handler \"drain\": there is no key 'url'; there are type, name, .*, directory"),
    ),
    (
        COMMAND + "timeout = 5",
        'handler "drain": timeout: 5 is not a duration: give one such as "30s", "5m" or "2h"',
    ),
    (COMMAND + 'timeout = "0s"', 'handler "drain": timeout is no time at all: give one such as 30s'),
    (
        COMMAND + 'when = "soon"',
        'handler "drain": when: \'soon\' is not a time to begin: give "at once" or one such as "NotBefore - 5m"',
    ),
    (COMMAND + "retries = -1", 'handler "drain": retries: this must be at least 0'),
    (COMMAND + "retries = 1000", 'handler "drain": retries: this must be at most 100'),
    (COMMAND + 'retries = "2"', 'handler "drain": retries: this must be a whole number'),
    (COMMAND + 'always_recover = "yes"', 'handler "drain": always_recover: this must be true or false'),
    (
        COMMAND + 'types = ["reboot"]',
        "handler \"drain\": 'reboot' in types is not one of Freeze, Reboot, Redeploy, Preempt, Terminate",
    ),
    (COMMAND + 'sources = ["user"]', "handler \"drain\": 'user' in sources is not one of Platform, User"),
    (COMMAND + 'on_failure = "stop"', "handler \"drain\": 'stop' in on_failure is not one of block, continue"),
    (COMMAND + 'undo = "false"', 'handler "drain": undo: this must be a list, such as ["a", "b"]'),
    (COMMAND + "undo = []", 'handler "drain": undo: this list must not be empty'),
    (COMMAND + 'undo = ["a\\u0000"]', 'handler "drain": undo holds a NUL character, which no program can be given'),
    (
        COMMAND + 'undo = ["a", "b"]\nshell = true',
        'handler "drain": with shell = true each command is a list of one text',
    ),
    (
        COMMAND + 'environment = { "A=B" = "x" }',
        "handler \"drain\": 'A=B' in environment cannot be a variable: names have no '=', and nothing has a NUL",
    ),
    (
        COMMAND + 'directory = "here"',
        "handler \"drain\": 'here' in directory is not an absolute path: give one such as /srv",
    ),
    (
        '[[handler]]\nname = "a"\ntype = "command"',
        'handler "a": give it something to run: prepare, on_started, recover or undo',
    ),
    (WEBHOOK, "handler \"hook\": the key 'url' is missing"),
    (
        WEBHOOK + 'url = "http://a"\nphases = ["prepaer"]',
        "handler \"hook\": phases: 'prepaer' is not a phase: give some of prepare, on_started, recover, undo",
    ),
    (
        WEBHOOK + 'url = "http://a"\nmethod = "post"',
        "handler \"hook\": 'post' in method is not one of GET, POST, PUT, PATCH, DELETE",
    ),
    (
        WEBHOOK + 'url = "http://a"\nmethod = "CONNECT"',
        "handler \"hook\": 'CONNECT' in method is not one of GET, POST, PUT, PATCH, DELETE",
    ),
    (
        WEBHOOK + 'url = "http://a"\nheaders = { "X Y" = "z" }',
        "handler \"hook\": 'X Y' in headers cannot be a header: give a name and one line of plain ASCII",
    ),
    (
        WEBHOOK + 'url = "http://a"\nheader_files = { host = "/etc/token" }',
        "handler \"hook\": 'host' in header_files is set by the request itself: leave it out",
    ),
    (
        '[[handler]]\nname = "f"\ntype = "file"\npath = "flag"',
        "handler \"f\": 'flag' in path is not an absolute path: give one such as /run/forenotice/drained",
    ),
    ('[[handler]]\nname = "s"\ntype = "systemd"\nunits = []', 'handler "s": units: this list must not be empty'),
    (
        '[[handler]]\nname = "s"\ntype = "systemd"\nunits = ["a", ""]',
        'handler "s": units holds an empty name: leave it out',
    ),
    (
        HAPROXY + 'socket = "admin.sock"\nservers = ["a/b"]',
        "handler \"lb\": 'admin.sock' in socket is neither an absolute path nor HOST:PORT:"
        " give one such as /run/haproxy/admin.sock or 127.0.0.1:9999",
    ),
    (
        HAPROXY + 'socket = "/run/s"\nservers = ["web/a; shutdown"]',
        "handler \"lb\": 'web/a; shutdown' in servers is not BACKEND/SERVER: give one such as web/web-1",
    ),
    ('[[handler]]\nname = "n"\ntype = "notify"', 'handler "n": say where to notify: urls or urls_file'),
    ('[approve]\nwhen = "now"', "approve: 'now' in when is not one of prepared, always, never"),
    (
        "[approve]\nat_once = [{}]",
        "approve.at_once 1: say which events need no preparation: types, sources or shorter_than",
    ),
    (
        '[[approve.at_once]]\nsources = ["User"]\n[[approve.at_once]]\ntype = "Freeze"',
        "approve.at_once 2: there is no key 'type'; did you mean 'types'?",
    ),
    (
        '[[approve.at_once]]\ntypes = ["freeze"]',
        "approve.at_once 1: 'freeze' in types is not one of Freeze, Reboot, Redeploy, Preempt, Terminate",
    ),
    ('[peers]\nsecret_file = "/x"', 'peers need an address to send to: give listen, such as "0.0.0.0:8256"'),
    ('[peers]\nport = 0\nsecret_file = "/x"', "peers.port: this must be at least 1"),
    ("[peers]\n", "peers: the key 'secret_file' is missing"),
    ("[peers]\nsecret = 1", "peers: there is no key 'secret'; did you mean 'secret_file'?"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_what_is_wrong_is_named_with_its_remedy(tmp_path: Path, text: str, said: str | re.Pattern[str]) -> None:
    told = complaint(tmp_path, text)
    assert said.fullmatch(told) if isinstance(said, re.Pattern) else told == said


@pytest.mark.parametrize(
    "url",
    [
        "hunter2",
        "ftp://hunter2",
        "http://",
        "http:///hunter2",
        "http://a:hunter2/",
        "http://a:99999/",
        "http://[hunter2/",
        "http://a/hunter 2",
        "http://a/hunter2é",
        "http://a/\\nhunter2",
        "http://a/#hunter2",
    ],
)
def test_a_url_that_cannot_be_used_is_not_repeated(tmp_path: Path, url: str) -> None:
    told = complaint(tmp_path, WEBHOOK + f'url = "{url}"')
    assert told == 'handler "hook": url is not one to send to: give one such as https://hooks.example.com/drain'


def test_values_of_headers_are_not_repeated(tmp_path: Path) -> None:
    told = complaint(tmp_path, WEBHOOK + 'url = "http://a"\nheaders = { Authorization = "hunter2\\n" }')
    assert "hunter2" not in told
    assert told.startswith("handler \"hook\": 'Authorization' in headers cannot be a header")


@pytest.mark.parametrize("content", [b"x =", b"\xff", b"a = " + b"[" * 100_000])
def test_a_file_that_is_not_toml_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(content)
    with pytest.raises(config.ConfigError, match=f"^{re.escape(str(path))}:1:[0-9]+: this is "):
        config.load(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
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
