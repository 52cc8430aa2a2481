"""The file of rules for hosts with an inventory: what domains are where their own descriptions do not say."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from forenotice import toml, validation
from forenotice.core import errors
from forenotice.core.fleet import ScopeKind
from forenotice.core.inventory import DomainFacts, Rule
from forenotice.views import base

Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
MOST_RULES = 1000


class RulesFileError(errors.RefusedError):
    """The file of rules is not usable."""

    code = "rules_file"


class RuleTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Pattern
    host: Pattern = "*"
    ignore: bool = False
    group: base.Name | None = None
    kind: ScopeKind | None = None
    update_domain: base.Domain | None = None
    fault_domain: base.Domain | None = None
    spot: bool | None = None
    addresses: base.Addresses | None = None
    size: base.Amount | None = None

    def __post_init__(self) -> None:
        if self.kind is ScopeKind.STANDALONE:
            raise ValueError("a group is an availability-set, a placement-group or a cloud-service")

    def rule(self) -> Rule:
        facts: dict[str, Any] = {name: getattr(self, name) for name in DomainFacts.__dataclass_fields__}
        facts["addresses"] = None if self.addresses is None else tuple(self.addresses)
        return Rule(name=self.name, host=self.host, ignore=self.ignore, facts=DomainFacts(**facts))


class RulesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rules: Annotated[list[RuleTable], msgspec.Meta(max_length=MOST_RULES)] = []


def load(path: Path) -> list[Rule]:
    content = toml.read(path, "the file of inventory rules", RulesFileError, links=True).parse()
    try:
        found = msgspec.convert(content, RulesFile)
    except msgspec.ValidationError as error:
        raise RulesFileError(validation.sentence(error, RulesFile, str(path))) from None
    return [table.rule() for table in found.rules]
