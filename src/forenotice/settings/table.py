"""The one table of settings: it feeds the parser, the help, the variables, the file and the docs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from forenotice.settings import values

PREFIX = "FORENOTICE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    """The key in the file; flag and variable follow from it."""
    help: str
    read: Callable[[str], object]
    metavar: str
    default: str | None = None
    """As one would write it; None: nothing."""
    demo: str | None = None
    """The default with --demo, where it differs."""
    repeatable: bool = False
    by_line: bool = False
    """In its variable each stands on a line of its own, since it may hold spaces and commas."""
    in_file: bool = True
    variable_of: str = ""
    """Shares the variable of another setting."""
    flag_of: str = ""
    """Shares the flag of another setting, which its commands do not have."""
    field: str = ""
    """Its name in code, where the key is a word of Python."""

    @property
    def flag(self) -> str:
        return "--" + (self.flag_of or self.name).replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + (self.variable_of or self.name).upper()

    @property
    def attribute(self) -> str:
        return self.field or self.name

    @property
    def is_switch(self) -> bool:
        return self.read is values.switch

    @property
    def described(self) -> str:
        """Its help, with what else there is to know."""
        known = [self.variable]
        if self.default is not None and not self.is_switch:
            known.append(f"default {self.default}")
        if self.demo is not None:
            known.append(f"with --demo {self.demo}")
        return f"{self.help} ({', '.join(known)})"


CONFIG = Setting(
    name="config",
    help="TOML file with settings; see docs/settings.md.",
    read=values.path,
    metavar="FILE",
    in_file=False,
)

DATA = Setting(
    name="data",
    help="Directory of the database and the administrator's token.",
    read=values.path,
    metavar="DIR",
    default="~/.local/share/forenotice",
)

DATABASE = Setting(
    name="database",
    help="sqlite:///PATH (four slashes if absolute) or postgresql://USER@HOST/NAME; else in the data directory.",
    read=values.database,
    metavar="URL",
)

DEMO = Setting(
    name="demo",
    help="Start with a small fleet to try things on, kept in DATA/demo.",
    read=values.switch,
    metavar="",
    default="false",
)

OF_DEMO = replace(DEMO, help="The demo's, which is kept in DATA/demo.")

CONTROL = Setting(
    name="control",
    help="Where operators are answered: REST API, metrics, and the portal for browsers.",
    read=values.control_address,
    metavar="HOST:PORT",
    default="127.0.0.1:8255",
)

CONTROL_WITHOUT_TLS = Setting(
    name="control_without_tls",
    help="Let tokens cross the network without TLS, because something else encrypts them.",
    read=values.switch,
    metavar="",
    default="false",
)

SPEED = Setting(
    name="speed",
    help="Divide every duration of the service by this.",
    read=values.speed,
    metavar="N",
    default="1",
)

AS = Setting(
    name="as",
    field="as_vm",
    help="Take every caller that is not known otherwise for this VM.",
    read=values.vm_name,
    metavar="VM",
    demo="web-0",
)

METADATA_NAME = Setting(
    name="metadata_name",
    help="Name that guests may use for the endpoint, besides an address or localhost; may be repeated.",
    read=values.host_name,
    metavar="NAME",
    repeatable=True,
)

SERVE = (
    DEMO,
    DATA,
    DATABASE,
    Setting(
        name="metadata",
        help="Where guests are answered: HOST:PORT, onehop:HOST:PORT (answers do not pass a router) or unix:PATH, "
        "with =VM after it for one VM alone; may be repeated.",
        read=values.listener,
        metavar="LISTENER",
        default="127.0.0.1:8254",
        repeatable=True,
    ),
    METADATA_NAME,
    CONTROL,
    Setting(
        name="control_name",
        help="Name that operators may use without TLS, besides an address or localhost; may be repeated.",
        read=values.host_name,
        metavar="NAME",
        repeatable=True,
    ),
    Setting(
        name="control_certificate",
        help="PEM file with the control plane's certificate; operators then use https.",
        read=values.path,
        metavar="FILE",
    ),
    Setting(
        name="control_key",
        help="PEM file with the key of that certificate.",
        read=values.path,
        metavar="FILE",
    ),
    CONTROL_WITHOUT_TLS,
    SPEED,
    AS,
    Setting(
        name="guest_rate",
        help="Requests per second allowed to each VM, with a burst of four times that; off for no limit.",
        read=values.rate,
        metavar="N",
        default="5",
        demo="off",
    ),
    Setting(
        name="token_rate",
        help="Requests per second allowed to each operator's token, with a burst of four times that; off for no limit.",
        read=values.rate,
        metavar="N",
        default="50",
        demo="off",
    ),
    Setting(
        name="max_user_operations",
        help="Restarts, redeploys and deletions that users may have under way at once in the whole fleet, such as 10.",
        read=values.most_operations,
        metavar="N",
        default="off",
    ),
    Setting(
        name="max_tenant_operations",
        help="Restarts and redeploys that each tenant may have under way at once, such as 10.",
        read=values.most_operations,
        metavar="N",
        default="off",
    ),
    Setting(
        name="wait_cap",
        help="The longest wait, in seconds, that a guest may ask for.",
        read=values.wait,
        metavar="SECONDS",
        default="60",
    ),
    Setting(
        name="first_answer_delay",
        help="Seconds by which the first answer to a scope is delayed.",
        read=values.delay,
        metavar="SECONDS",
        default="0",
    ),
    Setting(
        name="first_version_dates",
        help="How api-version 2017-03-01 writes NotBefore: iso as published, rfc1123 as the real service was seen to.",
        read=values.date_form,
        metavar="FORM",
        default="iso",
    ),
    Setting(
        name="proxy_trusted",
        help="Network whose metadata proxies may say for which VM they ask; may be repeated.",
        read=values.network,
        metavar="NETWORK",
        repeatable=True,
    ),
    Setting(
        name="proxy_style",
        help="How those proxies prove it: forenotice or openstack.",
        read=values.proxy_style,
        metavar="STYLE",
        default="forenotice",
    ),
    Setting(
        name="proxy_secret_file",
        help="File with the secret shared with those proxies.",
        read=values.path,
        metavar="FILE",
    ),
    Setting(
        name="allow_loopback_addresses",
        help="Allow VMs to have loopback addresses, for tests on one machine.",
        read=values.switch,
        metavar="",
        default="false",
        demo="true",
    ),
    Setting(
        name="allow_private_targets",
        help="Private or loopback network that subscriptions and gates may reach, also by plain http; may be repeated.",
        read=values.network,
        metavar="NETWORK",
        repeatable=True,
    ),
    Setting(
        name="driver",
        help="What really happens to VMs: simulated, or the TOML file of a driver; see docs/drivers.md.",
        read=values.driver,
        metavar="FILE",
        default="simulated",
    ),
    Setting(
        name="gate",
        help="A command, run without a shell, that rollouts may name as their gate; may be repeated.",
        read=values.gate,
        metavar="NAME=COMMAND",
        repeatable=True,
        by_line=True,
    ),
    Setting(
        name="log_level",
        help="The least that is logged: debug, info, warning or error.",
        read=values.log_level,
        metavar="LEVEL",
        default="info",
    ),
    Setting(
        name="log_format",
        help="console for people, json for machines; auto chooses by whether it goes to a terminal.",
        read=values.log_format,
        metavar="FORMAT",
        default="auto",
    ),
    CONFIG,
)

CONTROL_URL = Setting(
    name="control_url",
    variable_of="control",
    help="Where the control plane answers.",
    read=values.url,
    metavar="URL",
    default="http://127.0.0.1:8255",
)

OPERATOR = (
    replace(
        CONTROL_URL,
        default=None,
        help="Where the control plane answers; if left out, the socket in the data directory, or with a token "
        "http://127.0.0.1:8255.",
    ),
    Setting(
        name="token",
        help="Bearer token; without it, the one in the data directory's admin.token or demo/admin.token.",
        read=values.token,
        metavar="TOKEN",
    ),
    Setting(
        name="control_ca",
        help="PEM file with the CA of the control plane's certificate, if the system does not know it.",
        read=values.path,
        metavar="FILE",
    ),
    CONTROL_WITHOUT_TLS,
    DATA,
    CONFIG,
)

GUEST = (
    Setting(
        name="endpoint",
        help="The metadata service, as seen from inside the VM; else http://169.254.169.254 or where DHCP says.",
        read=values.endpoint,
        metavar="URL",
    ),
    Setting(
        name="name",
        help="This VM's name, as events write it; else what the metadata service calls it.",
        read=values.vm_name,
        metavar="VM",
    ),
    CONFIG,
)

AGENT = (
    Setting(
        name="agent_config",
        flag_of="config",
        field="config",
        help="What the agent does; see docs/agent.md.",
        read=values.path,
        metavar="FILE",
        default="/etc/forenotice/agent.toml",
        in_file=False,
    ),
    Setting(
        name="state",
        help="Directory of the agent's journal; also `state` in agent.toml.",
        read=values.path,
        metavar="DIR",
        in_file=False,
    ),
    Setting(
        name="observe",
        help="Neither run handlers nor approve; say what would have been done.",
        read=values.switch,
        metavar="",
        default="false",
        in_file=False,
    ),
    *(setting for setting in GUEST if setting is not CONFIG),
    *(setting for setting in SERVE if setting.name.startswith("log_")),
)

EMULATE = (
    Setting(
        name="resources",
        help="VMs in place of the scenario's own, with commas between them.",
        read=values.vm_names,
        metavar="VM,...",
        in_file=False,
    ),
    replace(SPEED, help="Divide every duration by this; NotBefore shrinks with them.", in_file=False),
    Setting(
        # Not FORENOTICE_PORT, which Kubernetes sets to something else beside a service of our name.
        name="emulator_port",
        flag_of="port",
        field="port",
        help="The port at which the emulator answers guests; 0 for one that is free, also for its control.",
        read=values.port,
        metavar="PORT",
        in_file=False,
    ),
    Setting(
        name="emulator_metadata",
        flag_of="metadata",
        field="metadata",
        help="Where the emulator answers guests.",
        read=values.address,
        metavar="HOST:PORT",
        default="127.0.0.1:8254",
        in_file=False,
    ),
    replace(METADATA_NAME, in_file=False),
    Setting(
        # Not FORENOTICE_CONTROL, which says where another one is driven.
        name="emulator_control",
        flag_of="control",
        field="control",
        help="Where the emulator is driven, also in a browser; else 127.0.0.1:8255, or a free port beside --port 0.",
        read=values.control_address,
        metavar="HOST:PORT",
        in_file=False,
    ),
    Setting(
        name="open_control",
        help="Let other machines drive the emulator, which asks for no token.",
        read=values.switch,
        metavar="",
        default="false",
        in_file=False,
    ),
    replace(
        AS, help="Which VM every caller is; else the one that the scenario says, or web-0.", demo=None, in_file=False
    ),
    Setting(
        name="seed",
        help="Where the scenario's chance comes from, in place of its own seed.",
        read=values.seed,
        metavar="N",
        in_file=False,
    ),
    Setting(
        name="ready_file",
        help="File to write the emulator's addresses to, as JSON, once it answers.",
        read=values.path,
        metavar="FILE",
        in_file=False,
    ),
)

EMULATOR = (replace(CONTROL_URL, help="Where the emulator's control answers."), CONFIG)


def everything() -> dict[str, Setting]:
    """Each setting once, by name; where commands differ in it, as most have it."""
    found: dict[str, Setting] = {}
    for setting in (*SERVE, *OPERATOR, *GUEST, *AGENT, *EMULATE, *EMULATOR):
        found.setdefault(setting.name, setting)
    return found
