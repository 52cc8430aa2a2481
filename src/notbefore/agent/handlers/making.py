"""From a `[[handler]]` of agent.toml to what does it."""

from notbefore.agent.config import handlers
from notbefore.agent.handlers.command import Command
from notbefore.agent.handlers.extra import Extra
from notbefore.agent.handlers.file import File
from notbefore.agent.handlers.haproxy import Haproxy
from notbefore.agent.handlers.interface import Handler
from notbefore.agent.handlers.systemd import Systemd
from notbefore.agent.handlers.webhook import Webhook


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
