"""From a `[[handler]]` of agent.toml to what does it."""

from forenotice.agent.config import handlers
from forenotice.agent.handlers.command import Command
from forenotice.agent.handlers.extra import Extra
from forenotice.agent.handlers.file import File
from forenotice.agent.handlers.haproxy import Haproxy
from forenotice.agent.handlers.interface import Handler
from forenotice.agent.handlers.systemd import Systemd
from forenotice.agent.handlers.webhook import Webhook


def make(config: handlers.Handler) -> Handler:
    match config:
        case handlers.Command():
            return Command(config)
        case handlers.Webhook():
            return Webhook(config)
        case handlers.Systemd():
            return Systemd(config)
        case handlers.File():
            return File(config)
        case handlers.Haproxy():
            return Haproxy(config)
        case handlers.Kubernetes() | handlers.Notify() | handlers.Python():
            return Extra(config)
