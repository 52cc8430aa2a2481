"""The handlers of a configuration, made when first needed."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from notbefore.agent.config import values
from notbefore.agent.config.handlers import Handler as HandlerConfig
from notbefore.agent.handlers import making
from notbefore.agent.handlers.interface import Handler
from notbefore.agent.rules.handling import Rule

_READER: msgspec.json.Decoder[HandlerConfig] = msgspec.json.Decoder(HandlerConfig, dec_hook=values.read)


class Crew:
    def __init__(self, configs: Iterable[HandlerConfig]) -> None:
        self._configs = {config.name: config for config in configs}
        self._made: dict[str, Handler] = {}

    @property
    def rules(self) -> Sequence[Rule]:
        return [config.rule for config in self._configs.values()]

    def handler(self, name: str) -> Handler:
        if name not in self._made:
            self._made[name] = making.make(self._configs[name])
        return self._made[name]

    def written(self, names: Iterable[str]) -> Mapping[str, str]:
        """Their configuration, to be kept with what they prepare."""
        return {name: msgspec.json.encode(self._configs[name], enc_hook=values.write).decode() for name in names}

    def joined_by(self, written: Mapping[str, str]) -> "Crew":
        """With those that prepared under an earlier configuration and are missing in this one."""
        left = [config for name, text in written.items() if name not in self._configs and (config := _read(text))]
        return Crew([*self._configs.values(), *left]) if left else self


def _read(text: str) -> HandlerConfig | None:
    """None: another version of the agent wrote it, in words that this one does not know."""
    try:
        return _READER.decode(text)
    except msgspec.MsgspecError:
        return None
