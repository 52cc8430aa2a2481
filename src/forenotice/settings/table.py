"""The one table of settings: it feeds the parser, the help, the variables, the file and the docs."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from forenotice.settings import values

if TYPE_CHECKING:
    from argparse import ArgumentParser

PREFIX = "FORENOTICE_"


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    """The key in the file; flag and variable follow from it."""
    metavar: str
    read: Callable[[str], object]
    _: KW_ONLY
    help: str
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


# One row each, as a table has them.
# fmt: off
CONFIG = Setting("config", "FILE", values.path, in_file=False, help="TOML file with settings; see docs/settings.md.")
DATA = Setting("data", "DIR", values.path, default="~/.local/share/forenotice",
    help="Directory of the database and the administrator's token.")
DATABASE = Setting("database", "URL", values.database,
    help="sqlite:///PATH (four slashes if absolute) or postgresql://USER@HOST/NAME; else in the data directory.")
DEMO = Setting("demo", "", values.switch, default="false",
    help="Start with a small fleet to try things on, kept in DATA/demo.")
OF_DEMO = replace(DEMO, help="The demo's, which is kept in DATA/demo.")
CONTROL = Setting("control", "HOST:PORT", values.control_address, default="127.0.0.1:8255",
    help="Where operators are answered: REST API, metrics, and the portal for browsers.")
CONTROL_WITHOUT_TLS = Setting("control_without_tls", "", values.switch, default="false",
    help="Let tokens cross the network without TLS, because something else encrypts them.")
SPEED = Setting("speed", "N", values.speed, default="1", help="Divide every duration of the service by this.")
AS = Setting("as", "VM", values.vm_name, field="as_vm", demo="web-0",
    help="Take every caller that is not known otherwise for this VM.")
METADATA_NAME = Setting("metadata_name", "NAME", values.host_name, repeatable=True,
    help="Name that guests may use for the endpoint, besides an address or localhost; may be repeated.")
SIGN_IN_LINK = Setting("sign_in_link", "", values.switch, default="false", demo="true",
    help="Print a link that signs a browser on this machine in as the administrator, once, within 15 minutes.")
SERVE = (
    DEMO,
    DATA,
    DATABASE,
    Setting("metadata", "LISTENER", values.listener, default="127.0.0.1:8254", repeatable=True,
        help="Where guests are answered: unix:PATH or [onehop:]HOST:PORT[%INTERFACE][@NETNS], with =VM after it for "
             "one VM alone; may be repeated. onehop: answers do not pass a router; INTERFACE: takes connections from "
             "this network interface only; NETNS: listens in the network namespace at this path."),
    METADATA_NAME,
    CONTROL,
    Setting("control_name", "NAME", values.host_name, repeatable=True,
        help="Name that operators may use without TLS, besides an address or localhost; may be repeated."),
    Setting("control_certificate", "FILE", values.path,
        help="PEM file with the control plane's certificate; operators then use https."),
    Setting("control_key", "FILE", values.path, help="PEM file with the key of that certificate."),
    CONTROL_WITHOUT_TLS,
    SIGN_IN_LINK,
    SPEED,
    AS,
    Setting("guest_rate", "N", values.rate, default=str(values.GUEST_RATE), demo="off",
        help="Requests per second allowed to each VM, with a burst of four times that; off for no limit."),
    Setting("token_rate", "N", values.rate, default="50", demo="off",
        help="Requests per second allowed to each operator's token, with a burst of four times that; off for no "
             "limit."),
    Setting("max_user_operations", "N", values.most_operations, default="off",
        help="Restarts, redeploys and deletions that users may have under way at once in the whole fleet, such as 10."),
    Setting("max_tenant_operations", "N", values.most_operations, default="off",
        help="Restarts and redeploys that each tenant may have under way at once, such as 10."),
    Setting("wait_cap", "SECONDS", values.wait, default="60",
        help="The longest wait, in seconds, that a guest may ask for."),
    Setting("first_response_delay", "SECONDS", values.delay, default="0",
        help="Seconds by which the first response to a scope is delayed."),
    Setting("first_version_dates", "FORM", partial(values.one_of, values.DateForm), default="iso",
        help="How api-version 2017-03-01 writes NotBefore: iso as published, rfc1123 as the real service was seen to."),
    Setting("proxy_trusted", "NETWORK", values.network, repeatable=True,
        help="Network whose metadata proxies may say for which VM they ask; may be repeated."),
    Setting("proxy_style", "STYLE", partial(values.one_of, values.ProxyStyle), default="forenotice",
        help="How those proxies prove it: forenotice or openstack."),
    Setting("proxy_secret_file", "FILE", values.path, help="File with the secret shared with those proxies."),
    Setting("nats", "URL", values.nats, repeatable=True,
        help="NATS server of the cluster, such as nats://HOST:4222 or tls://HOST:4222; may be repeated."),
    Setting("nats_credentials", "FILE", values.path, help="File with the credentials for NATS."),
    Setting("nats_ca", "FILE", values.path, help="PEM file with the CA that issued the NATS servers' certificates."),
    Setting("nats_certificate", "FILE", values.path, help="PEM file with our own certificate for NATS."),
    Setting("nats_key", "FILE", values.path, help="PEM file with the key of that certificate."),
    Setting("edge_patience", "DURATION", values.Span.read, default="15m",
        help="How long after NotBefore an operation waits for the edge of its host to show the event."),
    Setting("allow_loopback_addresses", "", values.switch, default="false", demo="true",
        help="Allow VMs to have loopback addresses, for tests on one machine."),
    Setting("allow_private_targets", "NETWORK", values.network, repeatable=True,
        help="Private or loopback network that subscriptions and gates may reach, also by plain http; may be "
             "repeated."),
    Setting("driver", "FILE", values.driver, default="simulated",
        help="What really happens to VMs: simulated, or the TOML file of a driver; see docs/drivers.md."),
    Setting("inventory_rules", "FILE", values.path,
        help="What VMs that hosts with an inventory have are, by their names, as TOML; see docs/inventory.md."),
    Setting("gate", "NAME=COMMAND", values.gate, repeatable=True, by_line=True,
        help="A command, run without a shell, that rollouts may name as their gate; may be repeated."),
    Setting("log_level", "LEVEL", partial(values.one_of, values.LogLevel), default="info",
        help="The least that is logged: debug, info, warning or error."),
    Setting("log_format", "FORMAT", partial(values.one_of, values.LogFormat), default="auto",
        help="console for people, json for machines; auto chooses by whether it goes to a terminal."),
    CONFIG,
)
EDGE = (
    # Not FORENOTICE_HOST, which Kubernetes sets to something else beside a service of our name.
    Setting("edge_host", "NAME", values.vm_name, flag_of="host", field="host",
        help="The name in the fleet of the host whose guests this edge answers."),
    *(setting for setting in SERVE if setting.name.startswith(("metadata", "proxy_", "nats", "log_", "first_"))
      or setting.name in ("data", "as", "guest_rate", "wait_cap", "config")),
    Setting("stale_after", "DURATION", values.Span.read, default="5m",
        help="After this long without news from the cluster, responses to guests have an Age header."),
    Setting("edge_metrics", "HOST:PORT", values.address, flag_of="metrics", default="127.0.0.1:8256",
        help="Where the edge answers /metrics and /readyz."),
)
NATS = (*(setting for setting in SERVE if setting.name.startswith("nats")), CONFIG)
CLUSTER_DEMO = (
    DATA,
    replace(CONTROL, in_file=False, default="127.0.0.1:0", help="Where the first service answers operators."),
    replace(SPEED, in_file=False, help="Divide every duration of the demo's services by this."),
    CONFIG,
)
LAB = (
    DATA,
    CONTROL,
    replace(SPEED, in_file=False, default="20", help="Divide every duration of the lab's service by this."),
    CONFIG,
)
CONTROL_URL = Setting("control_url", "URL", values.url, variable_of="control", default="http://127.0.0.1:8255",
    help="Where the control plane answers.")
OPERATOR = (
    replace(CONTROL_URL, default=None,
        help="Where the control plane answers; if left out, the socket in the data directory, or with a token "
             "http://127.0.0.1:8255."),
    Setting("token", "TOKEN", values.token,
        help="Bearer token; without it, the one in admin.token of the data directory, its demo, lab or cluster."),
    Setting("control_ca", "FILE", values.path,
        help="PEM file with the CA of the control plane's certificate, if the system does not know it."),
    CONTROL_WITHOUT_TLS,
    DATA,
    CONFIG,
)
GUEST = (
    Setting("endpoint", "URL", values.endpoint,
        help="The metadata service, as seen from inside the VM; else http://169.254.169.254 or where DHCP says."),
    Setting("name", "VM", values.vm_name,
        help="This VM's name, as events write it; else what the metadata service calls it."),
    CONFIG,
)
AGENT = (
    Setting("agent_config", "FILE", values.path, flag_of="config", field="config", in_file=False,
        default="/etc/forenotice/agent.toml", help="What the agent does; see docs/agent.md."),
    Setting("state", "DIR", values.path, in_file=False,
        help="Directory of the agent's journal; also `state` in agent.toml."),
    Setting("observe", "", values.switch, default="false", in_file=False,
        help="Neither run handlers nor approve; say what would have been done."),
    *(setting for setting in GUEST if setting is not CONFIG),
    *(setting for setting in SERVE if setting.name.startswith("log_")),
)
EMULATE = (
    Setting("resources", "VM,...", values.vm_names, in_file=False,
        help="VMs in place of the scenario's own, with commas between them."),
    replace(SPEED, in_file=False, help="Divide every duration by this; NotBefore shrinks with them."),
    # Not FORENOTICE_PORT, which Kubernetes sets to something else beside a service of our name.
    Setting("emulator_port", "PORT", values.port, flag_of="port", field="port", in_file=False,
        help="The port at which the emulator answers guests; 0 for one that is free, also for its control."),
    Setting("emulator_metadata", "HOST:PORT", values.address, flag_of="metadata", field="metadata", in_file=False,
        default="127.0.0.1:8254", help="Where the emulator answers guests."),
    replace(METADATA_NAME, in_file=False),
    # Not FORENOTICE_CONTROL, which says where another one is driven.
    Setting("emulator_control", "HOST:PORT", values.control_address, flag_of="control", field="control", in_file=False,
        help="Where the emulator is driven, also in a browser; else 127.0.0.1:8255, or a free port beside --port 0."),
    Setting("open_control", "", values.switch, default="false", in_file=False,
        help="Let other machines drive the emulator, which asks for no token."),
    replace(AS, demo=None, in_file=False,
        help="Which VM every caller is; else the one that the scenario says, or web-0."),
    Setting("seed", "N", values.seed, in_file=False,
        help="Where the scenario's chance comes from, in place of its own seed."),
    Setting("ready_file", "FILE", values.path, in_file=False,
        help="File to write the emulator's addresses to, as JSON, once it answers."),
)
EMULATOR = (
    replace(CONTROL_URL, help="Where the emulator's control answers."),
    CONFIG,
)
# fmt: on


def everything() -> dict[str, Setting]:
    """Each setting once, by name; where commands differ in it, as most have it."""
    found: dict[str, Setting] = {}
    for setting in (*SERVE, *EDGE, *OPERATOR, *GUEST, *AGENT, *EMULATE, *EMULATOR):
        found.setdefault(setting.name, setting)
    return found


def parser(program: str, about: str, rows: Sequence[Setting]) -> "ArgumentParser":
    """For commands that start without Click."""
    from argparse import ArgumentParser

    made = ArgumentParser(prog=program, description=about, allow_abbrev=False)
    for row in rows:
        if row.is_switch:
            made.add_argument(row.flag, dest=row.name, action="store_true", help=row.described)
        else:
            # Each time it is given counts, where it may be repeated.
            action = "append" if row.repeatable else "store"
            described = row.described.replace("%", "%%")
            made.add_argument(row.flag, dest=row.name, metavar=row.metavar, action=action, help=described)
    return made


def rows() -> list[str]:
    """The table as the docs show it; `python -m forenotice.settings.table` prints it."""
    lines = ["| flag | variable | key in the file | default | meaning |", "|---|---|---|---|---|"]
    for setting in everything().values():
        flag = " ".join(part for part in (setting.flag, setting.metavar) if part)
        default = "" if setting.default is None else f"`{setting.default}`"
        if setting.demo is not None:
            default = f"{default or 'none'}, with `--demo` `{setting.demo}`"
        key = f"`{setting.name}`" if setting.in_file else "not in the file"
        lines.append(f"| `{flag}` | `{setting.variable}` | {key} | {default or 'none'} | {setting.help} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
