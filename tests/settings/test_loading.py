"""Settings: where they come from, in which order, and what is said about a bad one."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from forenotice import settings
from forenotice.settings import Address, Listener, SettingError, table
from forenotice.settings.values import Gate

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


def test_defaults_on_a_laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = settings.load({}, {})
    assert found.data == tmp_path / ".local/share/forenotice"
    assert found.database_url == f"sqlite:///{tmp_path}/.local/share/forenotice/forenotice.db"
    assert found.token_file == found.data / "admin.token"
    assert found.metadata == (Listener(at=Address(host="127.0.0.1", port=8254)),)
    assert found.control == Address(host="127.0.0.1", port=8255)
    assert (found.speed, found.as_vm, found.demo, found.config) == (1, None, False, None)
    assert (found.guest_rate, found.guest_burst, found.wait_cap) == (5, 20, 60)


def test_a_demo_keeps_its_own_things_and_knows_every_caller() -> None:
    found = settings.load({"demo": True, "data": "/d"}, {})
    assert found.database_url == "sqlite:////d/demo/forenotice.db"
    assert found.token_file == Path("/d/demo/admin.token")
    assert (found.as_vm, found.guest_rate, found.guest_burst) == ("web-0", None, None)
    found = settings.load({"demo": True, "as": "db", "guest_rate": "9"}, {})
    assert (found.as_vm, found.guest_rate) == ("db", 9), "what is given comes before the demo"


def test_a_database_made_under_the_former_name_is_opened_as_it_is(tmp_path: Path) -> None:
    former = tmp_path / settings.FORMER_DATABASE
    former.touch()
    found = settings.load({"data": str(tmp_path)}, {})
    assert found.database_file == former
    # Once it was in use, a file that is missing is missed.
    former.rename(former.with_name(f"{former.name}.mark"))
    assert found.database_file == former
    (tmp_path / "forenotice.db").touch()
    assert found.database_file == tmp_path / "forenotice.db"


def test_a_new_directory_beside_one_of_the_former_name_is_told(tmp_path: Path) -> None:
    found = settings.load({"data": str(tmp_path / "forenotice")}, {})
    assert found.former_data is None
    former = tmp_path / Path(settings.FORMER_DATABASE).stem
    former.mkdir()
    (former / settings.FORMER_DATABASE).touch()
    assert found.former_data == former
    shared = {"data": str(tmp_path / "forenotice"), "database": "postgresql://db/x"}
    assert settings.load(shared, {}).former_data is None
    (tmp_path / "forenotice").mkdir()
    (tmp_path / "forenotice" / "forenotice.db").touch()
    assert found.former_data is None


def test_flags_before_variables_before_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "n.toml"
    file.write_text('speed = 2\nwait_cap = 2\nfirst_response_delay = 2.5\nmetadata = ["[::1]:2"]\n')
    variables = {"FORENOTICE_SPEED": "3", "FORENOTICE_WAIT_CAP": "3", "FORENOTICE_CONFIG": str(file)}
    found = settings.load({"speed": "4"}, variables)
    assert (found.speed, found.wait_cap, found.first_response_delay) == (4, 3, 2.5)
    assert found.metadata == (Listener(at=Address(host="::1", port=2)),)
    assert found.config == file


def test_repeatable_settings_take_lists() -> None:
    wanted = (Listener(at=Address(host="127.0.0.1", port=1)), Listener(at=Path("/run/a.sock"), vm="web-0"))
    assert settings.load({"metadata": ["127.0.0.1:1", "unix:/run/a.sock=web-0"]}, {}).metadata == wanted
    assert settings.load({}, {"FORENOTICE_METADATA": "127.0.0.1:1, unix:/run/a.sock=web-0"}).metadata == wanted
    gates = (Gate(name="a", command=("/bin/a", "1,2")), Gate(name="b", command=("b",)))
    assert settings.load({"gate": ["a=/bin/a 1,2", "b=b"]}, {}).gate == gates
    assert settings.load({}, {"FORENOTICE_GATE": "\na=/bin/a 1,2\n  \nb=b\n"}).gate == gates
    # The system may choose several ports, and an empty variable counts as none.
    assert len(settings.load({"metadata": ["127.0.0.1:0", "127.0.0.1:0"]}, {}).metadata) == 2
    assert settings.load({}, {"FORENOTICE_SPEED": ""}).speed == 1


def test_a_file_may_hold_switches_and_the_settings_of_every_command(tmp_path: Path) -> None:
    file = tmp_path / "n.toml"
    file.write_text(
        'demo = true\ncontrol_url = "https://nb.example/"\ntoken = "fn_x"\nendpoint = "http://[::1]:8254"\n'
    )
    file.chmod(0o600)
    flags = {"config": str(file)}
    assert settings.load(flags, {}).demo is True
    operator = settings.load_operator(flags, {"FORENOTICE_DATA": "/d"})
    assert (operator.control_url, operator.token) == ("https://nb.example", "fn_x")
    kept = ("", "demo", "lab", "cluster/serve-1", "cluster/serve-2")
    assert operator.directories == tuple(Path("/d", name) for name in kept)
    assert settings.load_guest(flags, {}).endpoint == "http://[::1]:8254"


def test_one_variable_says_where_control_is_to_both_sides() -> None:
    for value in ("127.0.0.1:9000", "http://127.0.0.1:9000", "http://127.0.0.1:9000/"):
        variables = {"FORENOTICE_CONTROL": value}
        assert settings.load({}, variables).control == Address(host="127.0.0.1", port=9000)
        assert settings.load_operator({}, variables).control_url == "http://127.0.0.1:9000"


GOOD = [
    ("metadata", "localhost:80", Listener(at=Address(host="localhost", port=80))),
    ("metadata", "unix:/run/x.sock", Listener(at=Path("/run/x.sock"))),
    ("metadata", "onehop:127.0.0.1:80=db", Listener(at=Address(host="127.0.0.1", port=80), vm="db", one_hop=True)),
    ("metadata", "10.0.0.1:80=db", Listener(at=Address(host="10.0.0.1", port=80), vm="db")),
    (
        "metadata",
        "onehop:[fe80::1%br0]:80%br-0.1@/run/netns/blue=db",
        Listener(
            at=Address(host="fe80::1%br0", port=80),
            interface="br-0.1",
            netns=Path("/run/netns/blue"),
            vm="db",
            one_hop=True,
        ),
    ),
    ("database", "postgresql://me@db/forenotice", "postgresql://me@db/forenotice"),
    ("guest_rate", "off", None),
    ("max_user_operations", "off", None),
    ("max_user_operations", "10", 10),
    ("max_tenant_operations", "1000000", 1_000_000),
    ("demo", "off", False),
    ("demo", "YES", True),
    ("log_level", "debug", settings.LogLevel.DEBUG),
    ("log_format", "json", settings.LogFormat.JSON),
    ("proxy_style", "openstack", settings.ProxyStyle.OPENSTACK),
    ("first_version_dates", "rfc1123", settings.DateForm.RFC1123),
    ("proxy_secret_file", "/s", Path("/s")),
    ("gate", "shop=/bin/is-well --as 'a b' x=y", Gate(name="shop", command=("/bin/is-well", "--as", "a b", "x=y"))),
    ("control_url", "127.0.0.1:1", "http://127.0.0.1:1"),
    ("control_url", "https://nb.example/prefix/", "https://nb.example/prefix"),
    ("endpoint", "http://10.0.0.1/", "http://10.0.0.1"),
]


@pytest.mark.parametrize(("name", "value", "wanted"), GOOD)
def test_good_values(name: str, value: str, wanted: object) -> None:
    assert table.everything()[name].read(value) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:80",
        "[::1]:80=vm.1",
        "unix:/run/x.sock",
        "unix:/run/x.sock=db",
        "onehop:[::1]:80=db",
        "169.254.169.254:80%tap0=db",
        "169.254.169.254:80%vnet0",
        "169.254.169.254:80@/proc/17/ns/net",
        "[fe80::1%br0]:80",
        "[fe80::1%br0]:80%br0@/run/netns/blue=db",
    ],
)
def test_a_listener_reads_as_it_is_written(text: str) -> None:
    assert str(table.everything()["metadata"].read(text)) == text


BAD = {
    "metadata": [
        "127.0.0.1",
        "127.0.0.1:65536",
        ":80",
        "[10.0.0.1]:80",
        "::1:80",
        "127.0.0.1:80=no/such",
        "127.0.0.1:80%",
        "127.0.0.1:80%=db",
        "127.0.0.1:80%..",
        "127.0.0.1:80%a/b",
        "127.0.0.1:80%vnet0=db",
        "127.0.0.1:80%sixteen-letters-",
        "127.0.0.1:80@blue",
        "127.0.0.1:80@",
        "127.0.0.1:80@/run/netns/x%br0",
        "127.0.0.1%br0:80",
        "unix%br0:/run/x",
        "unix:",
        "onehop:",
        "onehop:unix:/run/x",
        "unix:/" + "x" * 200,
        "unix:/a\0b",
    ],
    "gate": ["/bin/true", "shop=", "=/bin/true", "a b=/bin/true", "shop=/bin/true 'open"],
    "metadata_name": ["metadata.example:80", "*"],
    "control": ["unix:/run/x", "127.0.0.1:٣"],
    "data": ["~nobody-of-that-name/x"],
    "database": ["mysql://root:secret@db/x", "sqlite:///"],
    "demo": ["maybe"],
    "speed": ["0", "fast", "nan", "inf"],
    "guest_rate": ["-1", "0", "1e-308"],
    "max_user_operations": ["0"],
    "max_tenant_operations": ["2.5", "1000001", "9" * 5000],
    "wait_cap": ["1e9"],
    "first_response_delay": ["121"],
    "as": ["a/b"],
    "proxy_trusted": ["10.0.0.1/8"],
    "proxy_style": ["aws"],
    "first_version_dates": ["unix"],
    "log_level": ["loud"],
    "log_format": ["xml"],
    "control_url": ["ftp://x", "http://", "http://x:99999", "http://[::1", "http://user:secret@x", "http://x/?q"],
    "endpoint": ["https://x", "http://x/metadata"],
    "token": ["two words"],
}


def test_an_empty_path_is_not_the_current_directory() -> None:
    for name in ("data", "proxy_secret_file", "config"):
        with pytest.raises(SettingError, match=f"--{name.replace('_', '-')}: is empty: give a path"):
            settings.load({name: ""}, {})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_gives_one_sentence_that_says_where_it_is_from(name: str, value: str) -> None:
    row = table.everything()[name]
    load: Callable[[dict[str, str], dict[str, str]], object] = settings.load
    if row not in table.SERVE:
        load = settings.load_operator if row in table.OPERATOR else settings.load_guest
    for flags, environ, origin in (({name: value}, {}, row.flag), ({}, {row.variable: value}, row.variable)):
        with pytest.raises(SettingError) as caught:
            load(flags, environ)
        message = caught.value.message
        assert message.startswith(f"{origin}: ")
        assert not re.search("\n|secret", message)


FILES = [
    ("speed = ", "is not TOML"),
    ("speeed = 2", "did you mean 'speed'?"),
    ("zzz = 2", "there are allow_loopback_addresses, allow_private_targets, as, control"),
    ('config = "x"', "no setting 'config'"),
    ("speed = [1]", "speed in"),
    ("speed = " + "9" * 5000, "too many digits"),
    ("a = " + "[" * 100_000, "nested too deeply"),
    ("metadata = [1]", "a text or a list of texts is needed"),
    ("metadata = []", "metadata names no listener"),
    ('metadata = ["127.0.0.1:1", "127.0.0.1:1"]', "same listener twice"),
    ('gate = ["a=/bin/true", "a=/bin/false"]', "gate has the same name twice"),
    ("speed = true", "'true' is not a speed"),
    ('proxy_trusted = "10.0.0.0/8"', "need each other"),
    ('proxy_secret_file = "/s"', "need each other"),
]


@pytest.mark.parametrize(("content", "said"), FILES)
def test_a_bad_file_is_refused(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "n.toml"
    file.write_text(content)
    with pytest.raises(SettingError) as caught:
        settings.load({"config": str(file)}, {})
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("content", "is_secret"),
    [
        ('token = "fn_x"', True),
        ('database = "postgresql://forenotice:hidden@db/forenotice"', True),
        ('database = "postgresql://db/forenotice?user=me&password=hidden"', True),
        ('database = "postgresql://forenotice@db/forenotice"', False),
        ('database = "postgresql://db:5432/forenotice"', False),
        ('database = "postgresql://forenotice@db:5432/forenotice"', False),
        ('database = "sqlite:////var/lib/x.db"', False),
    ],
)
def test_a_file_that_holds_a_secret_is_for_its_owner_alone(tmp_path: Path, content: str, is_secret: bool) -> None:
    file = tmp_path / "n.toml"
    file.write_text(content)
    file.chmod(0o644)
    if is_secret:
        with pytest.raises(SettingError, match=r"which holds a secret, .* can be read by other users") as caught:
            settings.load({"config": str(file)}, {})
        assert "hidden" not in caught.value.message
    file.chmod(0o644 if not is_secret else 0o600)
    settings.load({"config": str(file)}, {})


def test_a_file_that_cannot_be_trusted_or_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "n.toml"
    with pytest.raises(SettingError, match="cannot be read: no such file"):
        settings.load({"config": str(file)}, {})
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="is not UTF-8"):
        settings.load({}, {"FORENOTICE_CONFIG": str(file)})
    file.chmod(0o666)
    with pytest.raises(SettingError, match=r"the settings file .* can be changed by other users \(mode 0666\)"):
        settings.load({"config": str(file)}, {})


def test_an_emulator_listens_where_serve_does_or_wherever_there_is_room() -> None:
    found = settings.load_emulator({}, {})
    assert (str(found.guests_at), str(found.control_at)) == ("127.0.0.1:8254", "127.0.0.1:8255")
    assert (found.speed, found.as_vm, found.resources, found.seed, found.open_control) == (1, None, None, None, False)
    free = settings.load_emulator({"emulator_port": "0", "resources": "a, b"}, {"FORENOTICE_CONTROL": "https://ops"})
    assert (free.guests_at.port, free.control_at.port, free.resources) == (0, 0, ("a", "b"))
    given = {"emulator_metadata": "0.0.0.0:1", "emulator_port": "80", "emulator_control": "[::1]:0", "seed": "-3"}
    both = settings.load_emulator(given, {})
    assert (str(both.guests_at), str(both.control_at), both.seed) == ("0.0.0.0:80", "[::1]:0", -3)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"emulator_port": "65536"}, "--port: '65536' is not a port"),
        ({"emulator_port": "-1"}, "--port: '-1' is not a port"),
        ({"resources": "a,,b"}, "--resources: '' is not a VM name"),
        ({"seed": "1.5"}, "--seed: '1.5' is not a seed"),
        ({"emulator_metadata": "unix:/x"}, "--metadata: 'unix:/x' is not HOST:PORT"),
    ],
)
def test_what_an_emulator_cannot_be_told(flags: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError) as refusal:
        settings.load_emulator(flags, {})
    assert refusal.value.message.startswith(said)


# The table, its flags, its variables and its page in the docs agree


def test_the_same_address_at_another_interface_or_in_another_namespace_is_another_listener() -> None:
    address = "169.254.169.254:80"
    listeners = [address, f"{address}%tap0=db", f"{address}%tap1=db", f"{address}@/run/netns/blue"]
    assert [str(each) for each in settings.load({"metadata": listeners}, {}).metadata] == listeners
    with pytest.raises(SettingError, match="same listener twice"):
        settings.load({"metadata": [f"{address}%tap0=db", f"{address}%tap0=web"]}, {})


@pytest.mark.parametrize("row", table.everything().values(), ids=lambda row: row.name)
def test_flag_variable_and_page_of_a_setting(row: table.Setting) -> None:
    assert re.fullmatch(r"--[a-z]+(-[a-z]+)*", row.flag)
    assert row.flag_of or row.flag[2:].replace("-", "_") == row.name
    assert row.variable == "FORENOTICE_" + (row.variable_of or row.name).upper()
    assert row.help.endswith(".")
    assert bool(row.metavar) is not row.is_switch
    for default in (row.default, row.demo):
        if default is not None:
            row.read(default)
    assert f"| `{row.flag}" in DOCS.read_text()
    assert f"| `{row.variable}` |" in DOCS.read_text()


def test_the_page_shows_the_table_as_it_is() -> None:
    shown = [line for line in DOCS.read_text().splitlines() if line.startswith("|")]
    assert shown == table.rows()


@pytest.mark.parametrize(
    ("rows", "result"),
    [
        (table.SERVE, settings.Settings),
        (table.OPERATOR, settings.OperatorSettings),
        (table.NATS, settings.NatsSettings),
        (table.CLUSTER_DEMO, settings.ClusterDemoSettings),
        (table.GUEST, settings.GuestSettings),
        (table.AGENT, settings.AgentSettings),
        (table.EMULATE, settings.EmulatorSettings),
        (table.EMULATOR, settings.DriverSettings),
    ],
)
def test_every_row_has_its_field_and_a_variable_of_its_own(rows: tuple[table.Setting, ...], result: type) -> None:
    assert {row.attribute for row in rows} == {field.name for field in msgspec.structs.fields(result)}
    assert len({row.variable for row in rows}) == len(rows)
