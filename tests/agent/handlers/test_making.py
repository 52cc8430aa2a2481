from forenotice.agent import workers
from forenotice.agent.handlers import tables

CONFIGS: list[tables.Handler] = [
    tables.Command(name="a", prepare=("true",)),
    tables.Webhook(name="a", url="http://localhost"),
    tables.Systemd(name="a", units=("a.service",)),
    tables.File(name="a", path="/run/a"),
    tables.Haproxy(name="a", socket="/run/a", servers=("a/b",)),
    tables.Kubernetes(name="a"),
    tables.Notify(name="a", urls=("json://localhost",)),
    tables.Python(name="a", entry_point="a:b"),
]


def test_every_type_of_handler_can_be_made() -> None:
    made = [type(workers.make(config)).__name__ for config in CONFIGS]
    assert made == ["Command", "Webhook", "Systemd", "File", "Haproxy", "ChildHandler", "ChildHandler", "ChildHandler"]
