from forenotice.agent.config import handlers
from forenotice.agent.handlers import making

CONFIGS: list[handlers.Handler] = [
    handlers.Command(name="a", prepare=("true",)),
    handlers.Webhook(name="a", url="http://localhost"),
    handlers.Systemd(name="a", units=("a.service",)),
    handlers.File(name="a", path="/run/a"),
    handlers.Haproxy(name="a", socket="/run/a", servers=("a/b",)),
    handlers.Kubernetes(name="a"),
    handlers.Notify(name="a", urls=("json://localhost",)),
    handlers.Python(name="a", entry_point="a:b"),
]


def test_every_type_of_handler_can_be_made() -> None:
    made = [type(making.make(config)).__name__ for config in CONFIGS]
    assert made == ["Command", "Webhook", "Systemd", "File", "Haproxy", "Extra", "Extra", "Extra"]
