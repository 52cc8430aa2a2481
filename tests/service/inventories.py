"""Hosts with an inventory, as far as a service sees them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forenotice.core import errors
from forenotice.core.inventory import Domain, DomainFacts, DomainState, Listed

WATCHED = {"inventory": "libvirt", "address": "test:///default"}
ID = "00000000-0000-4000-8000-00000000000{}"


@dataclass
class Hosts:
    """What hosts have: the edge beyond which libvirt is."""

    domains: dict[str, list[Domain]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    followed: Mapping[str, str] = field(default_factory=dict)
    changed: Callable[[str], None] = lambda _: None
    before_answer: Callable[[], None] = lambda: None
    closed: bool = False

    def open(self, changed: Callable[[str], None]) -> "Hosts":
        self.changed = changed
        return self

    def follow(self, hosts: Mapping[str, str]) -> None:
        self.followed = hosts

    def begin(self, name: str) -> None:
        self.begun.append(name)

    def list(self, name: str) -> Listed:
        self.asked.append(name)
        if why := self.silent.get(name):
            raise errors.UnavailableError(why)
        domains = list(self.domains.get(name, ()))
        self.before_answer()
        definitions = {each.uuid: f"<domain>{each.name}</domain>" for each in domains}
        return Listed(domains=domains, definitions=definitions, machine=self.machines.get(name, ""))

    def close(self) -> None:
        self.closed = True

    def move(self, name: str, source: str, target: str) -> None:
        [moved] = [each for each in self.domains[source] if each.name == name]
        self.domains[source].remove(moved)
        self.domains.setdefault(target, []).append(moved)


def domain(name: str, number: int, state: DomainState = DomainState.RUNNING, **facts: Any) -> Domain:
    return Domain(name=name, uuid=ID.format(number), state=state, facts=DomainFacts(**facts))
