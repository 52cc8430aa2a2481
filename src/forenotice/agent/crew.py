"""The handlers of a configuration, made when first needed."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from forenotice.agent.config import values
from forenotice.agent.config.handlers import Handler as HandlerConfig
from forenotice.agent.handlers import making
from forenotice.agent.handlers.interface import Handler
from forenotice.agent.rules.handling import Rule

PRESENT = ("stage", "timeout", "retries", "on_failure")
"""How a handler is run, not what it does: as agent.toml says now."""
JOINED = 32
"""Crews that are kept, of as many sagas at least."""
_READER: msgspec.json.Decoder[HandlerConfig] = msgspec.json.Decoder(HandlerConfig, dec_hook=values.read)


class Crew:
    def __init__(self, configs: Iterable[HandlerConfig]) -> None:
        self._configs = {config.name: config for config in configs}
        self.rules: Sequence[Rule] = [config.rule for config in self._configs.values()]
        self._made: dict[str, Handler] = {}
        self._joined: dict[tuple[tuple[str, str], ...], Crew] = {}

    def stage(self, name: str) -> int:
        return self._configs[name].stage

    def handler(self, name: str) -> Handler:
        if name not in self._made:
            self._made[name] = making.make(self._configs[name])
        return self._made[name]

    def written(self, names: Iterable[str]) -> Mapping[str, str]:
        """Their configuration, to be kept with what they prepare."""
        return {name: msgspec.json.encode(self._configs[name], enc_hook=values.write).decode() for name in names}

    def joined_by(self, written: Mapping[str, str]) -> "Crew":
        """With those that prepared as they were then: as a handler began, so it ends."""
        key = tuple(written.items())
        if key not in self._joined:
            if len(self._joined) >= JOINED:
                del self._joined[next(iter(self._joined))]
            self._joined[key] = self._join(written)
        return self._joined[key]

    def _join(self, written: Mapping[str, str]) -> "Crew":
        then = {name: self._run_as_now(config) for name, text in written.items() if (config := _read(text))}
        configs = {**self._configs, **then}
        if configs == self._configs:
            return self
        crew = Crew(configs.values())
        crew._made = {name: made for name, made in self._made.items() if configs[name] == self._configs[name]}
        return crew

    def _run_as_now(self, config: HandlerConfig) -> HandlerConfig:
        now = self._configs.get(config.name)
        if type(now) is not type(config):
            return config
        return msgspec.structs.replace(config, **{key: getattr(now, key) for key in PRESENT})


def _read(text: str) -> HandlerConfig | None:
    """None: another version of the agent wrote it, in words that this one does not know."""
    try:
        return _READER.decode(text)
    except msgspec.MsgspecError:
        return None
